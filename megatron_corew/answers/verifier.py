"""Ask math-verify whether two expressions are equal, in processes that can be killed.

Rules:
    1. Equal means: math-verify agrees in either direction. Its own verdict depends on the
       direction for relations (x < 3) and sets, and an equality must not.
    2. A comparison that takes too long, too much memory, or its process's life, counts as unequal.
       A text that does so by itself is unreadable: nothing equals it, and it is not asked again.
       All are counted, and remembered, so that nothing stalls twice.
    3. Slow comparisons draw on one allowance, that of ``allowance.py``. Once it is used up,
       comparisons count as unequal without being made, until time has filled it again; they are
       counted and not remembered. So no text can stall a step for longer than one time-out.
    4. No signal is used in this process: it may be called from any thread.
"""

import os
import queue
import re
import subprocess
import sys
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from pathlib import Path

from megatron_corew.answers.allowance import Allowance

_WORKER = Path(__file__).with_name("worker.py")
_START_TIMEOUT_S = 120.0
# The worker ends by itself soon after its time; a frozen one is killed after this much more.
_FROZEN_S = 3.0
_SHARE_OF_ONE = 0.2
_CACHE_SIZE = 1 << 17
_COUNTS = ("comparisons", "timeouts", "worker_deaths", "out_of_memory", "unreadable", "skipped")
# Factorials, sums, large exponents, powers of powers, numbers of many digits.
_HEAVY = re.compile(r"!|\\(?:sum|prod|int|lim|binom)|\^\{[^{}]*(?:[0-9]{3}|\^)|[0-9]{12}")

Pair = tuple[str, str]


class Verifier:
    """A pool of math-verify processes with a memory of verdicts."""

    def __init__(self, *, timeout_s: float, num_workers: int, memory_mb: int) -> None:
        """Prepare the pool; no process starts before the first comparison.

        Args:
            timeout_s: seconds that slow comparisons may cost in all, see the module; a single one
                may take a fifth of it.
            num_workers: processes, and comparisons at the same time.
            memory_mb: address space of a process.
        """
        self._allowance = Allowance(timeout_s * num_workers)
        self._limit_s = timeout_s * _SHARE_OF_ONE
        self._num_workers = num_workers
        self._memory_bytes = memory_mb << 20
        self._idle: queue.SimpleQueue[_Worker | None] = queue.SimpleQueue()
        for _ in range(num_workers):
            self._idle.put(None)
        self._verdicts: OrderedDict[frozenset[str], bool] = OrderedDict()
        self._unreadable: OrderedDict[str, None] = OrderedDict()
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def equal(self, pairs: Sequence[Pair]) -> list[bool]:
        """Compare pairs of expressions.

        Args:
            pairs: (gold, answer) in LaTeX, without a box.

        Returns:
            One verdict per pair; the order inside a pair does not matter for it.

        Raises:
            RuntimeError: a worker process does not start.
        """
        known: dict[frozenset[str], bool] = {}
        new: dict[frozenset[str], Pair] = {}
        with self._lock:
            for pair in pairs:
                key = frozenset(pair)
                if key in self._verdicts:
                    self._verdicts.move_to_end(key)
                    known[key] = self._verdicts[key]
                else:
                    new.setdefault(key, pair)
        # Ordinary expressions first: the allowance is not spent on towers of powers before them.
        for key in sorted(new, key=lambda key: (_is_heavy(*key), max(map(len, key)))):
            new[key] = new.pop(key)
        if new:
            with ThreadPoolExecutor(min(self._num_workers, len(new))) as threads:
                known |= zip(new, threads.map(self._compare, new.values()), strict=True)
        return [known[frozenset(pair)] for pair in pairs]

    def unreadable(self, texts: Collection[str]) -> set[str]:
        """Return those of the texts that broke math-verify by themselves."""
        with self._lock:
            return {text for text in texts if text in self._unreadable}

    def statistics(self) -> dict[str, float]:
        """Return counts since the last call.

        Returns:
            ``comparisons`` made, and among them ``timeouts``, ``worker_deaths`` and
            ``out_of_memory``; ``unreadable`` texts found; ``skipped`` comparisons, not made.
        """
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return {name: float(counts[name]) for name in _COUNTS}

    def close(self) -> None:
        """End the processes that are idle; the pool can be used again."""
        workers = [self._idle.get() for _ in range(self._num_workers)]
        for worker in workers:
            if worker is not None:
                worker.kill()
            self._idle.put(None)

    def _compare(self, pair: Pair) -> bool:
        if self.unreadable(pair):
            return False
        worker = self._idle.get()
        try:
            if self._allowance.is_used_up:
                self._count("skipped")
                return False
            if worker is None:
                worker = _Worker(self._memory_bytes)
            started = time.monotonic()
            try:
                verdict, blamed = worker.compare(pair, self._limit_s)
            except (TimeoutError, EOFError, OSError) as error:
                worker.kill()
                worker, blamed = None, None
                verdict = "timeout" if isinstance(error, TimeoutError) else "death"
            self._allowance.spend(time.monotonic() - started)
        finally:
            self._idle.put(worker)
        self._remember(pair, verdict, blamed)
        return verdict == "equal"

    def _remember(self, pair: Pair, verdict: str, blamed: int | None) -> None:
        names = {"timeout": "timeouts", "death": "worker_deaths", "memory": "out_of_memory"}
        with self._lock:
            self._counts["comparisons"] += 1
            if verdict in names:
                self._counts[names[verdict]] += 1
            if blamed is not None:
                self._counts["unreadable"] += 1
                self._unreadable[pair[blamed]] = None
            self._verdicts[frozenset(pair)] = verdict == "equal"
            for memory in (self._verdicts, self._unreadable):
                if len(memory) > _CACHE_SIZE:
                    memory.popitem(last=False)

    def _count(self, what: str) -> None:
        with self._lock:
            self._counts[what] += 1


def _is_heavy(*texts: str) -> bool:
    return any(_HEAVY.search(text) for text in texts)


class _Worker:
    """One math-verify process and the connection to it."""

    def __init__(self, memory_bytes: int) -> None:
        self._connection, theirs = Pipe()
        # -P: the folder of the worker's file must not shadow other modules.
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_WORKER), str(theirs.fileno()), str(memory_bytes)],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            # Several arenas would reserve more address space than the work needs.
            env=os.environ | {"MALLOC_ARENA_MAX": "1"},
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
                "above). Check that math-verify is installed, that answers.verify_memory_mb is "
                "enough, or set answers.equivalence=raw."
            )

    def compare(self, pair: Pair, seconds: float) -> tuple[str, int | None]:
        """The verdict and the text to blame for it; see ``worker`` for both."""
        self._connection.send((*pair, seconds))
        started = time.monotonic()
        verdict, blamed = self._receive(seconds + _FROZEN_S)
        if verdict == "ready":
            # Another child: the one that was asked has ended, by the watchdog or otherwise.
            late = time.monotonic() - started >= seconds
            return ("timeout" if late else "death"), blamed
        if verdict == "memory":
            self._receive(_START_TIMEOUT_S)
        return verdict, blamed

    def _receive(self, seconds: float) -> tuple[str, int | None]:
        if not self._connection.poll(seconds):
            raise TimeoutError
        message: tuple[str, int | None] = self._connection.recv()
        return message

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._connection.close()
