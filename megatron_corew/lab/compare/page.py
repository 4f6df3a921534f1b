"""One self-contained page about a comparison: its table, its curves, its setting."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from megatron_corew.lab.compare.curves import mean_curve
from megatron_corew.lab.compare.plots import SIGNALS, Runs, having
from megatron_corew.lab.compare.results import MethodResult
from megatron_corew.lab.compare.tables import NOTE, table_rows
from megatron_corew.observe.charts import Chart, Drawing, Series, draw

_SHARE = (0.0, 1.0)
_NOTE = "mean over the seeds"
_SMOOTH_NOTE = "mean over the seeds, rolling mean over the steps"
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
            smooth = name in SIGNALS
            note = _SMOOTH_NOTE if smooth else _NOTE
            yield draw(Chart(title=name, note=note, series=series, bounds=bounds, smooth=smooth))
