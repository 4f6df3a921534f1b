"""Writes the folder of a prepared data set."""

import json
from collections.abc import Sequence
from pathlib import Path

from megatron_corew.data.prepare.pipeline import Contaminated, Prepared
from megatron_corew.data.prepare.quarantine import QUARANTINE_FILE, write_quarantine
from megatron_corew.data.prepare.report import REPORT_FILE
from megatron_corew.data.prepare.schema import QUESTIONS_FILE, write_prepared

CONTAMINATED_FILE = "contaminated.jsonl"


def write_folder(prepared: Prepared, folder: Path) -> None:
    """Write questions, quarantine, contaminated questions and report.

    Args:
        prepared: what ``prepare_rows`` gave.
        folder: is made; files of the same names are replaced.

    Raises:
        ValueError: no question is left: the folder would be of no use.
    """
    report = prepared.report
    if not prepared.kept:
        left = {**report.quarantined, **report.dropped}
        reasons = ", ".join(f"{count} {reason}" for reason, count in left.items())
        raise ValueError(
            f"{report.name}: need at least one usable question, got none of {report.rows} rows "
            f"({reasons}). Relax --quarantine, --against or --max-prompt-tokens."
        )
    write_prepared(prepared.kept, folder / QUESTIONS_FILE)
    write_quarantine(prepared.quarantined, folder / QUARANTINE_FILE)
    _write_contaminated(prepared.contaminated, folder / CONTAMINATED_FILE)
    report.write(folder / REPORT_FILE)


def _write_contaminated(found: Sequence[Contaminated], path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        for one in found:
            record = {
                "id": one.row.id,
                "view": one.view,
                "evaluation_set": one.match.set_name,
                "evaluation_question": one.match.question,
                "kind": one.match.kind,
                "share": round(one.match.share, 4),
                "question": one.row.question,
            }
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
