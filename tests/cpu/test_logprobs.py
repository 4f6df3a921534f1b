"""Token scores in one process against golden values and plain torch."""

import json
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from megatron_corew.mcore import logprobs
from megatron_corew.mcore.logprobs import token_scores, vocabulary_shard

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "logits.json").read_text())


def scores_of_logits(logits_NV, targets_N, *, temperature, chunk=1000):
    """Through an identity output layer, so that the hidden state is the logits."""
    vocab = logits_NV.shape[1]
    weight = torch.eye(vocab)
    shard = vocabulary_shard(vocab, vocab, 0, None)
    return token_scores(logits_NV, weight, targets_N, shard, temperature=temperature, chunk=chunk)


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["name"])
def test_scores_and_gradients_meet_the_golden_values(case):
    logits = torch.tensor(case["logits"]).flatten(0, 1).requires_grad_()
    labels = torch.tensor(case["labels"]).flatten()
    lengths = torch.tensor(case["response_lengths"])
    temperature, columns = case["temperature"], len(case["labels"][0])
    mask = (torch.arange(columns)[None] < lengths[:, None]).flatten()
    values = GOLDEN["tolerance"]["values"]
    gradients = GOLDEN["tolerance"]["gradients"]

    logp, entropy, certainty = scores_of_logits(logits, labels, temperature=temperature)
    for mine, name in (
        (logp, "log_probs"),
        (entropy, "entropy"),
        (certainty, "self_certainty"),
    ):
        golden = torch.tensor(case[name]).flatten()
        torch.testing.assert_close(mine.detach(), golden, **values)

    for mine, name in ((logp, "log_prob"), (entropy, "entropy")):
        mean = (mine * mask).sum() / mask.sum()
        assert mean.item() == pytest.approx(
            case[f"masked_mean_{name}"], rel=values["rtol"], abs=values["atol"]
        )
        (grad,) = torch.autograd.grad(mean, logits, retain_graph=True)
        golden = torch.tensor(case[f"grad_scaled_logits_of_masked_mean_{name}"]).flatten(0, 1)
        # Golden gradients are with respect to logits / temperature.
        torch.testing.assert_close(grad * temperature, golden, **gradients)


def test_temperature_divides_the_logits_before_the_softmax():
    # logits [2, 0], token 0: log-prob -log(1 + e^-2) at T = 1 and -log(1 + e^-4) at T = 0.5.
    logits, target = torch.tensor([[2.0, 0.0]]), torch.tensor([0])
    at_one, _, _ = scores_of_logits(logits, target, temperature=1.0)
    at_half, _, _ = scores_of_logits(logits, target, temperature=0.5)
    assert float(at_one) == pytest.approx(-0.126928, abs=1e-6)
    assert float(at_half) == pytest.approx(-0.018150, abs=1e-6)


@pytest.mark.parametrize("block", [1, 4, 10, 100])
@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
def test_chunks_and_blocks_do_not_change_scores_or_gradients(chunk, block, monkeypatch):
    monkeypatch.setattr(logprobs, "VOCABULARY_BLOCK", block)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(7, 8, generator=generator).requires_grad_()
    weight = torch.randn(11, 8, generator=generator).requires_grad_()
    targets = torch.randint(0, 10, (7,), generator=generator)
    factors = torch.randn(2, 7, generator=generator)
    shard = vocabulary_shard(11, 10, 0, None)  # one row of padding

    def run(size):
        logp, entropy, certainty = token_scores(
            hidden, weight, targets, shard, temperature=0.7, chunk=size
        )
        loss = (factors[0] * logp + factors[1] * entropy).sum()
        return logp, entropy, certainty, *torch.autograd.grad(loss, (hidden, weight))

    z = (hidden @ weight[:10].t()) / 0.7
    logsoftmax = z.log_softmax(-1)
    plain_logp = logsoftmax.gather(1, targets[:, None])[:, 0]
    plain_entropy = -(logsoftmax.exp() * logsoftmax).sum(-1)
    loss = (factors[0] * plain_logp + factors[1] * plain_entropy).sum()
    expected = (
        plain_logp,
        plain_entropy,
        z.logsumexp(-1) - z.mean(-1),
        *torch.autograd.grad(loss, (hidden, weight)),
    )
    for mine, theirs in zip(run(chunk), expected, strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-6, rtol=2e-6)


class LargestTensor(TorchDispatchMode):
    """Bytes of the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and not func.is_view:
                self.bytes = max(self.bytes, tensor.numel() * tensor.element_size())
        return result


def largest_and_kept(tokens: int, vocab: int, *, width: int = 4) -> tuple[int, int]:
    """Bytes of the largest tensor forward and backward make, and bytes kept in between."""
    hidden = torch.randn(tokens, width, requires_grad=True)
    weight = torch.randn(vocab, width)
    targets = torch.zeros(tokens, dtype=torch.int64)
    shard, kept = vocabulary_shard(vocab, vocab, 0, None), {}

    def keep(tensor):
        kept[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with LargestTensor() as largest:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            logp, entropy, _ = token_scores(
                hidden, weight, targets, shard, temperature=1.0, chunk=64
            )
        (logp.sum() + entropy.sum()).backward()
    return largest.bytes, sum(kept.values())


def test_no_tensor_grows_with_tokens_times_vocabulary(monkeypatch):
    monkeypatch.setattr(logprobs, "VOCABULARY_BLOCK", 128)
    logits = 64 * 128 * 4
    # The model's own tensors stay below one block of logits, which is the largest there is.
    assert largest_and_kept(tokens=256, vocab=512)[0] == logits
    assert largest_and_kept(tokens=512, vocab=1024)[0] == logits
    # Kept for the backward pass: hidden states, weight, targets, and five numbers per token
    # (log-prob, entropy, certainty, logsumexp lie in one tensor of four).
    _, kept = largest_and_kept(tokens=512, vocab=1024)
    assert kept <= (512 + 1024) * 4 * 4 + 512 * 8 + 2 * 512 * 4 * 4


def test_no_token_gives_no_score_but_a_gradient_of_zero():
    hidden = torch.zeros(0, 4, requires_grad=True)
    weight = torch.ones(5, 4, requires_grad=True)
    shard = vocabulary_shard(5, 5, 0, None)
    logp, _, _ = token_scores(
        hidden, weight, torch.zeros(0, dtype=torch.int64), shard, temperature=1.0, chunk=4
    )
    logp.sum().backward()
    assert logp.shape == (0,)
    assert torch.equal(weight.grad, torch.zeros(5, 4))


def test_padding_rows_are_not_part_of_the_vocabulary():
    assert vocabulary_shard(64, 127, 1, None)[:2] == (64, 63)
    assert vocabulary_shard(64, 60, 1, None)[:2] == (64, 0)
