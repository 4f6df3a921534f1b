"""Writes the request for a rephrasing and reads the rephrasing out of the answer."""

import hashlib
import json

from megatron_corew.data.rephrase.settings import QUESTION, RephraseConfig

_END_OF_THINKING = "</think>"


def request_text(config: RephraseConfig, question: str) -> str:
    """Put a question into the template."""
    return config.prompt.template.replace(QUESTION, question)


def read_answer(config: RephraseConfig, answer: str) -> str | None:
    """Take the new question out of an answer.

    Args:
        config: its markers.
        answer: what the model wrote; thinking before the answer is passed over.

    Returns:
        The text between the markers, stripped; None when a marker is missing.
    """
    text = answer.rpartition(_END_OF_THINKING)[2]
    if config.prompt.start is not None:
        _, found, text = text.rpartition(config.prompt.start)
        if not found:
            return None
    if config.prompt.end is not None:
        text, found, _ = text.partition(config.prompt.end)
        if not found:
            return None
    return text.strip()


def prompt_version(config: RephraseConfig) -> str:
    """Name everything that decides what a rephrasing looks like.

    Args:
        config: of the model's path, only the last part counts, so that moving it changes nothing.

    Returns:
        12 hexadecimal digits; equal for equal prompts, models, samplings and checks.
    """
    parts = config.model_dump(mode="json", include={"prompt", "sampling", "check", "preserve"})
    # More attempts go on with the same journal.
    del parts["check"]["attempts"]
    parts["model"] = model_name(config.model)
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


def model_name(model: str) -> str:
    """The last part of a model's path or hub id."""
    return model.rstrip("/").rpartition("/")[2]
