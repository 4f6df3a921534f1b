"""One self-contained page about a run: figures, curves, sample rollouts, configuration."""

import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from megatron_corew.observe.charts import Chart, Drawing, Series, draw
from megatron_corew.observe.format import duration, number, phase_seconds, share
from megatron_corew.observe.metrics import read_metrics
from megatron_corew.observe.rollouts import read_rollouts
from megatron_corew.observe.summary import Records, column, ends

_SHARE = (0.0, 1.0)
_FROM_ZERO = (0.0, None)
_MAX_PHASES = 6
_GROUPS_PER_STEP = 4
_MAX_TEXT = 1200

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
        "distinct answers per response. A collapse shows here first.",
        {
            "top answer": "answers/top_share",
            "no answer": "answers/none_share",
            "distinct": "answers/distinct_share",
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


def write_report(run_folder: str | Path) -> Path:
    """Write ``report.html`` from what a run has recorded so far.

    Args:
        run_folder: with metrics.jsonl; rollouts.jsonl and config.yaml are used where present.

    Returns:
        The page; it needs no other file and no network.

    Raises:
        ValueError: the folder holds no metrics, or a damaged record.
    """
    folder = Path(run_folder)
    records = read_metrics(folder)
    if not records:
        raise ValueError(f"report: need recorded metrics, got none in {folder}. Train first.")
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined
    )
    config = dict(_flat(_read_config(folder)))
    page = environment.get_template("report.html.j2").render(
        name=config.get("run.name", folder.resolve().name),
        subtitle=_subtitle(config, records),
        written=datetime.fromtimestamp(records[-1]["time"], UTC).strftime("%Y-%m-%d %H:%M UTC"),
        cards=list(_cards(records)),
        main=_accuracy(records),
        drawings=_drawings(records),
        samples=_samples(folder),
        config=config,
    )
    path = folder / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


def _read_config(folder: Path) -> Mapping[str, Any]:
    path = folder / "config.yaml"
    if not path.exists():
        return {}
    # As text: the page shows what the file says.
    return yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader) or {}


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            yield f"{prefix}{key}", text


def _subtitle(config: Mapping[str, str], records: Records) -> str:
    parts = [config.get("method", ""), config.get("model.path", "")]
    parts.append(f"{int(records[-1]['step'])} of {config.get('run.steps', '?')} steps")
    return " / ".join(part for part in parts if part)


def _cards(records: Records) -> Iterator[dict[str, str]]:
    """The figures at the head of the page: title, big number, one line below it."""
    for view in ("original", "rephrased"):
        values = column(records, f"eval/accuracy_{view}")
        if values:
            change = 100 * (values[-1] - values[0])
            yield {
                "title": f"Accuracy, {view}",
                "before": share(values[0]),
                "value": share(values[-1]),
                "note": f"{change:+.1f} points, best {share(max(values))}",
            }
    for title, name in (("Reward", "reward/mean"), ("Label accuracy", "label/accuracy")):
        values = column(records, name)
        if values:
            start, end = ends(values)
            yield {
                "title": title,
                "before": share(start),
                "value": share(end),
                "note": "mean of the first and of the last steps",
            }
    seconds = _step_seconds(records)
    if seconds:
        yield {
            "title": "Time",
            "before": "",
            "value": duration(sum(seconds)),
            "note": f"{len(seconds)} steps, {sum(seconds) / len(seconds):.2f} s each",
        }
    gaps = column(records, "gap/mean")
    if gaps:
        yield {
            "title": "Log-prob gap",
            "before": "",
            "value": number(sum(gaps) / len(gaps)),
            "note": "trainer against sampler, mean per token",
        }


def _step_seconds(records: Records) -> list[float]:
    whole = column(records, "time/step_s")
    return whole or [sum(phase_seconds(r).values()) for r in records if phase_seconds(r)]


def _points(records: Records, name: str) -> dict[int, float]:
    return {int(record["step"]): record[name] for record in records if name in record}


def _chart_series(records: Records, names: Mapping[str, str]) -> list[Series]:
    found = [Series(label=label, points=_points(records, name)) for label, name in names.items()]
    return [s for s in found if any(math.isfinite(value) for value in s.points.values())]


def _accuracy(records: Records) -> Drawing | None:
    series = _chart_series(
        records,
        {
            "original questions": "eval/accuracy_original",
            "rephrased questions": "eval/accuracy_rephrased",
        },
    )
    if not series:
        return None
    note = "Share of right answers to questions that are never trained on."
    return draw(
        Chart(title="Held-out accuracy", note=note, series=series, bounds=_SHARE, smooth=False)
    )


def _drawings(records: Records) -> list[Drawing]:
    drawings = []
    for title, note, names, bounds, log in _CHARTS:
        series = _chart_series(records, names)
        if series:
            drawings.append(
                draw(Chart(title=title, note=note, series=series, bounds=bounds, log=log))
            )
    phases = _phases(records)
    if phases:
        note = "Seconds of each phase of a step, stacked."
        drawings.append(draw(Chart(title="Time per step", note=note, series=phases, stacked=True)))
    measured = sorted({n for r in records for n in r if n.startswith("tokens_per_s/")})
    rates = {name.partition("/")[2].replace("_", " "): name for name in measured}
    series = _chart_series(records, rates)
    if series:
        note = "Tokens per second of each phase."
        drawings.append(draw(Chart(title="Throughput", note=note, series=series, bounds=(0, None))))
    return drawings


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


def _samples(folder: Path) -> list[dict[str, Any]]:
    """The first groups of the first and of the last recorded step."""
    steps: dict[int, dict[tuple[str, str], list[dict[str, Any]]]] = {}
    for record in read_rollouts(folder):
        groups = steps.setdefault(record["step"], {})
        key = (str(record.get("view", "")), str(record.get("question_id", record.get("prompt"))))
        groups.setdefault(key, []).append(record)
    return [{"step": step, "groups": _pick(groups)} for step, groups in steps.items()]


def _pick(groups: Mapping[tuple[str, str], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    views = sorted({view for view, _ in groups})
    picked = []
    for view in views:
        of_view = [records for key, records in groups.items() if key[0] == view]
        for records in of_view[: max(1, _GROUPS_PER_STEP // len(views))]:
            first = records[0]
            picked.append(
                {
                    "view": view,
                    "prompt": _shortened(first.get("prompt", "")),
                    "label": first.get("label"),
                    "responses": [_response(record) for record in records],
                }
            )
    return picked


def _response(record: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "text": _shortened(record.get("text", "")),
        "answer": record.get("answer"),
        "reward": record.get("reward"),
        "cut": record.get("finish_reason") == "length",
    }


def _shortened(text: str) -> str:
    if len(text) <= _MAX_TEXT:
        return text
    left_out = len(text) - _MAX_TEXT
    return f"{text[: _MAX_TEXT // 2]}\n[... {left_out} characters ...]\n{text[-_MAX_TEXT // 2 :]}"
