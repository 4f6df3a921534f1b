"""math-verify in killable processes: verdicts, time-outs, memory, deaths, threads, signals."""

import os
import signal
import subprocess
import sys
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


def _children(of=None):
    """Processes whose parent is ``of`` (the list per thread misses those of ending threads)."""
    found = set()
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        if int(fields[1]) == (of or os.getpid()) and fields[0] != "Z":
            found.add(int(status.parent.name))
    return found


def _ended(pids):
    """Whether the processes end within a generous time."""
    for _ in range(600):
        if not any(Path(f"/proc/{pid}").exists() for pid in pids):
            return True
        time.sleep(0.05)
    return False


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


def test_a_text_that_hangs_is_unreadable_and_the_others_go_on():
    verifier = Verifier(timeout_s=10.0, num_workers=1, memory_mb=2048)
    pairs = [(HOSTILE + "+x", "x"), (r"\sqrt{8}", r"2\sqrt{2}"), (HOSTILE + "+x", "y")]
    assert verifier.equal(pairs) == [False, True, False]
    counts = verifier.statistics()
    assert (counts["timeouts"], counts["unreadable"], counts["comparisons"]) == (1.0, 1.0, 2.0)
    assert verifier.unreadable([HOSTILE + "+x", "x", "y"]) == {HOSTILE + "+x"}
    assert verifier.equal(pairs) == [False, True, False]
    assert set(verifier.statistics().values()) == {0.0}
    verifier.close()


def test_time_outs_of_many_texts_use_up_one_allowance_and_ordinary_ones_come_first():
    verifier = Verifier(timeout_s=2.0, num_workers=1, memory_mb=2048)
    hostile = [(f"{HOSTILE}+{n}x", "x") for n in range(40)]
    assert verifier.equal([*hostile, (r"\sqrt{8}", r"2\sqrt{2}")]) == [False] * 40 + [True]
    counts = verifier.statistics()
    assert counts["timeouts"] + counts["skipped"] == 40.0
    # Each takes two fifths of a second or a little more of the two.
    assert counts["timeouts"] <= 8.0
    verifier.close()


@pytest.mark.parametrize("victim", ["supervisor", "child"])
def test_a_dead_process_is_counted_and_replaced(victim):
    before = _children()
    verifier = Verifier(timeout_s=60.0, num_workers=1, memory_mb=2048)
    verifier.equal([("x", "y")])
    (supervisor,) = _children() - before
    (child,) = _children(supervisor)
    os.kill(supervisor if victim == "supervisor" else child, signal.SIGKILL)
    assert _ended([child])
    assert verifier.equal([("a+b", "b+a"), ("a+c", "c+a")]) == [False, True]
    assert verifier.statistics()["worker_deaths"] == 1.0
    verifier.close()
    assert _children() == before


def test_a_frozen_process_is_killed_and_replaced():
    before = _children()
    verifier = Verifier(timeout_s=5.0, num_workers=1, memory_mb=2048)
    verifier.equal([("x", "y")])
    (supervisor,) = _children() - before
    (child,) = _children(supervisor)
    os.kill(child, signal.SIGSTOP)
    assert verifier.equal([("a+b", "b+a")]) == [False]
    assert verifier.statistics()["timeouts"] == 1.0
    assert _ended([supervisor, child])
    assert verifier.equal([("a+c", "c+a")]) == [True]
    verifier.close()


def test_a_process_that_needs_too_much_memory_is_counted_and_replaced():
    # The libraries alone need more than this.
    verifier = Verifier(timeout_s=60.0, num_workers=1, memory_mb=90)
    assert verifier.equal([("a+b", "b+a"), ("a+c", "c+a")]) == [False, False]
    assert verifier.statistics()["out_of_memory"] == 2.0
    verifier.close()


def test_no_process_outlives_the_trainer():
    program = (
        "from megatron_corew.answers.verifier import Verifier; import os\n"
        "verifier = Verifier(timeout_s=5.0, num_workers=1, memory_mb=2048)\n"
        "verifier.equal([('x', 'y')])\n"
        "print(verifier._idle.get()._process.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL
    assert _ended([int(done.stdout)])


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
