"""Writes what a comparison found into its folder."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from megatron_corew.config_file import load_config
from megatron_corew.lab.compare.page import render_page
from megatron_corew.lab.compare.plan import BASES, SETTING, Cell
from megatron_corew.lab.compare.plots import plot_accuracy, plot_signals
from megatron_corew.lab.compare.results import MethodResult, method_results, run_result
from megatron_corew.lab.compare.tables import as_json, markdown
from megatron_corew.observe.metrics import read_metrics
from megatron_corew.observe.summary import Records

FILES = ("results.md", "results.json", "accuracy.png", "signals.png", "comparison.html")
_OWN = ("method", "run.name", "run.root", "run.seed")
"""Knobs that differ between the runs of a comparison."""


def write_comparison(cells: Sequence[Cell], out: Path, *, base: str) -> list[MethodResult]:
    """Write table, plots, page and JSON.

    Args:
        cells: Finished runs, at least one.
        out: Folder for ``FILES``.
        base: The policy that all started from.

    Returns:
        The rows of the table.
    """
    records = {cell.name: read_metrics(cell.folder.path) for cell in cells}
    results = [run_result(records[c.name], method=c.method, seed=c.seed) for c in cells]
    methods = method_results(results)
    runs: dict[str, list[Records]] = {method.method: [] for method in methods}
    for cell in cells:
        runs[cell.method].append(records[cell.name])
    title, setting = f"Lab: base {base}", setting_line(cells, base)
    config = dict(_shared(cells[0].config.model_dump(mode="json")))
    table, values, accuracy, signals, page = (out / name for name in FILES)
    table.write_text(markdown(methods, title=title, setting=setting), encoding="utf-8")
    found = as_json(results, methods, base=base, config=config)
    values.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    plot_accuracy(runs, accuracy, title=title)
    plot_signals(runs, signals, title=title)
    text = render_page(methods, runs, title=title, setting=setting, config=config)
    page.write_text(text, encoding="utf-8")
    return methods


def setting_line(cells: Sequence[Cell], base: str) -> str:
    """Say in one line what was run, and whether it is what was pre-registered."""
    config = cells[0].config
    wanted = load_config(SETTING).run.steps
    steps = f"{config.run.steps} steps"
    if config.run.steps != wanted:
        steps += f" in place of the {wanted} pre-registered ones"
    rollout = config.rollout
    return (
        f"Base {base}: {BASES[base]}. {len(cells)} runs of {steps}, {rollout.prompts_per_step} "
        f"questions x {rollout.samples_per_prompt} samples per view, learning rate "
        f"{config.optimizer.lr:g}; {config.evaluate.questions} held-out questions x "
        f"{config.evaluate.samples_per_prompt} samples."
    )


def _shared(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _shared(value, f"{key}.")
        elif key not in _OWN:
            yield key, value
