"""Measures the peak memory of scoring tokens, forward and backward, over growing vocabularies.

    python benchmarks/logprob_memory.py

Every figure is the growth of a process of its own: its peak resident size above what it held
before the call, less the gradients that the call must return. ``plain`` is log_softmax under
autograd. Prints one JSON.
"""

import json
import resource
import subprocess
import sys

import torch

from megatron_corew.mcore.logprobs import token_scores, vocabulary_shard

TOKENS, WIDTH, CHUNK = 1024, 64, 256
VOCABULARIES = (16_384, 32_768, 65_536, 151_936)


def plain_scores(
    hidden_ND: torch.Tensor, weight_WD: torch.Tensor, targets_N: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs and entropy of whole logits."""
    logp_NW = (hidden_ND @ weight_WD.t()).log_softmax(-1)
    return logp_NW.gather(1, targets_N[:, None])[:, 0], -(logp_NW.exp() * logp_NW).sum(-1)


def peak_bytes() -> int:
    """Largest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(kind: str, tokens: int, vocab: int) -> float:
    """MB that one forward and backward pass adds, without the gradients it returns."""
    torch.set_num_threads(1)
    hidden = torch.randn(tokens, WIDTH, requires_grad=True)
    weight = torch.randn(vocab, WIDTH, requires_grad=True)
    targets = torch.randint(0, vocab, (tokens,))
    before = peak_bytes()
    if kind == "plain":
        logp, entropy = plain_scores(hidden, weight, targets)
    else:
        shard = vocabulary_shard(vocab, vocab, 0, None)
        logp, entropy, _ = token_scores(
            hidden, weight, targets, shard, temperature=1.0, chunk=CHUNK
        )
    (logp.sum() + entropy.sum()).backward()
    returned = (hidden.numel() + weight.numel()) * 4
    return (peak_bytes() - before - returned) / 2**20


def in_its_own_process(kind: str, tokens: int, vocab: int) -> float:
    """``measure`` where nothing was allocated before."""
    command = [sys.executable, __file__, kind, str(tokens), str(vocab)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return round(float(done.stdout), 1)


def main() -> None:
    """Print the table as JSON."""
    rows = [
        {
            "tokens": tokens,
            "vocabulary": vocab,
            "plain_mb": in_its_own_process("plain", tokens, vocab),
            "corew_mb": in_its_own_process("corew", tokens, vocab),
        }
        for tokens, vocab in [*((TOKENS, vocab) for vocab in VOCABULARIES), (2 * TOKENS, 65_536)]
    ]
    print(json.dumps({"width": WIDTH, "chunk": CHUNK, "rows": rows}, indent=1))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
    else:
        main()
