"""Ask math-verify whether two expressions are equal, in processes that can be killed.

Rules:
    1. Equal means: math-verify agrees in either direction. Its own verdict depends on the
       direction for relations (x < 3) and sets, and an equality must not.
    2. A comparison that takes too long, or kills its process, counts as unequal; both are
       counted, and remembered, so that the same pair cannot stall twice.
    3. Time lost to time-outs is limited per call: once one whole time-out is used up, each
       further comparison gets a tenth of it, but at least a second, so that ordinary
       comparisons still end in time on a busy machine.
    4. No signal is used in this process: it may be called from any thread.
"""

import queue
import subprocess
import sys
import threading
from collections import Counter, OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from pathlib import Path

_WORKER = Path(__file__).with_name("worker.py")
_START_TIMEOUT_S = 120.0
# What a worker may need to answer after its own timer rang, before it is killed.
_GRACE_S = 0.5
_LEAST_S = 1.0
_CACHE_SIZE = 1 << 17


class Verifier:
    """A pool of math-verify processes with a memory of verdicts."""

    def __init__(self, *, timeout_s: float, num_workers: int) -> None:
        """Prepare the pool; no process starts before the first comparison.

        Args:
            timeout_s: seconds one comparison may take.
            num_workers: processes, and comparisons at the same time.
        """
        self._timeout_s = timeout_s
        self._num_workers = num_workers
        self._idle: queue.SimpleQueue[_Worker | None] = queue.SimpleQueue()
        for _ in range(num_workers):
            self._idle.put(None)
        self._verdicts: OrderedDict[frozenset[str], bool] = OrderedDict()
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def equal(self, pairs: Sequence[tuple[str, str]]) -> list[bool]:
        """Compare pairs of expressions.

        Args:
            pairs: (gold, answer) in LaTeX, without a box.

        Returns:
            One verdict per pair; the order inside a pair does not matter for it.

        Raises:
            RuntimeError: a worker process does not start.
        """
        budget = _Budget(self._timeout_s)
        new: dict[frozenset[str], tuple[str, str]] = {}
        with self._lock:
            for pair in pairs:
                if frozenset(pair) not in self._verdicts:
                    new.setdefault(frozenset(pair), pair)
        verdicts: dict[frozenset[str], bool] = {}
        if new:
            with ThreadPoolExecutor(min(self._num_workers, len(new))) as threads:
                found = threads.map(lambda pair: self._compare(pair, budget), new.values())
                verdicts = dict(zip(new, found, strict=True))
        return [self._remembered(frozenset(pair), verdicts) for pair in pairs]

    def statistics(self) -> dict[str, float]:
        """Return ``comparisons``, ``timeouts`` and ``worker_deaths`` since the last call."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return {name: float(counts[name]) for name in ("comparisons", "timeouts", "worker_deaths")}

    def close(self) -> None:
        """End the processes that are idle; the pool can be used again."""
        workers = [self._idle.get() for _ in range(self._num_workers)]
        for worker in workers:
            if worker is not None:
                worker.kill()
            self._idle.put(None)

    def _remembered(self, pair: frozenset[str], verdicts: dict[frozenset[str], bool]) -> bool:
        with self._lock:
            verdict = verdicts[pair] if pair in verdicts else self._verdicts[pair]
            self._verdicts[pair] = verdict
            self._verdicts.move_to_end(pair)
            if len(self._verdicts) > _CACHE_SIZE:
                self._verdicts.popitem(last=False)
        return verdict

    def _compare(self, pair: tuple[str, str], budget: "_Budget") -> bool:
        worker = self._idle.get()
        try:
            if worker is None:
                worker = _Worker()
            timeout_s = budget.timeout_s()
            try:
                verdict = worker.compare(pair, timeout_s)
            except TimeoutError:
                worker.kill()
                worker, verdict = None, None
            except (EOFError, OSError):
                self._count("worker_deaths")
                worker.kill()
                worker, verdict = None, False
        finally:
            self._idle.put(worker)
        self._count("comparisons")
        if verdict is None:
            self._count("timeouts")
            budget.spend(timeout_s)
        return bool(verdict)

    def _count(self, what: str) -> None:
        with self._lock:
            self._counts[what] += 1


class _Budget:
    """The seconds that one call may lose to time-outs at full length."""

    def __init__(self, timeout_s: float) -> None:
        self._full_s = self._left_s = timeout_s

    def timeout_s(self) -> float:
        if self._left_s > 0:
            return self._full_s
        return min(self._full_s, max(self._full_s / 10, _LEAST_S))

    def spend(self, seconds: float) -> None:
        self._left_s -= seconds


class _Worker:
    """One math-verify process and the connection to it."""

    def __init__(self) -> None:
        self._connection, theirs = Pipe()
        # -P: the folder of the worker's file must not shadow other modules.
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_WORKER), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        try:
            started = self._connection.poll(_START_TIMEOUT_S) and self._connection.recv()
        except EOFError:
            started = False
        if not started:
            self.kill()
            raise RuntimeError(
                "answers: a math-verify process did not start within "
                f"{_START_TIMEOUT_S:.0f} s (exit code {self._process.returncode}; its error is "
                "above). Check that math-verify is installed, or set answers.equivalence=raw."
            )

    def compare(self, pair: tuple[str, str], timeout_s: float) -> bool | None:
        self._connection.send((*pair, timeout_s))
        if not self._connection.poll(timeout_s + _GRACE_S):
            raise TimeoutError
        verdict: bool | None = self._connection.recv()
        return verdict

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._connection.close()
