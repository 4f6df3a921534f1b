"""Pretrain the lab's policy on the task's corpus and save it as a Hugging Face folder.

Sequences are padded on the right and positions start at 0, as a server and a trainer have them.

Dimension key:
    B: sequences of a batch
    T: longest sequence of the batch, in tokens
"""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import track
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from megatron_corew.lab.probe import probe
from megatron_corew.lab.task import CORPORA, LabTask, corpus_pair, lab_rows
from megatron_corew.lab.tokenizer import build_tokenizer
from megatron_corew.types import VIEWS

MAX_POSITIONS = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """How the policy is pretrained."""

    updates: int = 800
    """Optimizer updates."""
    batch: int = 128
    """Sequences per update."""
    matrix_lr: float = 0.02
    """Peak learning rate of Muon, which trains the matrices of the layers."""
    other_lr: float = 3e-3
    """Peak learning rate of AdamW, which trains the embedding and the norms."""
    warmup_updates: int = 50
    """Updates with a rising learning rate."""
    decay_share: float = 0.4
    """Share of the updates, at the end, with a falling learning rate."""
    end_lr_share: float = 0.02
    """Learning rate at the end, as a share of the peak."""

    def lr_share(self, update: int) -> float:
        """Give the learning rate of an update.

        Args:
            update: Number of the update, from 0.

        Returns:
            The rate as a share of the peak.
        """
        left = (self.updates - update) / (self.decay_share * self.updates)
        decay = self.end_lr_share + (1 - self.end_lr_share) * min(1.0, left)
        return min(1.0, (update + 1) / self.warmup_updates) * decay


def policy_config(vocabulary: int) -> Qwen3Config:
    """Give the shape of the lab's policy: 0.45 M parameters.

    Args:
        vocabulary: Number of tokens.

    Returns:
        A Qwen3 configuration with two query heads per key/value head.
    """
    return Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
        dtype="float32",
    )


def corpus_batch(
    rng: random.Random, tokenizer: PreTrainedTokenizerFast, size: int, corpus: LabTask
) -> tuple[Tensor, Tensor]:
    """Draw one batch of the corpus.

    Args:
        rng: Source of the pairs.
        tokenizer: The lab's tokenizer.
        size: Number of sequences B.
        corpus: Rates of its short cuts and errors.

    Returns:
        Token ids [B, T] int64, padded on the right, and a mask [B, T] bool that is True on the
        tokens of the answers, end token included.
    """
    pairs = [corpus_pair(rng, corpus) for _ in range(size)]
    prompts = tokenizer([question for question, _ in pairs]).input_ids
    rows = tokenizer([question + answer + "<eos>" for question, answer in pairs]).input_ids
    longest = max(map(len, rows))
    ids_BT = torch.zeros(size, longest, dtype=torch.int64)
    mask_BT = torch.zeros(size, longest, dtype=torch.bool)
    for at, (prompt, row) in enumerate(zip(prompts, rows, strict=True)):
        ids_BT[at, : len(row)] = torch.tensor(row)
        mask_BT[at, len(prompt) : len(row)] = True
    return ids_BT, mask_BT


def pretrain(recipe: Recipe, *, corpus: LabTask, seed: int, console: Console) -> Qwen3ForCausalLM:
    """Train a fresh policy.

    Args:
        recipe: Sizes and rates.
        corpus: What it is trained on.
        seed: Seed of the weights and of the corpus.
        console: Where the progress is shown.

    Returns:
        The policy in float32.
    """
    torch.manual_seed(seed)
    rng = random.Random(seed)
    tokenizer = build_tokenizer(MAX_POSITIONS)
    model = Qwen3ForCausalLM(policy_config(len(tokenizer)))
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    known = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in known]
    optimizers = {
        torch.optim.Muon(matrices, weight_decay=0.0): recipe.matrix_lr,
        torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.01): recipe.other_lr,
    }
    for update in track(range(recipe.updates), "pretraining", console=console):
        ids_BT, mask_BT = corpus_batch(rng, tokenizer, recipe.batch, corpus)
        # The causal mask alone hides the padding: it stands behind every real token.
        logits = model(input_ids=ids_BT[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits[mask_BT[:, 1:]], ids_BT[mask_BT])
        model.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, peak in optimizers.items():
            optimizer.param_groups[0]["lr"] = peak * recipe.lr_share(update)
            optimizer.step()
    console.print(f"last loss {loss.item():.4f}, {model.num_parameters():,} parameters")
    model.eval()
    return model


def save_policy(model: Qwen3ForCausalLM, folder: Path) -> None:
    """Write the policy and its tokenizer as a Hugging Face folder.

    Args:
        model: The policy.
        folder: Where to; made if missing.
    """
    model.generation_config = GenerationConfig(eos_token_id=1, pad_token_id=0)
    model.save_pretrained(folder)
    build_tokenizer(MAX_POSITIONS).save_pretrained(folder)


def main(
    out: Annotated[Path, typer.Option(help="Folder to write the policy to.")],
    base: Annotated[str, typer.Option(help=f"Corpus to learn: {', '.join(CORPORA)}.")] = "demo",
    seed: Annotated[int, typer.Option(help="Seed of the weights and of the corpus.")] = 0,
) -> None:
    """Pretrain a policy of the lab (about three minutes on one core) and show what it can do.

    Example: python -m megatron_corew.lab.pretrain --base echo --out runs/lab-echo
    """
    if base not in CORPORA:
        raise typer.BadParameter(f"--base: need one of {', '.join(CORPORA)}, got {base!r}.")
    torch.set_num_threads(1)
    console = Console()
    model = pretrain(Recipe(), corpus=CORPORA[base], seed=seed, console=console)
    save_policy(model, out)
    rows = lab_rows("eval", 384)
    for view in VIEWS:
        found = probe(model, build_tokenizer(MAX_POSITIONS), rows, view=view, samples=8)
        console.print(f"{view}: {found}")


if __name__ == "__main__":
    typer.run(main)
