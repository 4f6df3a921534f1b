"""Questions become prompts, filtered with every loss counted."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from megatron_corew.config import DataConfig
from megatron_corew.data.prepare.rephrasings import is_placeholder
from megatron_corew.data.rendering import PromptRenderer
from megatron_corew.data.views import Item, Messages, Pairing, Split, read_pairing
from megatron_corew.types import Prompt, Question, View

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadReport:
    """What became of the rows."""

    rows: int
    """Rows looked at: all, or those up to the last question wanted."""
    kept: int
    dropped: Mapping[str, int]
    """Reason -> rows that gave no question."""
    noted: Mapping[str, int]
    """Oddity -> rows; they were kept."""

    def __str__(self) -> str:
        """One line for a person, such as ``7500 rows, 7481 questions; dropped: ...``."""
        parts = [f"{self.rows} rows, {self.kept} questions"]
        for name, counts in (("dropped", self.dropped), ("noted", self.noted)):
            if counts:
                text = ", ".join(f"{count} {reason}" for reason, count in counts.items())
                parts.append(f"{name}: {text}")
        return "; ".join(parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedQuestions:
    """The usable questions of a split, in the order of the file."""

    questions: tuple[Question, ...]
    report: LoadReport


def load_questions(
    config: DataConfig,
    tokenizer: "PreTrainedTokenizerBase",
    *,
    which: Split,
    needs_rephrasings: bool,
    needs_answers: bool,
    limit: int | None = None,
) -> LoadedQuestions:
    """Read a split and make its questions.

    Args:
        config: where the data are, and how they become prompts.
        tokenizer: the policy's own.
        which: ``train`` or ``eval``.
        needs_rephrasings: True: every question has both views; a row without a usable second one
            is dropped. False: a second view is read where the data have one, and nothing is
            dropped for its sake.
        needs_answers: True: a row without a true answer is dropped.
        limit: stop after so many usable questions; None: ``config.max_questions`` when training.

    Returns:
        At least one question, and the counts of what was dropped and why.

    Raises:
        ValueError: the data or the tokenizer cannot give such questions; one line with the knob.
        RuntimeError: the hub cannot be reached.
    """
    if which == "train" and limit is None:
        limit = config.max_questions
    render = PromptRenderer(config, tokenizer)
    pairing = read_pairing(
        config,
        which,
        needs_rephrasings=needs_rephrasings,
        needs_answers=needs_answers,
        lab_rows=limit,
    )
    maker = _QuestionMaker(render, config.max_prompt_tokens, needs_rephrasings, needs_answers)
    questions: list[Question] = []
    rows = 0
    for item in pairing.items():
        if limit is not None and len(questions) == limit:
            break
        rows += 1
        question = maker.make(item)
        if question is not None:
            questions.append(question)
    if not questions:
        raise ValueError(maker.explain_nothing_left(f"data.{which}", rows))
    _note_strays(pairing, maker.noted)
    report = LoadReport(
        rows=rows, kept=len(questions), dropped=dict(maker.dropped), noted=dict(maker.noted)
    )
    return LoadedQuestions(questions=tuple(questions), report=report)


class QuestionStream:
    """The questions of every step: a pure function of the seed, so resuming needs no state.

    Every epoch is a new permutation of all questions; its last, incomplete batch is left out.
    """

    def __init__(self, questions: Sequence[Question], prompts_per_step: int, seed: int) -> None:
        if prompts_per_step > len(questions):
            raise ValueError(
                f"rollout.prompts_per_step: need at most the {len(questions)} usable training "
                f"questions, got {prompts_per_step}. Lower rollout.prompts_per_step or add data."
            )
        self._questions = tuple(questions)
        self._size = prompts_per_step
        self._seed = seed

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which every question is used at most once."""
        return len(self._questions) // self._size

    def batch_at(self, step: int) -> tuple[Question, ...]:
        """The questions of one step.

        Args:
            step: counts from 1 over the whole run, resumed or not.

        Returns:
            ``prompts_per_step`` different questions.
        """
        return tuple(self._questions[place] for place in self._places_at(step))

    def further_at(self, step: int, round_number: int) -> tuple[Question, ...]:
        """Questions to ask in a step after its own.

        They come from all the data in an order of the step's own, without the questions of
        ``batch_at``: round 1 takes the first ``prompts_per_step`` of it, round 2 the next. No
        question is asked twice in a step. The epoch knows nothing of them: a question may come
        as a further one and in its own step.

        Args:
            step: as for ``batch_at``.
            round_number: counts from 1 within the step.

        Returns:
            At most ``prompts_per_step`` different questions; none when all were asked.
        """
        own = set(self._places_at(step))
        order = [place for place in range(len(self._questions)) if place not in own]
        random.Random(f"{self._seed}/further/{step}").shuffle(order)
        places = order[(round_number - 1) * self._size : round_number * self._size]
        return tuple(self._questions[place] for place in places)

    def _places_at(self, step: int) -> list[int]:
        epoch, batch = divmod(step - 1, self.steps_per_epoch)
        order = list(range(len(self._questions)))
        # A seed of text is hashed, so that neighbouring seeds and epochs share nothing.
        random.Random(f"{self._seed}/{epoch}").shuffle(order)
        return order[batch * self._size : (batch + 1) * self._size]


