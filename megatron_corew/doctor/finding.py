"""The outcome of one check."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What a check saw, and what mends it."""

    check: str
    """Name of what was looked at."""
    status: Literal["ok", "off", "warn", "bad"]
    """``off``: an option that is not there; ``bad``: a run cannot start or would be wrong."""
    seen: str
    mend: str = ""
    """Command or knob that helps; empty when there is nothing to mend."""


def ok(check: str, seen: str) -> Finding:
    """All is well."""
    return Finding(check=check, status="ok", seen=seen)


def off(check: str, seen: str, mend: str) -> Finding:
    """Something optional is not there."""
    return Finding(check=check, status="off", seen=seen, mend=mend)


def warn(check: str, seen: str, mend: str) -> Finding:
    """A run can start; it may be slow or stop later."""
    return Finding(check=check, status="warn", seen=seen, mend=mend)


def bad(check: str, seen: str, mend: str) -> Finding:
    """A run cannot start, or its numbers would be wrong."""
    return Finding(check=check, status="bad", seen=seen, mend=mend)
