"""A bound on the seconds that slow comparisons may cost."""

import threading
import time

# What any comparison may take without being called slow.
_ORDINARY_S = 0.1
# Share of the passing time that is given back.
_REFILL = 0.1


class Allowance:
    """A stock of seconds that slow work draws on, and that fills up again with time.

    Within any ``t`` seconds at most ``full_s + t / 10`` are spent, and the excess of the last
    piece of work.
    """

    def __init__(self, full_s: float) -> None:
        """Start with a full stock.

        Args:
            full_s: seconds.
        """
        self._full_s = self._left_s = full_s
        self._filled_at = time.monotonic()
        self._lock = threading.Lock()

    @property
    def is_used_up(self) -> bool:
        """Whether nothing may be spent now."""
        with self._lock:
            self._refill()
            return self._left_s <= 0

    def spend(self, seconds: float) -> None:
        """Take what a piece of work took beyond the ordinary.

        Args:
            seconds: the whole duration of the work.
        """
        with self._lock:
            self._refill()
            self._left_s -= max(seconds - _ORDINARY_S, 0.0)

    def _refill(self) -> None:
        now = time.monotonic()
        self._left_s = min(self._full_s, self._left_s + _REFILL * (now - self._filled_at))
        self._filled_at = now
