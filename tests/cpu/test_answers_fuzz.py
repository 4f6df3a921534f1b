"""Hostile answers by the thousand: the judge ends in time, in bounded memory, and goes on."""

import random
import resource
import time

import pytest

from megatron_corew.answers.judge import AnswerJudge

TIMEOUT_S = 2.0
GROUP, GROUPS_PER_BATCH = 8, 25
# Reading itself: our own code on two busy cores, 1 MB strings included.
SLACK_S = 30.0


def _tower(rng):
    base = rng.randint(2, 99)
    return f"{base}^{{{rng.randint(5, 99)}^{{{rng.randint(5, 99)}^{{{rng.randint(5, 99)}}}}}}}"


def _soup(rng):
    pieces = [*"{}[]()^_&|!%$#~'\"\\ +-*/=<>.,;:0123456789xyzeiπ∞½²\x00\x07\u202e\ud800", "\\frac"]
    pieces += ["\\sqrt", "\\text{", "\\boxed{", "\\left(", "\\begin{pmatrix}", "\\infty", "\\cup"]
    return "".join(rng.choices(pieces, k=rng.randint(1, 60)))


HOSTILE = (
    _tower,
    lambda rng: f"{_tower(rng)}+x",
    lambda rng: f"{rng.randint(10**6, 10**9)}!",
    lambda rng: f"({rng.randint(10**3, 10**5)}!)!+y",
    lambda rng: f"x^{{{rng.randint(10**8, 10**12)}}}+(x+1)^{{{rng.randint(10**3, 10**4)}}}",
    lambda rng: f"\\binom{{{rng.randint(10**8, 10**9)}}}{{{rng.randint(10**7, 10**8)}}}n",
    lambda rng: f"\\sum_{{k=1}}^{{{rng.randint(10**6, 10**9)}}}k^{{k}}",
    lambda rng: f"\\prod_{{k=1}}^{{{rng.randint(10**4, 10**9)}}}(k+x)",
    lambda rng: f"\\int_0^{rng.randint(2, 9)} x^x \\sin(x^{rng.randint(2, 99)}) dx",
    lambda rng: "\\sqrt{" * 60 + str(rng.random()) + "}" * 60,
    lambda rng: "\\frac{1}{1+" * 40 + f"x^{rng.randint(2, 9)}" + "}" * 40,
    lambda rng: "(" * 300 + str(rng.randint(1, 9)) + ")" * 300,
    lambda rng: "{" * 10**5 + str(rng.random()) + "}" * 10**5,
    lambda rng: rng.choice("a7 \\{\x00") * rng.choice((10**3, 10**4, 10**6)),
    lambda rng: ",".join(f"{rng.random():.3f}" for _ in range(160)),
    lambda rng: ",".join(f"\\sqrt{{{rng.randint(2, 99)}}}" for _ in range(90)),
    lambda rng: "\\begin{pmatrix}" + "&".join(_tower(rng) for _ in range(9)) + "\\end{pmatrix}",
    lambda rng: f"y<x^{{{rng.randint(20, 99)}}}+{_tower(rng)}",
    lambda rng: f"x^{rng.randint(20, 60)}+y^{rng.randint(20, 60)}+xy={rng.randint(2, 99)}",
    lambda rng: "".join(chr(rng.randrange(0x110000)) for _ in range(rng.randint(1, 200))),
    lambda rng: "".join(map(chr, rng.choices(range(32), k=200))),
    lambda rng: f"{rng.randint(1, 9)}e{rng.randint(10**3, 10**9)}",
    lambda rng: "9" * rng.randint(300, 990),
    _soup,
    _soup,
)


def _batch(rng):
    """Groups in which every answer stands twice, and one is tame."""
    groups = []
    for _ in range(GROUPS_PER_BATCH):
        answers = [rng.choice(HOSTILE)(rng) for _ in range(GROUP // 2)] * 2
        answers[-1] = rng.choice(("7", "x+1", r"\sqrt{8}"))
        groups.append([f"So \\boxed{{{answer}}}" for answer in answers])
    return groups


def _peak_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.mark.parametrize(
    "answers", [400, pytest.param(12_000, marks=pytest.mark.slow)], ids=["some", "many"]
)
def test_hostile_answers_cost_one_time_out_a_batch_and_no_memory(answers):
    rng, before_mb, slowest = random.Random(0), _peak_mb(), 0.0
    judge = AnswerJudge(
        equivalence="math",
        tie="abstain",
        min_share=0.0,
        verify_timeout_s=TIMEOUT_S,
        verify_workers=1,
        verify_memory_mb=2048,
        extractors=("boxed",),
    )
    with judge:
        assert judge.correctness([[r"\boxed{2\sqrt{2}+y<0}"]], [r"y+\sqrt{8}<0"])
        for _ in range(answers // (GROUP * GROUPS_PER_BATCH)):
            groups = _batch(rng)
            started = time.monotonic()
            votes = judge.votes(groups)
            rewards = judge.agreement(groups, [vote.label for vote in votes])
            slowest = max(slowest, time.monotonic() - started)
            assert [len(row) for row in rewards] == [GROUP] * len(groups)
        assert slowest < TIMEOUT_S + SLACK_S
        # The strings of a batch, and nothing that lasts.
        assert _peak_mb() - before_mb < 600
        assert judge.correctness([[r"\boxed{\frac{1}{2}}"]], ["0.5"]) == [[1.0]]
