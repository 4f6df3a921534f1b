"""math-verify in killable processes: verdicts, time-outs, threads, signals."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from megatron_corew.answers.verifier import Verifier

# Python code cannot be interrupted inside this: math-verify evaluates the power in one call.
HOSTILE = "7^{7^{7^{7^7}}}"


@pytest.fixture(scope="module")
def verifier():
    verifier = Verifier(timeout_s=20.0, num_workers=1, memory_mb=2048)
    yield verifier
    verifier.close()


def _children():
    """Processes whose parent is this one (the list per thread misses those of ending threads)."""
    found = set()
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        if int(fields[1]) == os.getpid():
            found.add(int(status.parent.name))
    return found


@pytest.mark.parametrize(
    ("gold", "answer", "equal"),
    [
        (r"\sqrt{8}", r"2\sqrt{2}", True),
        ("x^2+2x+1", "(x+1)^2", True),
        ("x+1", "x+2", False),
        ("x<3", r"(-\infty,3)", True),
        (r"(-\infty,3)", "x<3", True),
        (r"\notacommand{", "}{", False),
        ("\ud800", "5", False),
    ],
)
def test_expressions_are_equal_if_math_verify_agrees_in_either_direction(
    verifier, gold, answer, equal
):
    assert verifier.equal([(gold, answer)]) == [equal]


def test_no_process_starts_before_a_comparison_and_none_is_left_after_closing():
    before = _children()
    verifier = Verifier(timeout_s=5.0, num_workers=2, memory_mb=2048)
    assert verifier.equal([]) == []
    assert _children() == before
    verifier.equal([("x", "y")])
    assert len(_children() - before) == 1
    verifier.close()
    assert _children() == before


def test_verdicts_are_remembered_whichever_way_round(verifier):
    pairs = [("y+1", "1+y"), ("1+y", "y+1"), ("y+1", "1+y")]
    verifier.statistics()
    assert verifier.equal(pairs) == [True, True, True]
    assert verifier.equal(pairs) == [True, True, True]
    assert verifier.statistics()["comparisons"] == 1.0
    assert verifier.statistics()["comparisons"] == 0.0


def test_a_hanging_comparison_counts_as_unequal_and_the_others_go_on():
    verifier = Verifier(timeout_s=2.0, num_workers=1, memory_mb=2048)
    verifier.equal([("x", "y")])
    started = time.monotonic()
    pairs = [(HOSTILE + "+x", "x"), (r"\sqrt{8}", r"2\sqrt{2}"), (HOSTILE + "+y", "y")]
    assert verifier.equal(pairs) == [False, True, False]
    assert verifier.statistics()["timeouts"] == 2.0
    # One whole time-out, then a shorter one; the rest is new processes.
    assert time.monotonic() - started < 60.0
    assert verifier.equal(pairs) == [False, True, False]
    assert set(verifier.statistics().values()) == {0.0}
    verifier.close()


def test_a_dead_process_is_counted_and_replaced():
    before = _children()
    verifier = Verifier(timeout_s=20.0, num_workers=1, memory_mb=2048)
    verifier.equal([("x", "y")])
    (child,) = _children() - before
    os.kill(child, signal.SIGKILL)
    assert verifier.equal([("a+b", "b+a"), ("a+c", "c+a")]) == [False, True]
    assert verifier.statistics()["worker_deaths"] == 1.0
    verifier.close()


def test_threads_may_ask_at_the_same_time(verifier):
    verdicts = {}

    def ask(number):
        verdicts[number] = verifier.equal([(f"z+{number}", f"{number}+z"), (f"z+{number}", "z")])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts == {number: [True, False] for number in range(1, 5)}


def test_the_caller_s_alarm_still_rings(verifier):
    rung = threading.Event()
    previous = signal.signal(signal.SIGALRM, lambda *_: rung.set())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        assert verifier.equal([("w+1", "1+w")]) == [True]
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0 or rung.is_set()
        assert rung.wait(5.0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
