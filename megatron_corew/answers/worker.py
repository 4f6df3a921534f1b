"""The process that runs math-verify. Started by ``verifier``, by the path of this file.

It imports the libraries once and forks a child that does the work, so that a child which hangs,
grows too large or dies is replaced within milliseconds.

The child reads (gold, answer, seconds) from a connection and sends one verdict for each: ``equal``,
``different``, ``timeout`` or ``memory``, with the number of the text that is to blame by itself (0
or 1), or None. What Python's timer cannot break (one huge operation inside C) the watchdog thread
of faulthandler ends, with the process. Each new child first sends ``ready``, with the number of the
text that its predecessor died of.
"""

import ctypes
import faulthandler
import logging
import mmap
import os
import resource
import signal
import sys
from functools import lru_cache
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

_PR_SET_PDEATHSIG = 1
# What Python's timer may take to break a comparison, before the watchdog ends the process.
_GRACE_S = 0.3
_REMEMBERED = 4096
_OUT_OF_MEMORY = 3
_NEITHER = 2
_ALMOST_ALL = 0.8

_MUST_BE_EQUAL = (
    ("\\sqrt{4}", "2"),
    ("x^{2}+2x+1", "(x+1)^{2}"),
    ("x+2y-9=0", "2x+4y-18=0"),
    ("(-\\infty,1)\\cup(2,3)", "(2,3)\\cup(-\\infty,1)"),
    ("\\sin^{2}x", "1-\\cos^{2}x"),
    ("2\\pi", "\\pi\\cdot2"),
    ("4\\sqrt{5}", "\\sqrt{80}"),
    ("2+3i", "3i+2"),
    ("\\{1,\\sqrt{4}\\}", "\\{1,2\\}"),
    ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{pmatrix}1\\\\\\sqrt{4}\\end{pmatrix}"),
    ("\\frac{1+\\sqrt{5}}{2}", "\\frac{\\sqrt{5}}{2}+\\frac{1}{2}"),
)


class _TimeUp(BaseException):
    """Not an Exception: the many ``except Exception`` of the libraries must let it pass."""


def _stop(signum: int, frame: FrameType | None) -> None:
    raise _TimeUp


@lru_cache(maxsize=_REMEMBERED)
def _read(text: str) -> Any:
    """Parse a text, and compare it with a plain number: this is where a hostile text breaks."""
    from math_verify import parse, verify

    parsed = parse(f"\\boxed{{{text}}}", parsing_timeout=None)
    verify(_probe_number(), parsed, timeout_seconds=None)
    return parsed


@lru_cache(maxsize=1)
def _probe_number() -> Any:
    from math_verify import parse

    return parse("\\boxed{\\frac{7}{11}}", parsing_timeout=None)


def _equal(gold: Any, answer: Any) -> bool:
    from math_verify import verify

    return bool(
        verify(gold, answer, timeout_seconds=None) or verify(answer, gold, timeout_seconds=None)
    )


def _limited(texts: tuple[str, str], seconds: float, progress: mmap.mmap) -> tuple[str, int | None]:
    progress[0] = _NEITHER
    faulthandler.dump_traceback_later(seconds + _GRACE_S, exit=True, file=_nowhere())
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            parsed = []
            for at, text in enumerate(texts):
                progress[0] = at
                parsed.append(_read(text))
            progress[0] = _NEITHER
            return ("equal" if _equal(*parsed) else "different"), None
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except _TimeUp:
        return "timeout", _blamed(progress)
    except MemoryError:
        return "memory", _blamed(progress)
    except (RecursionError, OverflowError):
        # A value: two answers nobody can compare are not equal.
        return "different", None
    finally:
        faulthandler.cancel_dump_traceback_later()


def _blamed(progress: mmap.mmap) -> int | None:
    return None if progress[0] == _NEITHER else progress[0]


@lru_cache(maxsize=1)
def _nowhere() -> Any:
    return open(os.devnull, "w")


def _serve(connection: Connection, memory_bytes: int, progress: mmap.mmap) -> None:
    """Answer pairs until the parent closes its end, or memory runs out."""
    signal.signal(signal.SIGALRM, _stop)
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    connection.send(("ready", _blamed(progress)))
    while True:
        try:
            gold, answer, seconds = connection.recv()
        except EOFError:
            return
        verdict = _limited((gold, answer), seconds, progress)
        if _peak_bytes() > _ALMOST_ALL * memory_bytes:
            # math-verify swallows MemoryError; what it then says is no verdict.
            verdict = "memory", verdict[1]
        connection.send(verdict)
        if verdict[0] == "memory":
            os._exit(_OUT_OF_MEMORY)


def _peak_bytes() -> int:
    with open("/proc/self/status") as status:
        peak = next(line for line in status if line.startswith("VmPeak"))
    return int(peak.split()[1]) << 10


def _child(connection: Connection, memory_bytes: int, progress: mmap.mmap, supervisor: int) -> None:
    # Of a supervisor that is killed no child must stay behind.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == supervisor:
        _serve(connection, memory_bytes, progress)
    os._exit(0)


def main(file_descriptor: int, memory_bytes: int) -> None:
    """Keep a child at work until the parent closes its end of the connection.

    Args:
        file_descriptor: of this process's end of the connection.
        memory_bytes: address space that a child may take.
    """
    # The libraries print and log; only crashes should reach the user's terminal.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # math-verify turns a broken installation into "not equal", so it has to show that it works.
    # Each pair also loads what sympy loads late, once for all children.
    for gold, answer in _MUST_BE_EQUAL:
        if not _equal(_read(gold), _read(answer)):
            sys.exit(f"math-verify cannot tell {gold} = {answer}: its installation is broken.")
    connection, supervisor = Connection(file_descriptor), os.getpid()
    # Memory shared with the child: what it was at when it died.
    progress = mmap.mmap(-1, 1)
    progress[0] = _NEITHER
    while True:
        child = os.fork()
        if child == 0:
            _child(connection, memory_bytes, progress, supervisor)
        if os.waitpid(child, 0)[1] == 0:
            return


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
