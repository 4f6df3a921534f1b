"""Seconds per phase of a step."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class PhaseClock:
    """Adds up the wall-clock seconds of named phases.

    Phases may nest or repeat; a nested phase counts for itself and for the one around it.
    """

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of a ``with`` block, also when it raises.

        Args:
            name: of the phase, such as ``policy_rollout``.
        """
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] += time.perf_counter() - start

    def seconds(self) -> dict[str, float]:
        """Seconds per phase since the last ``collect``."""
        return dict(self._seconds)

    def collect(self) -> dict[str, float]:
        """The metrics ``time/<phase>_s`` since the last call; starts over from zero."""
        metrics = {f"time/{name}_s": seconds for name, seconds in self._seconds.items()}
        self._seconds.clear()
        return metrics
