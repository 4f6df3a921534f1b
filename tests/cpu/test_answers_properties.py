"""Properties of votes, rewards, keys and values, over any Unicode and made-up algebra."""

import zlib

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from megatron_corew.answers.allowance import Allowance
from megatron_corew.answers.judge import AnswerJudge
from megatron_corew.answers.keys import canonical_key, decides
from megatron_corew.answers.probing import probe

ANSWERS = [
    *("0.5", r"\frac12", "1/2", "50\\%", "0.333333", r"\frac13", "7", "7.0", "-7", "x=7", "7 cm"),
    *("C", "(C)", "c", "east", "pq", "qp", r"\sqrt8", r"2\sqrt2", "2.828427", "x<3", "x<4"),
    *(r"(-\infty,3)", "(1,2)", "[1,2]", "1,2", r"\{2,1\}", r"\pm 1", r"(0,1)\cup(2,3)", "x+y=1"),
    *(r"\begin{pmatrix}1\\2\end{pmatrix}", "x=1,y=2", "2x+2y=2", "", "?", r"\foo", "1 2", "x+1"),
]
TEXTS = st.sampled_from(ANSWERS) | st.text(max_size=20)
GROUPS = st.lists(TEXTS, min_size=1, max_size=8)


class Oracle:
    """Stands in for math-verify: any verdict, the same in both directions."""

    def equal(self, pairs):
        return [
            zlib.crc32("|".join(sorted(pair)).encode("utf8", "replace")) % 3 == 0 for pair in pairs
        ]

    def unreadable(self, texts):
        return {text for text in texts if zlib.crc32(text.encode("utf8", "replace")) % 7 == 0}


def _judge(equivalence="math", tie="abstain", extractors=("boxed",)):
    judge = AnswerJudge(
        equivalence=equivalence,
        tie=tie,
        min_share=0.0,
        verify_timeout_s=1.0,
        verify_workers=1,
        verify_memory_mb=2048,
        extractors=extractors,
    )
    judge._verifier = Oracle()
    return judge


def _boxed(answers):
    return [f"\\boxed{{{answer}}}" for answer in answers]


@given(
    st.lists(TEXTS, min_size=1, max_size=8), st.randoms(), st.sampled_from(["abstain", "shortest"])
)
def test_votes_and_rewards_do_not_depend_on_the_order_of_the_samples(answers, random, tie):
    judge, order = _judge(tie=tie), list(range(len(answers)))
    random.shuffle(order)
    texts = _boxed(answers)
    mixed = [texts[place] for place in order]
    (vote,), (other,) = judge.votes([texts]), judge.votes([mixed])
    assert (vote.label, vote.share, vote.tie) == (other.label, other.share, other.tie)
    (rewards,) = judge.agreement([texts], [vote.label])
    assert judge.agreement([mixed], [vote.label]) == [[rewards[place] for place in order]]
    (support,) = judge.support([texts], [vote])
    assert judge.support([mixed], [other]) == [[support[place] for place in order]]


@given(GROUPS)
@settings(deadline=None)
def test_the_winners_and_nobody_else_agree_with_their_label(answers):
    judge = _judge()
    (vote,) = judge.votes([_boxed(answers)])
    (rewards,) = judge.agreement([_boxed(answers)], [vote.label])
    if vote.label is None:
        assert not any(rewards)
        return
    assert sum(rewards) == pytest.approx(vote.share * len(answers))
    winners = {cluster for cluster, reward in zip(vote.clusters, rewards, strict=True) if reward}
    assert len(winners) == 1


@given(TEXTS, TEXTS)
@settings(deadline=None)
def test_equality_is_symmetric_and_true_of_oneself(a, b):
    judge = _judge()
    assert judge.same([a], [b]) == judge.same([b], [a])
    if judge.same([a], [a]) == [0.0]:
        # No answer, or one that broke math-verify.
        assert canonical_key(a) is None or Oracle().unreadable([canonical_key(a).text])


@given(st.text(), st.text())
@settings(deadline=None)
def test_no_text_makes_anything_fail(a, b):
    groups = [[a, b, f"\\boxed{{{a}}}", f"#### {b}"], [b]]
    for equivalence, extractors in (
        ("math", ("boxed", "hashes", "phrase", "choice", "last_number")),
        ("raw", ("boxed",)),
    ):
        judge = _judge(equivalence, extractors=extractors)
        votes = judge.votes(groups)
        judge.agreement(groups, [b, a])
        judge.correctness(groups, [a, b])
        judge.support(groups, votes)
        judge.are_right([a, b], [b, a])