class _QuestionMaker:
    """Items to questions, counting what cannot be used."""

    def __init__(
        self, render: PromptRenderer, max_tokens: int, needs_rephrasings: bool, needs_answers: bool
    ) -> None:
        self._render = render
        self._max_tokens = max_tokens
        self._needs_rephrasings = needs_rephrasings
        self._needs_answers = needs_answers
        self._shortest = 0
        self.dropped: Counter[str] = Counter()
        self.noted: Counter[str] = Counter()

    def make(self, item: Item) -> Question | None:
        """The question of an item, or None with the reason counted."""
        prompts = self._prompts(item)
        if isinstance(prompts, str):
            self.dropped[prompts] += 1
            return None
        return Question(id=item.id, prompts=prompts, answer=item.answer)

    def _prompts(self, item: Item) -> dict[View, Prompt] | str:
        """The views of an item, or the reason why it gives none."""
        if item.original is None or _is_empty(item.original):
            return "without a question"
        if self._needs_answers and item.answer is None:
            return "without an answer"
        fault = _rephrasing_fault(item.rephrased)
        if fault and self._needs_rephrasings:
            return fault
        prompts: dict[View, Prompt] = {
            "original": self._render.prompt(item.original, "original", item.id)
        }
        if item.rephrased is not None and not fault:
            prompts["rephrased"] = self._render.prompt(item.rephrased, "rephrased", item.id)
            if _words(item.rephrased) == _words(item.original):
                self.noted["rephrased in the same words"] += 1
        lengths = {view: len(prompt.token_ids) for view, prompt in prompts.items()}
        if not self._needs_rephrasings and lengths.get("rephrased", 0) > self._max_tokens:
            del prompts["rephrased"], lengths["rephrased"]
        longest = max(lengths.values())
        if longest <= self._max_tokens:
            return prompts
        self._shortest = min(self._shortest or longest, longest)
        return "too long"

    def explain_nothing_left(self, knob: str, rows: int) -> str:
        """The error for a split in which no row gives a question, with the knob to turn."""
        if not self.dropped:
            return f"{knob}: need at least one question, got {rows} rows."
        (reason, _), *_ = self.dropped.most_common(1)
        counts = ", ".join(f"{count} {name}" for name, count in self.dropped.items())
        knobs = {
            "too long": f"data.max_prompt_tokens (now {self._max_tokens}; the shortest needs "
            f"{self._shortest})",
            "without an answer": "data.answer_column",
            "without a question": "data.prompt_column",
        }
        change = knobs.get(reason, "data.rephrased_column or data.id_column")
        return (
            f"{knob}: need usable questions, got none of {rows} rows ({counts}). Change {change}."
        )


def _rephrasing_fault(rephrased: str | Messages | None) -> str | None:
    if rephrased is None or _is_empty(rephrased):
        return "without a rephrasing"
    if is_placeholder(_last_text(rephrased)):
        return "with a placeholder as rephrasing"
    return None


def _note_strays(pairing: Pairing, noted: Counter[str]) -> None:
    strays = len(pairing.partners.keys() - pairing.rows.keys())
    if strays:
        noted["rephrasings without a question"] = strays


def _is_empty(question: str | Messages) -> bool:
    return not _last_text(question).strip()


def _words(question: str | Messages) -> list[str]:
    return _last_text(question).split()


def _last_text(question: str | Messages) -> str:
    """The question itself: of messages, the last one."""
    if isinstance(question, str):
        return question
    return question[-1]["content"] if question else ""
