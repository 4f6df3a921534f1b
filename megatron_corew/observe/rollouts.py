"""Sampled responses with all that was decided about them, as JSON lines for people to read."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from megatron_corew.observe.jsonl import append, last_line, open_for_append, read_lines
from megatron_corew.types import Gathered, Question, RolloutGroup, View, ViewLabels

ROLLOUTS_FILE = "rollouts.jsonl"


class RolloutLog:
    """Writes rollouts of a run; use as a context manager.

    Args:
        folder: the run's folder; it exists.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / ROLLOUTS_FILE
        self._file = open_for_append(path)
        last = last_line(path)
        self._attempt = 1 + last["attempt"] if last else 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def next_attempt(self) -> None:
        """Let what follows replace the rollouts of the steps that are run again."""
        self._attempt += 1

    def write(self, step: int, records: Sequence[Mapping[str, Any]]) -> None:
        """Record the rollouts of a step.

        Args:
            step: training step.
            records: one per response, for example from ``rollout_records``.
        """
        stamp = {"step": step, "attempt": self._attempt}
        append(self._file, *(stamp | dict(record) for record in records))


def rollout_records(gathered: Gathered, *, groups_per_view: int) -> list[dict[str, Any]]:
    """The first groups of every view and round as records.

    Args:
        gathered: all that was asked in the step.
        groups_per_view: groups to take of each view in each round.

    Returns:
        One record per response: ``question_id``, ``view``, ``sample``, ``prompt``,
        ``other_prompt`` (the question in its other view, None where it has none), ``text``,
        ``answer``, ``cluster`` (the response's vote group), ``label``, ``reward``, ``truth``,
        ``correct`` and ``label_correct`` (None without a ground truth), ``finish_reason``,
        ``tokens``, ``weights_version``, ``round`` (0: the step's own questions) and ``in_loss``;
        with a labelling teacher also its ``teacher_texts``, ``teacher_answers`` and
        ``teacher_version`` for the same prompt.
    """
    records: list[dict[str, Any]] = []
    in_view: Counter[View] = Counter()
    in_round: Counter[tuple[View, int]] = Counter()
    kept, trained = gathered.kept_P.tolist(), set(gathered.trained)
    rewards = gathered.rewards_PG.tolist()
    for index, (group, number) in enumerate(zip(gathered.groups, gathered.rounds, strict=True)):
        view = group.prompt.view
        if in_round[view, number] < groups_per_view:
            labels, place = gathered.labels[view], in_view[view]
            common = _question_fields(gathered.questions[place], view)
            common |= {"round": number, "in_loss": kept[index] and index in trained}
            if gathered.taught:
                common |= _teacher_fields(gathered.taught[index], labels, place)
            records += [
                record | common for record in _group_records(group, labels, rewards[index], place)
            ]
        in_view[view] += 1
        in_round[view, number] += 1
    return records


def read_rollouts(folder: Path, steps: Sequence[int] | None = None) -> list[dict[str, Any]]:
    """The recorded rollouts of a run.

    Args:
        folder: the run's folder.
        steps: only these steps; None: the first and the last recorded one.

    Returns:
        The records in the order of the steps. Of a step that was run again after a resume only
        the later attempt's. Empty without a file.

    Raises:
        ValueError: a line before the last is damaged.
    """
    kept: dict[int, list[dict[str, Any]]] = {}
    for line in read_lines(folder / ROLLOUTS_FILE):
        step = line["step"]
        if steps is not None and step not in steps:
            continue
        if step in kept and kept[step][-1]["attempt"] != line["attempt"]:
            del kept[step]
        kept.setdefault(step, []).append(line)
        # The file may be far larger than memory: hold only what can still be asked for.
        if steps is None and len(kept) > 2:
            del kept[sorted(kept)[1]]
    return [record for step in sorted(kept) for record in kept[step]]


def recorded_steps(folder: Path) -> list[int]:
    """The steps of which rollouts are recorded, in order.

    Args:
        folder: the run's folder.

    Raises:
        ValueError: a line before the last is damaged.
    """
    return sorted({line["step"] for line in read_lines(folder / ROLLOUTS_FILE)})


def _question_fields(question: Question, view: View) -> dict[str, Any]:
    others = [prompt.text for other, prompt in question.prompts.items() if other != view]
    return {"truth": question.answer, "other_prompt": others[0] if others else None}


def _teacher_fields(group: RolloutGroup, labels: ViewLabels, place: int) -> dict[str, Any]:
    votes = labels.teacher_votes
    return {
        "teacher_texts": group.texts,
        "teacher_answers": list(votes[place].answers) if votes is not None else None,
        "teacher_version": group.rollouts[0].weights_version,
    }


def _group_records(
    group: RolloutGroup, labels: ViewLabels, rewards: Sequence[float], place: int
) -> list[dict[str, Any]]:
    return [
        {
            "question_id": group.prompt.question_id,
            "view": group.prompt.view,
            "sample": sample,
            "prompt": group.prompt.text,
            "text": rollout.text,
            "answer": labels.votes[place].answers[sample],
            "cluster": labels.votes[place].clusters[sample],
            "label": labels.labels[place] if labels.labels is not None else None,
            "reward": rewards[sample],
            "label_correct": (
                labels.label_correct[place] if labels.label_correct is not None else None
            ),
            "correct": labels.correct[place][sample] if labels.correct is not None else None,
            "finish_reason": rollout.finish_reason,
            "tokens": len(rollout.token_ids),
            "weights_version": rollout.weights_version,
        }
        for sample, rollout in enumerate(group.rollouts)
    ]
