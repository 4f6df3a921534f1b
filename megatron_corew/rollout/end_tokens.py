"""The tokens that end a response, from every file of a model folder that names some."""

import json
from pathlib import Path
from typing import Any


def end_token_ids(folder: str | Path) -> tuple[int, ...]:
    """Collect the end tokens of the tokenizer, the model config and the generation config.

    The three often differ: Qwen2.5's base model names 151643 in its configs while its tokenizer
    ends turns with 151645, and Llama 3.2 has three.

    Args:
        folder: Hugging Face model folder.

    Returns:
        Token ids, ascending, each once; empty when no file names one.

    Raises:
        ValueError: the tokenizer names an end token that it does not contain.
    """
    folder = Path(folder)
    found: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        named = _read(folder / name).get("eos_token_id")
        found.update(named if isinstance(named, list) else [] if named is None else [named])
    named = _read(folder / "tokenizer_config.json").get("eos_token")
    token = named.get("content") if isinstance(named, dict) else named
    if token is not None:
        found.add(_token_id(folder, token))
    return tuple(sorted(found))


def _token_id(folder: Path, token: str) -> int:
    """The id of an end token, from the tables of the tokenizer."""
    tokenizer = _read(folder / "tokenizer.json")
    decoder = _read(folder / "tokenizer_config.json").get("added_tokens_decoder", {})
    added = {entry["content"]: entry["id"] for entry in tokenizer.get("added_tokens", [])}
    added |= {entry["content"]: int(token_id) for token_id, entry in decoder.items()}
    vocabulary = tokenizer.get("model", {}).get("vocab", {})
    if token in added:
        return int(added[token])
    if isinstance(vocabulary, dict) and token in vocabulary:
        return int(vocabulary[token])
    raise ValueError(
        f"{folder / 'tokenizer_config.json'}: need an eos_token that tokenizer.json contains, "
        f"got {token!r}. Correct the model folder."
    )


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}
