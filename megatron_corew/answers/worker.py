"""The process that runs math-verify. Started by ``verifier``, by the path of this file.

It reads (gold, answer) pairs from a connection and answers each with True, False, or None when
its own timer stopped the comparison. The timer breaks Python code; what it cannot break (one
huge operation inside C) the parent ends by killing the process.
"""

import logging
import os
import resource
import signal
import sys
from multiprocessing.connection import Connection
from types import FrameType

# A comparison of two answers needs megabytes; towers of powers would take all there is.
_MEMORY_BYTES = 4 << 30
_TOO_LARGE = (MemoryError, RecursionError, OverflowError)


class _TimeUp(BaseException):
    """Not an Exception: the many ``except Exception`` of the libraries must let it pass."""


def _stop(signum: int, frame: FrameType | None) -> None:
    raise _TimeUp


def _equal(gold: str, answer: str) -> bool:
    from math_verify import parse, verify

    parsed = [parse(f"\\boxed{{{text}}}", parsing_timeout=None) for text in (gold, answer)]
    return bool(
        verify(parsed[0], parsed[1], timeout_seconds=None)
        or verify(parsed[1], parsed[0], timeout_seconds=None)
    )


def _limited(gold: str, answer: str, timeout_s: float) -> bool | None:
    try:
        signal.setitimer(signal.ITIMER_REAL, timeout_s)
        try:
            return _equal(gold, answer)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except _TimeUp:
        return None
    except _TOO_LARGE:
        # A value: two answers nobody can compare are not equal.
        return False


def main(file_descriptor: int) -> None:
    """Answer pairs until the parent closes its end.

    Args:
        file_descriptor: of this process's end of the connection.
    """
    # The libraries print and log; only crashes should reach the user's terminal.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, _stop)
    # Imports take a second and are done before the parent's clock starts. math-verify turns a
    # broken installation into "not equal", so it has to show that it works.
    if not _equal("\\sqrt{4}", "2"):
        sys.exit("math-verify cannot compare \\sqrt{4} with 2: its installation is broken.")
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    connection = Connection(file_descriptor)
    connection.send("ready")
    while True:
        try:
            gold, answer, timeout_s = connection.recv()
        except EOFError:
            return
        connection.send(_limited(gold, answer, timeout_s))


if __name__ == "__main__":
    main(int(sys.argv[1]))