# Expressions as (LaTeX, LaTeX of the same in another form), always in brackets.
LEAVES = st.sampled_from(
    [("x", "x"), ("y", "y"), ("2", "2"), ("7", "7"), (r"\pi", r"\pi"), ("e", "e")]
)


def _combine(children):
    pairs = st.tuples(children, children)
    return st.one_of(
        pairs.map(lambda p: (f"({p[0][0]}+{p[1][0]})", f"({p[1][1]}+{p[0][1]})")),
        pairs.map(lambda p: (f"({p[0][0]}-{p[1][0]})", f"(-{p[1][1]}+{p[0][1]})")),
        pairs.map(lambda p: (f"{p[0][0]}\\cdot{p[1][0]}", f"{p[1][1]}\\cdot {p[0][1]}")),
        pairs.map(
            lambda p: (
                f"\\frac{{{p[0][0]}}}{{{p[1][0]}}}",
                f"\\frac{{3\\cdot{p[0][1]}}}{{3\\cdot{p[1][1]}}}",
            )
        ),
        children.map(lambda p: (f"({p[0]})^2", f"({p[1]})({p[1]})")),
        children.map(lambda p: (f"\\sqrt{{{p[0]}}}", f"({p[1]})^{{\\frac{{1}}{{2}}}}")),
        children.map(lambda p: (f"\\sin({p[0]})", f"(-\\sin(-({p[1]})))")),
        children.map(lambda p: (f"({p[0]})^{{-1}}", f"\\frac{{1}}{{({p[1]})}}")),
    )


EXPRESSIONS = st.recursive(LEAVES, _combine, max_leaves=8)


@given(EXPRESSIONS)
@settings(max_examples=300, deadline=None)
def test_two_forms_of_one_expression_are_never_told_apart(forms):
    one, other = (probe(text) for text in forms)
    assume(one is not None and other is not None)
    assert not one.differs(other)
    assert not other.differs(one)
    keys = [canonical_key(text) for text in forms]
    assert decides(*keys) is not False


@given(EXPRESSIONS)
@settings(max_examples=300, deadline=None)
def test_an_expression_differs_from_one_more_than_itself(forms):
    one, more = probe(forms[0]), probe(f"{forms[1]}+1")
    assume(one is not None and more is not None and abs(one.values[0]) < 1e6)
    assert one.differs(more)


ENDS = st.lists(st.integers(-9, 9), min_size=2, max_size=8, unique=True).filter(
    lambda e: len(e) % 2 == 0
)


@given(ENDS, st.randoms())
@settings(deadline=None)
def test_unions_of_intervals_may_come_in_any_order_and_in_pieces(ends, random):
    ends = sorted(ends)
    pieces = [f"({a},{b}]" for a, b in zip(ends[::2], ends[1::2], strict=True)]
    a, b = ends[0], ends[1]
    split = [f"({a},{a + (b - a) / 4}]", f"({a + (b - a) / 8},{b}]", *pieces[1:]]
    random.shuffle(split)
    one, other = canonical_key("\\cup".join(pieces)), canonical_key("\\cup".join(split))
    assert decides(one, other) is True
    assert decides(other, one) is True
    far = f",{ends[-1]}]"
    opened = canonical_key("\\cup".join(split).replace(far, far[:-1] + ")"))
    assert decides(one, opened) is False


def test_an_allowance_is_spent_by_slow_work_and_filled_by_time(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    allowance = Allowance(5.0)
    for _ in range(100):
        allowance.spend(0.1)  # ordinary
    assert not allowance.is_used_up
    for _ in range(5):
        allowance.spend(1.1)
    assert allowance.is_used_up
    clock[0] = 9.0
    assert not allowance.is_used_up
    allowance.spend(1.0)
    assert allowance.is_used_up
    clock[0] = 1_000.0
    assert not allowance.is_used_up
    allowance.spend(5.05)
    assert not allowance.is_used_up
    allowance.spend(0.2)
    assert allowance.is_used_up
