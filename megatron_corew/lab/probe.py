"""What a policy can do on the lab's task: accuracy, votes, and how often it takes a short cut."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from megatron_corew.types import View

COLUMNS: dict[View, str] = {"original": "prompt", "rephrased": "rephrased"}
"""The column of the lab's rows that holds a view."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """Shares over all questions of one view, each in [0, 1]."""

    pass_at_1: float
    """Responses with the right answer."""
    majority: float
    """Questions whose most frequent answer is right."""
    echo: float
    """Responses whose answer is the first number shown."""
    majority_echo: float
    """Questions whose most frequent answer is the first number shown."""
    largest: float
    """Responses whose answer is the largest number."""
    majority_largest: float
    """Questions whose most frequent answer is the largest number."""
    zero: float
    """Responses whose answer is zero."""
    unanswered: float
    """Responses without a boxed answer at their end."""

    def __str__(self) -> str:
        return ", ".join(f"{name} {getattr(self, name):.3f}" for name in self.__slots__)


def probe(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[dict[str, str]],
    *,
    view: View,
    samples: int,
    max_tokens: int = 24,
    seed: int = 0,
) -> Probe:
    """Sample answers at temperature 1 and count what they are.

    Args:
        model: A policy with the lab's tokenizer.
        tokenizer: The lab's tokenizer.
        rows: Questions as ``lab_rows`` makes them.
        view: The wording to ask in.
        samples: Responses per question.
        max_tokens: Longest response, in tokens.
        seed: Seed of the sampling; torch's own generator is left as it was.

    Returns:
        The shares found.
    """
    prompts = [row[COLUMNS[view]] for row in rows]
    texts = _sample(model, tokenizer, prompts, samples, max_tokens, seed)
    answers = [_boxed(text) for text in texts]
    votes = [_most_frequent(answers[at : at + samples]) for at in range(0, len(answers), samples)]
    truths = [row["answer"] for row in rows]
    shown = [re.findall(r"\d", prompt) for prompt in prompts]
    firsts, largest = [numbers[0] for numbers in shown], [max(numbers) for numbers in shown]
    each_truth, each_first, each_largest = (
        [one for one in wanted for _ in range(samples)] for wanted in (truths, firsts, largest)
    )
    return Probe(
        pass_at_1=_share_equal(answers, each_truth),
        majority=_share_equal(votes, truths),
        echo=_share_equal(answers, each_first),
        majority_echo=_share_equal(votes, firsts),
        largest=_share_equal(answers, each_largest),
        majority_largest=_share_equal(votes, largest),
        zero=answers.count("0") / len(answers),
        unanswered=answers.count(None) / len(answers),
    )


def _sample(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    samples: int,
    max_tokens: int,
    seed: int,
) -> list[str]:
    inputs = tokenizer(
        list(prompts),
        padding=True,
        padding_side="left",
        return_tensors="pt",
        return_token_type_ids=False,
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        ids = model.generate(
            **inputs,
            do_sample=True,
            top_k=0,
            num_return_sequences=samples,
            max_new_tokens=max_tokens,
        )
    responses = ids[:, inputs["input_ids"].shape[1] :]
    texts: list[str] = tokenizer.batch_decode(responses, skip_special_tokens=True)
    return texts


def _boxed(text: str) -> str | None:
    found = re.search(r"\\boxed\{(\d+)\}$", text)
    return found[1] if found else None


def _most_frequent(answers: Sequence[str | None]) -> str | None:
    counts = Counter(answer for answer in answers if answer is not None).most_common(2)
    tied = len(counts) == 2 and counts[0][1] == counts[1][1]
    return None if tied or not counts else counts[0][0]


def _share_equal(found: Sequence[str | None], wanted: Sequence[str]) -> float:
    return sum(a == b for a, b in zip(found, wanted, strict=True)) / len(wanted)
