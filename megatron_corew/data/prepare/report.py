"""What `corew prepare` found and did, as numbers, as JSON and as text."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

REPORT_FILE = "report.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareReport:
    """Counts of rows. ``rows = kept + quarantined + dropped``: every row has one fate.

    What was *found* counts every row with the defect, so a row may stand in several lines there.
    """

    name: str
    rows: int
    kept: int
    quarantined: Mapping[str, int]
    """Reason -> rows in the quarantine file."""
    dropped: Mapping[str, int]
    """Reason -> sound rows that are left out."""
    found: Mapping[str, int]
    """Defect -> rows that have it, whatever became of them."""
    contaminated: Mapping[str, Mapping[str, int]]
    """Evaluation set -> kind of match -> rows."""
    evaluation_sets: Mapping[str, int]
    """Evaluation set -> its questions; empty: nothing was compared."""
    evaluation_questions_found: Mapping[str, int]
    """Evaluation set -> how many of its questions were found."""
    notes: Mapping[str, int]
    """What was changed or is odd -> how often."""

    def write(self, path: Path) -> None:
        """Write the counts as JSON; the file is replaced."""
        path.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    def lines(self) -> list[str]:
        """The report for a person."""
        out = [
            f"{self.name}: {self.rows} rows, {self.kept} kept, "
            f"{sum(self.quarantined.values())} quarantined, {sum(self.dropped.values())} dropped"
        ]
        out += _section("quarantined", self.quarantined)
        out += _section("dropped", self.dropped)
        return out + self.problem_lines()

    def problem_lines(self) -> list[str]:
        """What was found in the rows, whatever became of them."""
        return [
            *_section("found (a row may stand in several lines)", self.found),
            *self._contamination(),
            *_section("notes", self.notes),
        ]

    def _contamination(self) -> list[str]:
        if not self.evaluation_sets:
            return ["contamination: not looked for; name evaluation sets with --against"]
        out = ["contamination"]
        for name, size in self.evaluation_sets.items():
            kinds = self.contaminated.get(name, {})
            text = ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "none"
            hit = self.evaluation_questions_found.get(name, 0)
            out.append(f"  {text} in {name} ({hit} of its {size} questions)")
        return out


def _section(title: str, counts: Mapping[str, int]) -> list[str]:
    if not counts:
        return []
    return [title, *(f"  {count:>6} {name}" for name, count in counts.items())]
