"""Compares two models, each a Hugging Face folder or a Megatron-Core checkpoint."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import track
from torch import Tensor

from checkpoint_tools.command import one_line_errors, standalone
from checkpoint_tools.sources import Source, open_source

_TOKENS, _ROWS, _SEED = 32, 2, 0
"""Random tokens per row, and rows, of the comparison of logits."""
_PART = 2**22
"""Numbers compared at a time: float64 copies of a whole tensor would be larger than a model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """How one tensor differs between two models."""

    name: str
    kind: str
    """``equal``, ``values``, both types, both shapes, ``only in A`` or ``only in B``."""
    largest: float = 0.0
    """Absolute difference; NaN against a number counts as infinite."""
    relative: float = 0.0
    """``largest`` over the largest magnitude in A."""


def compare(first: Source, second: Source) -> Iterator[Difference]:
    """Compare tensor by tensor; one pair of tensors is in memory.

    Args:
        first: A.
        second: B.

    Yields:
        One difference per name that either has, in A's order.
    """
    second_entries = {name: entry for entry in second.table for name in entry.hf_names}
    for entry in first.table:
        own = first.read(entry)
        others: dict[str, Tensor] = {}
        for name in entry.hf_names:
            if name in second_entries and name not in others:
                others |= second.read(second_entries[name])
        for name, tensor in own.items():
            yield _difference(name, tensor, others)
    names = {name for entry in first.table for name in entry.hf_names}
    for name in second_entries:
        if name not in names:
            yield Difference(name=name, kind="only in B")


@torch.inference_mode()
def logits_difference(first: Source, second: Source) -> tuple[float, float]:
    """Largest difference of the logits on random tokens, in float32 by transformers.

    Both models are built in memory, one after the other.

    Args:
        first: A.
        second: B, with the same vocabulary.

    Returns:
        Largest absolute difference, and that over the largest magnitude in A.

    Raises:
        ValueError: the vocabularies differ.
    """
    size, other = first.architecture.vocab_size, second.architecture.vocab_size
    if size != other:
        raise ValueError(f"--logits: need equal vocabularies, got {size} and {other} tokens.")
    generator = torch.Generator().manual_seed(_SEED)
    tokens = torch.randint(0, size, (_ROWS, _TOKENS), generator=generator)
    one, two = (_logits(source, tokens) for source in (first, second))
    largest = (one - two).abs().max().item()
    return largest, largest / one.abs().max().item()


def _difference(name: str, tensor: Tensor, others: Mapping[str, Tensor]) -> Difference:
    if name not in others:
        return Difference(name=name, kind="only in A")
    other = others[name]
    if tensor.shape != other.shape:
        return Difference(name=name, kind=f"shape {list(tensor.shape)}, {list(other.shape)}")
    same_type = tensor.dtype == other.dtype
    if same_type and torch.equal(tensor, other):
        return Difference(name=name, kind="equal")
    largest, magnitude = _largest(tensor, other)
    if same_type and largest == 0:
        # Equal but for NaN in the same places.
        return Difference(name=name, kind="equal")
    return Difference(
        name=name,
        kind="values" if same_type else f"{_name(tensor.dtype)}, {_name(other.dtype)}",
        largest=largest,
        relative=largest / magnitude if magnitude else largest,
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _largest(one: Tensor, two: Tensor) -> tuple[float, float]:
    """Largest difference and largest magnitude of ``one``, in float64, part by part."""
    largest = magnitude = 0.0
    for parts in zip(
        torch.split(one.reshape(-1), _PART), torch.split(two.reshape(-1), _PART), strict=True
    ):
        a, b = (part.double() for part in parts)
        same = (a == b) | (a.isnan() & b.isnan())
        gap = torch.where(same, 0.0, (a - b).abs()).nan_to_num(nan=torch.inf)
        largest = max(largest, gap.max().item())
        magnitude = max(magnitude, a.abs().nan_to_num(nan=0.0).max().item())
    return largest, magnitude


def _logits(source: Source, tokens: Tensor) -> Tensor:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(source.config_folder)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    weights = {
        name: tensor.float()
        for entry in source.table
        for name, tensor in source.read(entry).items()
    }
    if source.architecture.tied:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights)
    logits: Tensor = model(tokens).logits
    return logits


def command(
    first: Annotated[Path, typer.Argument(metavar="A", help="Folder or checkpoint.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Folder or checkpoint.")],
    logits: Annotated[bool, typer.Option("--logits", help="Run both on random tokens.")] = False,
    like: Annotated[
        Path | None, typer.Option(help="Hugging Face folder for a checkpoint without config.")
    ] = None,
    teacher: Annotated[bool, typer.Option("--teacher", help="The teacher.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="List equal tensors too.")] = False,
) -> None:
    """Compare two models; exits with 1 when a tensor differs, or what their configs compute.

    Each may be a Hugging Face folder or a Megatron-Core checkpoint.
    """
    console = Console(highlight=False, markup=False, soft_wrap=True)
    with one_line_errors():
        one, two = (
            open_source(path, config_folder=like, teacher=teacher) for path in (first, second)
        )
        total = sum(len(entry.hf_names) for entry in one.table)
        found = list(track(compare(one, two), "comparing", total=total, transient=True))
        differing = [difference for difference in found if difference.kind != "equal"]
        for one_found in found if everything else differing:
            console.print(_line(one_found))
        keys = sorted(
            key
            for key in one.config.keys() | two.config.keys()
            if one.config.get(key) != two.config.get(key)
        )
        if keys:
            console.print(f"config.json differs in: {', '.join(keys)}")
        console.print(
            f"{len(found)} tensors: {len(found) - len(differing)} equal, {len(differing)} differ"
        )
        if logits:
            largest, relative = logits_difference(one, two)
            console.print(f"logits: largest difference {largest:.3g}, relative {relative:.3g}")
        if one.architecture != two.architecture:
            console.print("the configs describe models that compute different things")
    if differing or one.architecture != two.architecture:
        raise typer.Exit(1)


def _line(one: Difference) -> str:
    if one.kind == "equal" or one.kind.startswith(("only", "shape")):
        return f"{one.name}: {one.kind}"
    return f"{one.name}: {one.kind}: largest {one.largest:.3g}, relative {one.relative:.3g}"


EXAMPLE = "Example: corew-convert compare models/qwen3-8b ckpt/qwen3-8b --logits"

if __name__ == "__main__":
    standalone(command, EXAMPLE)
