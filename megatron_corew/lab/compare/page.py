"""One self-contained page about a comparison: its table, its curves, its setting."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from megatron_corew.lab.compare.plots import SIGNALS, Runs, having
from megatron_corew.lab.compare.results import MethodResult
from megatron_corew.lab.compare.tables import NOTE, table_rows
from megatron_corew.observe.charts import Chart, Drawing, Series, draw
from megatron_corew.observe.summary import Records

_SHARE = (0.0, 1.0)
_CHARTS: dict[str, tuple[str, tuple[float | None, float | None]]] = {
    "held-out accuracy, original questions": ("eval/accuracy_original", _SHARE),
    "held-out accuracy, rephrased questions": ("eval/accuracy_rephrased", _SHARE),
    **{name: (metric, (0.0, None)) for name, metric in SIGNALS.items()},
}


def render_page(
    methods: Sequence[MethodResult],
    runs: Runs,
    *,
    title: str,
    setting: str,
    config: Mapping[str, object],
) -> str:
    """Write the page of a comparison.

    Args:
        methods: Rows of its table.
        runs: Records of every method's runs.
        title: Heading.
        setting: One line about what was run.
        config: Dotted key -> value that all runs share.

    Returns:
        HTML that needs no other file and no network.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined
    )
    head, *rows = table_rows(methods)
    outcomes = [max(method.outcomes, key=lambda word: method.outcomes[word]) for method in methods]
    return environment.get_template("page.html.j2").render(
        title=title,
        setting=setting,
        note=NOTE,
        head=head,
        rows=list(zip(outcomes, rows, strict=True)),
        drawings=list(_drawings(runs)),
        config=config,
    )


def _drawings(runs: Runs) -> Iterator[Drawing]:
    for name, (metric, bounds) in _CHARTS.items():
        series = [
            Series(label=method, points=points)
            for method, of_method in having(runs, metric).items()
            if (points := mean_curve(of_method, metric))
        ]
        if series:
            note = "Mean over the seeds."
            chart = Chart(title=name, note=note, series=series, bounds=bounds, smooth=False)
            yield draw(chart)


def mean_curve(runs: Sequence[Records], metric: str) -> dict[int, float]:
    """Average a metric over the runs of a method.

    Args:
        runs: Records of each.
        metric: Its name.

    Returns:
        Step -> mean over the runs that measured it in that step.
    """
    values: dict[int, list[float]] = {}
    for records in runs:
        for record in records:
            if metric in record:
                values.setdefault(int(record["step"]), []).append(record[metric])
    return {step: fmean(of_step) for step, of_step in sorted(values.items())}
