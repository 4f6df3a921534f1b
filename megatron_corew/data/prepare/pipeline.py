"""Decides the fate of every row: kept, quarantined or dropped, for the first reason that holds.

The order: broken rows, contradicted answers, faulty rephrasings, duplicates, contaminated
questions, long prompts.
Defects are counted before anything leaves, so that a count does not depend on the order.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from megatron_corew.data.prepare.contamination import EvaluationIndex, Match
from megatron_corew.data.prepare.duplicates import contradicted, repeated
from megatron_corew.data.prepare.lengths import prompt_tokens
from megatron_corew.data.prepare.quarantine import Quarantined
from megatron_corew.data.prepare.rephrasings import (
    RephrasingFault,
    RephrasingLimits,
    diagrams,
    lost_numbers,
    rephrasing_faults,
)
from megatron_corew.data.prepare.report import PrepareReport
from megatron_corew.data.prepare.rows import SourceRows
from megatron_corew.data.prepare.schema import PreparedRow
from megatron_corew.data.prepare.settings import PrepareSettings
from megatron_corew.data.rendering import PromptRenderer

CONTRADICTED = "asked twice with different answers"


@dataclass(frozen=True, kw_only=True, slots=True)
class Contaminated:
    """A question that stands in an evaluation set."""

    row: PreparedRow
    match: Match
    view: str
    """The view in which it was found."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """All rows of a source after their fates are decided."""

    kept: tuple[PreparedRow, ...]
    quarantined: tuple[Quarantined, ...]
    contaminated: tuple[Contaminated, ...]
    report: PrepareReport


def prepare_rows(
    name: str,
    source: SourceRows,
    *,
    settings: PrepareSettings,
    index: EvaluationIndex,
    keep_contaminated: bool,
    renderer: PromptRenderer | None,
    max_prompt_tokens: int,
) -> Prepared:
    """Check all rows and keep the usable ones.

    Args:
        name: of the data set.
        source: its rows.
        settings: what makes a question unusable.
        index: the evaluation sets; without any, nothing is contaminated.
        keep_contaminated: True: contaminated questions are reported and kept.
        renderer: how a run renders prompts; None: lengths are not looked at.
        max_prompt_tokens: longest prompt of either view.

    Returns:
        The usable rows in the order of the source, and what became of the others.

    Raises:
        ValueError: a question cannot be rendered at all.
    """
    faults = _faults(source.rows, settings.limits)
    contaminated = {
        found.row.id: found for row in source.rows if (found := _search(row, index)) is not None
    }
    contradictions = contradicted(source.rows)
    fates = _Fates(source.broken)
    rows = fates.quarantine_contradicted(source.rows, contradictions)
    rows = fates.quarantine_faulty(rows, faults, settings.quarantine)
    rows = fates.drop(rows, repeated(rows, ignore_white_space=True), "duplicate")
    if not keep_contaminated:
        rows = fates.drop(rows, contaminated, "contaminated")
    if renderer is not None:
        long = {row.id for row in rows if prompt_tokens(row, renderer) > max_prompt_tokens}
        rows = fates.drop(rows, long, f"longer than {max_prompt_tokens} tokens")
    report = PrepareReport(
        name=name,
        rows=source.total,
        kept=len(rows),
        quarantined=dict(Counter(entry.reason for entry in fates.quarantined)),
        dropped=dict(fates.dropped),
        found=_found(source, faults, len(contradictions)),
        contaminated=_by_set(contaminated.values()),
        evaluation_sets=index.counts,
        evaluation_questions_found=_questions_found(contaminated.values()),
        notes=dict(source.notes),
    )
    return Prepared(
        kept=tuple(rows),
        quarantined=tuple(fates.quarantined),
        contaminated=tuple(contaminated.values()),
        report=report,
    )


class _Fates:
    """Rows that left, and why."""

    def __init__(self, broken: Sequence[Quarantined]) -> None:
        self.quarantined = list(broken)
        self.dropped: Counter[str] = Counter()

    def quarantine_contradicted(
        self, rows: Sequence[PreparedRow], contradictions: Mapping[str, tuple[str, ...]]
    ) -> list[PreparedRow]:
        """Take out all copies of a question whose answers contradict each other."""
        for row in rows:
            if row.id in contradictions:
                detail = f"answers to this question: {' | '.join(contradictions[row.id])}"
                self.quarantined.append(Quarantined.of(row, reason=CONTRADICTED, detail=detail))
        return [row for row in rows if row.id not in contradictions]

    def quarantine_faulty(
        self,
        rows: Sequence[PreparedRow],
        faults: Mapping[str, tuple[RephrasingFault, ...]],
        strict: Sequence[RephrasingFault],
    ) -> list[PreparedRow]:
        """Take out rows with a fault that is not tolerated."""
        kept = []
        for row in rows:
            fault = next((one for one in faults[row.id] if one in strict), None)
            if fault is None:
                kept.append(row)
            else:
                self.quarantined.append(
                    Quarantined.of(row, reason=f"rephrasing {fault}", detail=_detail(row, fault))
                )
        return kept

    def drop(
        self, rows: Sequence[PreparedRow], ids: Iterable[str], reason: str
    ) -> list[PreparedRow]:
        """Take out the rows of these ids."""
        leaving = set(ids)
        kept = [row for row in rows if row.id not in leaving]
        if len(kept) < len(rows):
            self.dropped[reason] += len(rows) - len(kept)
        return kept


def _faults(
    rows: Sequence[PreparedRow], limits: RephrasingLimits
) -> dict[str, tuple[RephrasingFault, ...]]:
    """Id -> faults of the rephrasing, for all rows."""
    # Whether a data set has rephrasings is a property of the set: only then can one be missing.
    paired = any(row.rephrased_messages is not None for row in rows)
    return {
        row.id: rephrasing_faults(row.question, row.rephrasing, limits) if paired else ()
        for row in rows
    }


def _search(row: PreparedRow, index: EvaluationIndex) -> Contaminated | None:
    if not index.counts:
        return None
    for view, text in (("original", row.question), ("rephrased", row.rephrasing)):
        if text is not None and (match := index.find(text)) is not None:
            return Contaminated(row=row, match=match, view=view)
    return None


def _found(
    source: SourceRows,
    faults: Mapping[str, tuple[RephrasingFault, ...]],
    contradictions: int,
) -> dict[str, int]:
    found: Counter[str] = Counter(f"{entry.reason}" for entry in source.broken)
    found.update(f"rephrasing {fault}" for row_faults in faults.values() for fault in row_faults)
    exact = repeated(source.rows, ignore_white_space=False)
    spaced = repeated(source.rows, ignore_white_space=True)
    found["duplicate, character by character"] = len(exact)
    found["duplicate but for white space"] = len(spaced) - len(exact)
    found[CONTRADICTED] = contradictions
    found["question with a diagram"] = sum(bool(diagrams(row.question)) for row in source.rows)
    return {name: count for name, count in found.items() if count}


def _by_set(found: Iterable[Contaminated]) -> dict[str, dict[str, int]]:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for one in found:
        counts[one.match.set_name][one.match.kind] += 1
    return {name: dict(kinds) for name, kinds in counts.items()}


def _questions_found(found: Iterable[Contaminated]) -> dict[str, int]:
    distinct = {(one.match.set_name, one.match.question) for one in found}
    return dict(Counter(name for name, _ in distinct))


def _detail(row: PreparedRow, fault: RephrasingFault) -> str:
    text = row.rephrasing or ""
    if fault == "numbers lost":
        return f"lost: {', '.join(lost_numbers(row.question, text))}"
    return f"rephrased as {text[:120]!r}" if text else "there is no rephrased text"
