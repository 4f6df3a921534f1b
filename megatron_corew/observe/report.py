"""One self-contained page about a run, or about several side by side."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from megatron_corew.observe.charts import Mark
from megatron_corew.observe.format import duration, number, phase_seconds, share
from megatron_corew.observe.metrics import read_events, read_metrics
from megatron_corew.observe.report_charts import (
    Run,
    accuracy_drawings,
    phase_table,
    step_drawings,
)
from megatron_corew.observe.report_rollouts import sampled_questions
from megatron_corew.observe.summary import Records, column, ends

REPORT_FILE = "report.html"


def write_report(run_folders: Sequence[Path], out: Path | None = None) -> Path:
    """Write the page about what runs have recorded so far.

    Args:
        run_folders: one for a run, several for a comparison; each with metrics.jsonl, and
            rollouts.jsonl and config.yaml where present.
        out: the file; None: ``report.html`` in the first folder.

    Returns:
        The page; it needs no other file and no network.

    Raises:
        ValueError: a folder holds no metrics, or a damaged record.
    """
    path = out or run_folders[0] / REPORT_FILE
    path.write_text(render_report(run_folders, live=False), encoding="utf-8")
    return path


def render_report(run_folders: Sequence[Path], *, live: bool) -> str:
    """The page as text.

    Args:
        run_folders: as for ``write_report``.
        live: True: the page asks its server for news; see ``watch``.

    Raises:
        ValueError: a folder holds no metrics, or a damaged record.
    """
    read = [
        _read(folder, name) for folder, name in zip(run_folders, _names(run_folders), strict=True)
    ]
    runs = [run for run, _, _ in read]
    last = max(run.records[-1]["time"] for run in runs)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined
    )
    return environment.get_template("report.html.j2").render(
        title=runs[0].name if len(runs) == 1 else f"{len(runs)} runs compared",
        subtitles=[_subtitle(config, run.records) for run, config, _ in read],
        written=datetime.fromtimestamp(last, UTC).strftime("%Y-%m-%d %H:%M UTC"),
        runs=runs,
        cards=list(_cards(runs[0].records)) if len(runs) == 1 else [],
        rows=[] if len(runs) == 1 else [_row(run.records, run.marks) for run in runs],
        alarms=[(run.name, mark) for run in runs for mark in run.marks if mark.kind != "start"],
        main=accuracy_drawings(runs),
        drawings=step_drawings(runs),
        phases=[] if len(runs) == 1 else _phase_cells(runs),
        samples=[
            {"run": run.name, **question}
            for run, folder in zip(runs, run_folders, strict=True)
            for question in sampled_questions(folder)
        ],
        config=_settings([config for _, config, _ in read]),
        versions=_settings([found for _, _, found in read]),
        live=live,
    )


def _names(folders: Sequence[Path]) -> list[str]:
    """The folders' names, with the folders above them where two are the same."""
    whole = [folder.resolve() for folder in folders]
    short = [folder.name for folder in whole]
    return [
        name if short.count(name) == 1 else "/".join(folder.parts[-2:])
        for name, folder in zip(short, whole, strict=True)
    ]


def _read(folder: Path, name: str) -> tuple[Run, dict[str, str], dict[str, str]]:
    """A run's records with its configuration and its versions."""
    records = read_metrics(folder)
    if not records:
        raise ValueError(f"report: need recorded metrics, got none in {folder}. Train first.")
    events = read_events(folder)
    versions = [event["versions"] for event in events if event["event"] == "start"]
    marks = [mark for event in events if (mark := _mark(event)) is not None]
    config = dict(_flat(_read_config(folder)))
    return Run(name=name, records=records, marks=marks), config, versions[-1] if versions else {}


def _mark(event: Mapping[str, Any]) -> Mark | None:
    step = int(event["step"])
    if event["event"] == "alarm":
        return Mark(step=step, kind="alarm", text=event["sentence"])
    if event["event"] == "rollback":
        text = (
            f"Went back to step {event['to']} with {event['lr_scale']:g} times the learning rate."
        )
        return Mark(step=step, kind="rollback", text=text)
    if event["event"] == "stop":
        before = event["before"]
        kept = "" if before is None else f" The checkpoint of step {before} is from before it."
        return Mark(step=step, kind="stop", text=f"The run was stopped: {event['reason']}.{kept}")
    # The first start is the beginning of the axis; the others are resumes.
    return Mark(step=step, kind="start", text="The run was resumed.") if step > 0 else None


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


def _settings(columns: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """Key, one cell per run, and whether the runs differ; the differing keys come first."""
    keys = dict.fromkeys(key for column in columns for key in column)
    rows: list[dict[str, Any]] = []
    for key in keys:
        cells = [column.get(key, "") for column in columns]
        rows.append({"key": key, "cells": cells, "differs": len(set(cells)) > 1})
    return sorted(rows, key=lambda row: not row["differs"])


def _subtitle(config: Mapping[str, str], records: Records) -> str:
    parts = [config.get("method", ""), config.get("model.path", "")]
    parts.append(f"{int(records[-1]['step'])} of {config.get('run.steps', '?')} steps")
    return " / ".join(part for part in parts if part)


def _row(records: Records, marks: Sequence[Mark]) -> dict[str, str]:
    """The line of a run in the table of a comparison."""
    cells = {"steps": str(int(records[-1]["step"]))}
    for view in ("original", "rephrased"):
        values = column(records, f"eval/accuracy_{view}")
        cells[f"accuracy, {view}"] = f"{share(values[0])} → {share(values[-1])}" if values else "-"
        cells["best" if view == "original" else "best "] = share(max(values)) if values else "-"
    for title, name in (("reward", "reward/mean"), ("label accuracy", "label/accuracy")):
        values = column(records, name)
        cells[title] = number(ends(values)[1]) if values else "-"
    cells["alarms"] = str(sum(mark.kind == "alarm" for mark in marks))
    return cells


def _phase_cells(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    return [
        (phase, ["-" if value is None else f"{value:.2f}" for value in cells])
        for phase, cells in phase_table(runs)
    ]


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
                "before": f"{start:.3g}",
                "value": f"{end:.3g}",
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
