"""Which charts a report has, for one run and for a comparison of several."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from megatron_corew.observe.charts import Chart, Drawing, Mark, Series, draw
from megatron_corew.observe.format import phase_seconds
from megatron_corew.observe.summary import Records

_SHARE = (0.0, 1.0)
_FROM_ZERO = (0.0, None)
_MAX_PHASES = 6
_ACCURACY = {
    "original questions": "eval/accuracy_original",
    "rephrased questions": "eval/accuracy_rephrased",
}

# Title, note, {legend: metric}, bounds, logarithmic. What a run does not have is left out.
_CHARTS: list[tuple[str, str, dict[str, str], tuple[float | None, float | None], bool]] = [
    (
        "Reward",
        "Mean reward of the policy's responses, and the share of groups in which all are equal.",
        {"mean reward": "reward/mean", "groups without signal": "reward/zero_std_share"},
        (None, None),
        False,
    ),
    (
        "Groups without signal replaced",
        "Groups that a step asked in all its rounds, and those of them that were in the loss.",
        {"asked": "refill/groups_asked", "in the loss": "refill/groups_trained"},
        _FROM_ZERO,
        False,
    ),
    (
        "Labels against the truth",
        "Share of labels and of responses that are the true answer.",
        {
            "labels": "label/accuracy",
            "policy's own votes": "label/policy_accuracy",
            "responses": "reward/accuracy",
        },
        _SHARE,
        False,
    ),
    (
        "Votes",
        "Agreement inside a group, agreement of teacher and policy, and groups left without a "
        "label.",
        {
            "vote share": "label/vote_share",
            "teacher's vote share": "label/teacher_vote_share",
            "teacher agrees": "label/teacher_policy_agreement",
            "unlabelled": "label/unlabelled_share",
            "ties": "label/tie_share",
        },
        _SHARE,
        False,
    ),
    (
        "Entropy of the votes",
        "Of the answers in a group, in nats: 0 when all agree.",
        {"policy": "label/vote_entropy", "teacher": "label/teacher_vote_entropy"},
        _FROM_ZERO,
        False,
    ),
    (
        "Agreement",
        "Chance that two answers to the same wording are equal, and that an answer to one wording "
        "equals an answer to the other. When only the first rises, the policy agrees with itself "
        "and with nothing else.",
        {"same wording": "agreement/within", "other wording": "agreement/across"},
        _SHARE,
        False,
    ),
    (
        "Answers that could not be compared",
        "Comparisons that math-verify did not end in time or memory, texts that broke it by "
        "themselves, and comparisons not made any more.",
        {
            "time-outs": "verify/timeouts",
            "out of memory": "verify/out_of_memory",
            "deaths": "verify/worker_deaths",
            "unreadable": "verify/unreadable",
            "skipped": "verify/skipped",
        },
        _FROM_ZERO,
        False,
    ),
    (
        "Variety of answers",
        "Share of all responses with the most frequent answer, with no answer, and the number of "
        "distinct answers per response; how far different questions get different answers.",
        {
            "top answer": "answers/top_share",
            "no answer": "answers/none_share",
            "distinct": "answers/distinct_share",
            "between questions": "answers/spread",
        },
        _FROM_ZERO,
        False,
    ),
    (
        "Entropy",
        "Mean entropy of the policy's next token, in nats.",
        {"entropy": "policy/entropy"},
        _FROM_ZERO,
        False,
    ),
    (
        "Self-certainty",
        "Mean of logsumexp(z) - mean(z) over the vocabulary, per token.",
        {"self-certainty": "policy/self_certainty"},
        (None, None),
        False,
    ),
    (
        "KL",
        "Mean divergence of the policy from its reference, per token.",
        {"KL to the reference": "policy/kl"},
        (None, None),
        False,
    ),
    (
        "Response length",
        "Mean length of a response, in tokens.",
        {"mean": "response/length_mean", "longest": "response/length_max"},
        _FROM_ZERO,
        False,
    ),
    (
        "Truncation",
        "Share of responses that were cut at the token limit.",
        {"training": "response/truncated_share", "held-out": "eval/truncated_share"},
        _FROM_ZERO,
        False,
    ),
    ("Loss", "The loss of an update.", {"loss": "policy/loss"}, (None, None), False),
    (
        "Clipping",
        "Share of tokens whose ratio was clipped.",
        {"clipped tokens": "policy/clip_share"},
        _FROM_ZERO,
        False,
    ),
    (
        "Gradient norm",
        "Norm of the gradient before clipping.",
        {"gradient norm": "policy/grad_norm"},
        _FROM_ZERO,
        False,
    ),
    (
        "Learning rate",
        "Learning rate of the update.",
        {"learning rate": "policy/lr"},
        _FROM_ZERO,
        False,
    ),
    (
        "Teacher",
        "The policy's share in the teacher's update.",
        {"weight": "teacher/weight"},
        (None, None),
        True,
    ),
    (
        "Log-prob gap",
        "Difference between the trainer's and the sampler's log-probabilities of the "
        "sampled tokens, absolute.",
        {"mean": "gap/mean", "largest": "gap/max", "teacher, mean": "gap/teacher_mean"},
        (None, None),
        True,
    ),
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """What the charts need of one run."""

    name: str
    records: Records
    marks: Sequence[Mark]


def accuracy_drawings(runs: Sequence[Run]) -> list[Drawing]:
    """Held-out accuracy: one chart for a run, one per view for a comparison.

    Args:
        runs: at least one.
    """
    note = "Share of right answers to questions that are never trained on."
    title = "Held-out accuracy"
    return list(_drawings(runs, title, note, _ACCURACY, _SHARE, log=False, smooth=False))


def step_drawings(runs: Sequence[Run]) -> list[Drawing]:
    """All other charts for which a run has data.

    Args:
        runs: at least one; phases and throughput are drawn for a single run only.
    """
    found: list[Drawing] = []
    for title, note, names, bounds, log in _CHARTS:
        found += _drawings(runs, title, note, names, bounds, log=log, smooth=True)
    if len(runs) == 1:
        found += _time_drawings(runs[0])
    return found


def phase_table(runs: Sequence[Run]) -> list[tuple[str, list[float | None]]]:
    """Mean seconds of every phase of a step, per run.

    Args:
        runs: in the order of the columns.

    Returns:
        Phase and one cell per run, None where a run lacks it; the longest phase first.
    """
    columns = [_mean_phases(run.records) for run in runs]
    names = {name for column in columns for name in column}
    ranked = sorted(names, key=lambda name: -max(column.get(name, 0.0) for column in columns))
    return [(name.replace("_", " "), [c.get(name) for c in columns]) for name in ranked]


def _mean_phases(records: Records) -> dict[str, float]:
    totals: dict[str, float] = {}
    steps = 0
    for record in records:
        seconds = phase_seconds(record)
        steps += bool(seconds)
        for phase, value in seconds.items():
            totals[phase] = totals.get(phase, 0.0) + value
    return {phase: total / steps for phase, total in totals.items()}


def _drawings(
    runs: Sequence[Run],
    title: str,
    note: str,
    names: Mapping[str, str],
    bounds: tuple[float | None, float | None],
    *,
    log: bool,
    smooth: bool,
) -> Iterator[Drawing]:
    """One chart with a line per metric for one run, one chart per metric with a line per run."""
    if len(runs) == 1:
        plans = [
            (title, _known(Series(label=k, points=_points(runs[0], n)) for k, n in names.items()))
        ]
    else:
        plans = [
            (
                title if len(names) == 1 else f"{title}: {label}",
                _known(
                    Series(label=run.name, points=_points(run, name), place=place)
                    for place, run in enumerate(runs)
                ),
            )
            for label, name in names.items()
        ]
    marks = [mark for run in runs for mark in run.marks]
    for heading, series in plans:
        if series:
            yield draw(
                Chart(
                    title=heading,
                    note=note,
                    series=series,
                    bounds=bounds,
                    log=log,
                    smooth=smooth,
                    marks=marks,
                )
            )


def _points(run: Run, name: str) -> dict[int, float]:
    return {int(record["step"]): record[name] for record in run.records if name in record}


def _known(series: Iterator[Series]) -> list[Series]:
    """Those with a value, unless all values of all of them are zero."""
    found = [s for s in series if any(math.isfinite(value) for value in s.points.values())]
    return found if any(value for s in found for value in s.points.values()) else []


def _time_drawings(run: Run) -> Iterator[Drawing]:
    phases = _phases(run.records)
    if phases:
        note = "Seconds of each phase of a step, stacked."
        yield draw(Chart(title="Time per step", note=note, series=phases, stacked=True))
    measured = sorted({n for r in run.records for n in r if n.startswith("tokens_per_s/")})
    rates = {name.partition("/")[2].replace("_", " "): name for name in measured}
    note = "Tokens per second of each phase."
    yield from _drawings([run], "Throughput", note, rates, _FROM_ZERO, log=False, smooth=True)


def _phases(records: Records) -> list[Series]:
    """The longest phases, and the others as one."""
    points: dict[str, dict[int, float]] = {}
    for record in records:
        for phase, seconds in phase_seconds(record).items():
            points.setdefault(phase, {})[int(record["step"])] = seconds
    ranked = sorted(points.items(), key=lambda item: -sum(item[1].values()))
    shown = [Series(label=n.replace("_", " "), points=p) for n, p in ranked[:_MAX_PHASES]]
    others: dict[int, float] = {}
    for _, phase_points in ranked[_MAX_PHASES:]:
        for step, seconds in phase_points.items():
            others[step] = others.get(step, 0.0) + seconds
    return [*shown, Series(label="others", points=others)] if others else shown
