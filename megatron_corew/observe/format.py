"""Numbers as people read them, the same in the display, the summary and the report."""

import math
import re
from collections.abc import Mapping


def share(value: float) -> str:
    """A share or a mean in [0, 1] with three digits, such as ``0.741``."""
    return "-" if math.isnan(value) else f"{value:.3f}"


def duration(seconds: float) -> str:
    """Seconds as ``42 s``, ``3:07 min`` or ``1:02:45 h``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d} min"
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d} h"


def number(value: float) -> str:
    """Any number with three or four digits, such as ``0.0312``, ``1.20e-6`` or ``12,345``."""
    if math.isnan(value):
        return "-"
    if value and (abs(value) < 1e-3 or abs(value) >= 1e6):
        return _short_exponent(f"{value:.2e}")
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def tick(value: float) -> str:
    """A round number as short as it goes, such as ``0.25``, ``5e-6`` or ``7,500``."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else _short_exponent(f"{value:g}")


def phase_seconds(metrics: Mapping[str, float]) -> dict[str, float]:
    """Seconds per phase of a step, without the step as a whole.

    Args:
        metrics: with names ``time/<phase>_s``.

    Returns:
        Phase -> seconds, in the order of the metrics.
    """
    return {
        name.removeprefix("time/").removesuffix("_s"): value
        for name, value in metrics.items()
        if name.startswith("time/") and name != "time/step_s"
    }


def _short_exponent(text: str) -> str:
    return re.sub(r"e([+-])0*(\d)", lambda m: f"e{m[1].strip('+')}{m[2]}", text)
