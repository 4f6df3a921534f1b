"""The curves of a comparison as PNG files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron_corew.lab.compare.curves import mean_curve
from megatron_corew.methods import METHODS
from megatron_corew.observe.charts import rolling_mean
from megatron_corew.observe.summary import Records

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIGNALS = {
    "label accuracy": "label/accuracy",
    "mean reward, methods with labels": "reward/mean",
    "entropy (nats per token)": "policy/entropy",
    "length (tokens)": "response/length_mean",
}
VIEWS = {"original": "tab:blue", "rephrased": "tab:orange"}
_COLUMNS = 3
_PANEL_INCHES = (4.0, 2.6)
_DPI = 120

Runs = Mapping[str, Sequence[Records]]
"""Method -> the records of its runs, one entry per seed."""


def having(runs: Runs, metric: str) -> Runs:
    """The methods that a chart of a metric can compare.

    Args:
        runs: All of them.
        metric: Its name.

    Returns:
        All but those whose reward is a score without bounds, where the metric is the reward.
    """
    if metric != SIGNALS["mean reward, methods with labels"]:
        return runs
    return {name: found for name, found in runs.items() if METHODS[name].needs_labels}


def plot_accuracy(runs: Runs, path: Path, *, title: str) -> None:
    """Draw held-out accuracy: a panel per method, a line per seed and view.

    Args:
        runs: At least one method.
        path: The PNG file to write.
        title: Of the picture.
    """
    from matplotlib.figure import Figure

    rows = -(-len(runs) // _COLUMNS)
    width, height = _PANEL_INCHES
    figure = Figure(figsize=(_COLUMNS * width, rows * height + 0.5), layout="constrained")
    panels = figure.subplots(rows, _COLUMNS, sharex=True, sharey=True, squeeze=False).flat
    for (method, of_method), axes in zip(runs.items(), panels, strict=False):
        for view, colour in VIEWS.items():
            for at, records in enumerate(of_method):
                label = view if at == 0 else None
                _line(axes, records, f"eval/accuracy_{view}", color=colour, label=label, marker=".")
        axes.set(title=method, ylim=(0, 1), xlabel="step", ylabel="held-out accuracy")
        axes.label_outer()
        axes.grid(alpha=0.3)
    for axes in list(panels)[len(runs) :]:
        axes.set_visible(False)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    figure.suptitle(title)
    figure.savefig(path, dpi=_DPI)


def plot_signals(runs: Runs, path: Path, *, title: str) -> None:
    """Draw what runs measure while they train: a panel per signal, a line per method.

    A line is the mean over the method's runs, as a rolling mean over the steps: nine methods of
    single steps hide each other.

    Args:
        runs: At least one method.
        path: The PNG file to write.
        title: Of the picture.
    """
    from matplotlib.figure import Figure

    width, height = _PANEL_INCHES
    colours = {method: f"C{at}" for at, method in enumerate(runs)}
    figure = Figure(figsize=(2 * 1.5 * width, 2 * 1.4 * height + 1), layout="constrained")
    for (name, metric), axes in zip(SIGNALS.items(), figure.subplots(2, 2).flat, strict=True):
        for method, of_method in having(runs, metric).items():
            curve = rolling_mean(mean_curve(of_method, metric))
            axes.plot(list(curve), list(curve.values()), color=colours[method], label=method)
        axes.set(title=name, xlabel="step")
        axes.grid(alpha=0.3)
    # The third panel, the entropy, has a line of every method.
    handles, labels = figure.axes[2].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5)
    figure.suptitle(f"{title}, mean over the seeds, rolling mean over the steps")
    figure.savefig(path, dpi=_DPI)


def _line(axes: "Axes", records: Records, metric: str, **style: Any) -> None:
    points = [(record["step"], record[metric]) for record in records if metric in record]
    if points:
        steps, values = zip(*points, strict=True)
        axes.plot(steps, values, **style)
