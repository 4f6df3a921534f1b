"""`corew doctor`: looks, judges, prints."""

import json
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from megatron_corew.config import Config, RunConfig, ServersConfig
from megatron_corew.doctor.examine import can_run, examine
from megatron_corew.doctor.facts import gather
from megatron_corew.doctor.finding import Finding

STYLES = {"ok": "green", "off": "dim", "warn": "yellow", "bad": "bold red"}


def diagnose(config: Config | None, *, as_json: bool) -> bool:
    """Print every finding.

    Args:
        config: the run that should start here, or None.
        as_json: a list of objects instead of a table.

    Returns:
        Whether a run can start.
    """
    root = config.run.root if config else RunConfig.model_fields["root"].default
    servers = config.servers if config else ServersConfig()
    with Console(stderr=True).status("importing the engines, looking at the machine"):
        facts = gather(runs=Path(root), buckets=Path(servers.bucket_folder))
        findings = examine(facts, config)
    if as_json:
        print(json.dumps([asdict(one) for one in findings], indent=1))  # noqa: T201
    else:
        _print(findings)
    return can_run(findings)


def _print(findings: list[Finding]) -> None:
    table = Table(box=None, pad_edge=False)
    for name in ("check", "", "seen", "what mends it"):
        table.add_column(name, overflow="fold")
    for one in findings:
        table.add_row(one.check, one.status, one.seen, one.mend, style=STYLES[one.status])
    console = Console(highlight=False, markup=False)
    console.print(table)
    wrong = [one.check for one in findings if one.status == "bad"]
    console.print(f"\ncannot run: {', '.join(wrong)}" if wrong else "\nready to run")
