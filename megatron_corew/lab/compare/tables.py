"""A comparison's figures as a markdown table, as rows for a page, and as JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from megatron_corew.lab.compare.results import DEFINITION, MethodResult, RunResult, Spread

COLUMNS = {
    "original start": "original: start",
    "original best": "best",
    "original final": "final",
    "rephrased start": "rephrased: start",
    "rephrased best": "best",
    "rephrased final": "final",
    "label accuracy start": "label accuracy: start",
    "label accuracy final": "final",
    "reward start": "reward: start",
    "reward final": "final",
    "entropy start": "entropy: start",
    "entropy final": "final",
    "length start": "length: start",
    "length final": "final",
}
"""Figure -> heading of its column; a heading with a colon names the group that starts there."""
NOTE = (
    "Mean over the seeds, the lowest and the highest in brackets. Accuracy: held-out questions. "
    "Label accuracy, reward, entropy (nats per token) and length (tokens): mean of the first and "
    f"of the last five steps. {DEFINITION}"
)


def table_rows(methods: Sequence[MethodResult]) -> list[list[str]]:
    """Write the table of a comparison as text.

    Args:
        methods: Its rows.

    Returns:
        The headings, then one row per method: name, seeds, outcomes, and one cell per column;
        ``-`` where a method does not have the figure.
    """
    head = ["method", "seeds", "outcome", *COLUMNS.values()]
    return [head, *(_row(method) for method in methods)]


def markdown(methods: Sequence[MethodResult], *, title: str, setting: str) -> str:
    """Write the table of a comparison as a markdown page.

    Args:
        methods: Its rows.
        title: Heading of the page.
        setting: One line about what was run.

    Returns:
        The page.
    """
    head, *rows = table_rows(methods)
    lines = [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
    return "\n".join([f"# {title}", "", setting, "", *lines, "", NOTE, ""])


def as_json(
    runs: Sequence[RunResult], methods: Sequence[MethodResult], *, base: str, config: dict[str, Any]
) -> dict[str, Any]:
    """Give all of a comparison as values of JSON.

    Args:
        runs: Every finished run.
        methods: The same, joined by method.
        base: The policy that all started from.
        config: The setting that all share.

    Returns:
        ``base``, ``setting``, ``collapse`` (its definition), ``runs`` and ``methods``.
    """
    return {
        "base": base,
        "setting": config,
        "collapse": DEFINITION,
        "runs": [asdict(run) for run in runs],
        "methods": [asdict(method) for method in methods],
    }


def _row(method: MethodResult) -> list[str]:
    outcomes = ", ".join(
        word if count == len(method.seeds) else f"{count} {word}"
        for word, count in method.outcomes.items()
    )
    cells = [
        _cell(method.figures[name], name) if name in method.figures else "-" for name in COLUMNS
    ]
    return [method.method, _seeds(method.seeds), outcomes, *cells]


def _seeds(seeds: Sequence[int]) -> str:
    """``101-103`` for what counts up without a gap, which is what the plan makes."""
    first, last = seeds[0], seeds[-1]
    if len(seeds) > 1 and list(seeds) == list(range(first, last + 1)):
        return f"{first}-{last}"
    return ", ".join(map(str, seeds))


def _cell(spread: Spread, name: str) -> str:
    digits = 1 if name.startswith("length") else 2
    mean, low, high = (f"{value:.{digits}f}" for value in (spread.mean, spread.low, spread.high))
    return mean if low == high else f"{mean} ({low}-{high})"
