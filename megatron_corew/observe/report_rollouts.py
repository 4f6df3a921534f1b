"""The rollouts that a report shows: which steps, which questions, and in which words."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from megatron_corew.observe.rollouts import read_rollouts, recorded_steps

_STEPS = 8
_QUESTIONS_PER_STEP = 3
_MAX_TEXT = 1200
_LETTERS = "ABCDEF"
_OTHER = "?"


def sampled_questions(folder: Path) -> list[dict[str, Any]]:
    """Questions of some steps from the first to the last, each in the views that were trained.

    Args:
        folder: of the run.

    Returns:
        Per question: ``step``, ``id``, ``truth``, ``views`` and ``kinds`` (what the page filters
        by). Text longer than a screen is shortened in its middle. Empty without a record.
    """
    steps = recorded_steps(folder)
    if not steps:
        return []
    shown = sorted({steps[round(k * (len(steps) - 1) / (_STEPS - 1))] for k in range(_STEPS)})
    by_question: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for record in read_rollouts(folder, shown):
        key = (record["step"], str(record["question_id"]))
        by_question.setdefault(key, []).append(record)
    counts: Counter[int] = Counter()
    questions = []
    for (step, name), records in by_question.items():
        counts[step] += 1
        if counts[step] <= _QUESTIONS_PER_STEP:
            questions.append(_question(step, name, records))
    return questions


def _question(step: int, name: str, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    views: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        views.setdefault(record["view"], []).append(record)
    shown = [_view(view, of_view) for view, of_view in views.items()]
    first = records[0]
    # A method that trains one view still has the question's other wording.
    other = first.get("other_prompt") if len(shown) == 1 else None
    return {
        "step": step,
        "id": name,
        "truth": first.get("truth"),
        "other_prompt": None if other is None else _shortened(other),
        "views": shown,
        "kinds": sorted({kind for view in shown for kind in view["kinds"]}),
    }


def _view(view: str, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = records[0]
    letters = _letters([record.get("cluster") for record in records])
    responses = [_response(record, letter) for record, letter in zip(records, letters, strict=True)]
    return {
        "name": view,
        "prompt": _shortened(first["prompt"]),
        "label": first.get("label"),
        "responses": responses,
        "teacher": [_shortened(text) for text in first.get("teacher_texts") or ()],
        "teacher_answers": first.get("teacher_answers") or [],
        "kinds": _kinds(records),
    }


def _kinds(records: Sequence[Mapping[str, Any]]) -> set[str]:
    """By what a question can be found on the page."""
    rewards = {record.get("reward") for record in records}
    kinds = {"mixed rewards" if len(rewards) > 1 else "equal rewards"}
    if records[0].get("label") is None:
        kinds.add("no label")
    elif records[0].get("label_correct") is not None:
        kinds.add("right label" if records[0]["label_correct"] else "wrong label")
    if any(record.get("answer") is None for record in records):
        kinds.add("answer missing")
    if any(record.get("finish_reason") == "length" for record in records):
        kinds.add("cut at the limit")
    if records[0].get("in_loss") is False:
        kinds.add("outside the loss")
    return kinds


def _letters(clusters: Sequence[int | None]) -> list[str]:
    """A letter per vote group, A for the largest; ``?`` for the smallest ones of many, or none."""
    ranked = [c for c, _ in Counter(c for c in clusters if c is not None).most_common()]
    names = dict(zip(ranked, _LETTERS, strict=False))
    return [_OTHER if cluster is None else names.get(cluster, _OTHER) for cluster in clusters]


def _response(record: Mapping[str, Any], letter: str) -> dict[str, Any]:
    return {
        "text": _shortened(record["text"]),
        "answer": record.get("answer"),
        "letter": letter,
        "reward": record.get("reward"),
        "correct": record.get("correct"),
        "cut": record.get("finish_reason") == "length",
    }


def _shortened(text: str) -> str:
    if len(text) <= _MAX_TEXT:
        return text
    left_out = len(text) - _MAX_TEXT
    return f"{text[: _MAX_TEXT // 2]}\n[... {left_out} characters ...]\n{text[-_MAX_TEXT // 2 :]}"
