"""The judge as the training loop uses it: votes, agreement, correctness."""

import random
import signal
import threading

import pytest

from megatron_corew.answers.judge import AnswerJudge


def _judge(equivalence="math", tie="abstain", min_share=0.0, extractors=("boxed",), timeout_s=20.0):
    return AnswerJudge(
        equivalence=equivalence,
        tie=tie,
        min_share=min_share,
        verify_timeout_s=timeout_s,
        verify_workers=1,
        verify_memory_mb=2048,
        extractors=extractors,
    )


@pytest.fixture(scope="module")
def judge():
    with _judge() as judge:
        yield judge


def _boxed(*answers):
    return [f"So it is \\boxed{{{answer}}}." for answer in answers]


def test_equivalent_spellings_vote_together(judge):
    group = _boxed("0.5", r"\frac{1}{2}", r"\dfrac12", "3", "3")
    (result,) = judge.votes([group])
    assert (result.label, result.share, result.tie) == ("0.5", 0.6, False)
    assert result.clusters == (0, 0, 0, 1, 1)
    assert judge.agreement([group], [result.label]) == [[1.0, 1.0, 1.0, 0.0, 0.0]]


def test_math_verify_joins_what_the_keys_leave_open(judge):
    group = _boxed(r"2\sqrt{2}", r"\sqrt{8}", r"\sqrt{7}", "x<3", r"(-\infty,3)")
    (result,) = judge.votes([group])
    assert result.clusters == (0, 0, 1, 2, 2)
    assert judge.agreement([group], [r"\sqrt8"]) == [[1.0, 1.0, 0.0, 0.0, 0.0]]


@pytest.mark.parametrize(("label", "answer"), [(r"(-\infty,3)", "x<3"), ("x<3", r"(-\infty,3)")])
def test_agreement_and_correctness_are_symmetric(judge, label, answer):
    assert judge.agreement([_boxed(answer)], [label]) == [[1.0]]
    assert judge.correctness([_boxed(answer)], [label]) == [[1.0]]


def test_the_label_is_the_gold_side_of_every_comparison(monkeypatch):
    judge, asked = _judge(), []

    class Spy:
        def equal(self, pairs):
            asked.extend(pairs)
            return [False] * len(pairs)

        def unreadable(self, texts):
            return set()

    monkeypatch.setattr(judge, "_verifier", Spy())
    judge.agreement([_boxed("y<1", "y<2")], ["y<3"])
    judge.correctness([_boxed("y<1", "y<2")], ["y<3"])
    golds = [pair[0] for pair in asked if "y<3" in pair]
    assert golds == ["y<3"] * 4


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0]])
def test_percent_has_one_reading_in_every_order(judge, order):
    texts = _boxed("50", r"50\%", "0.5")
    (result,) = judge.votes([[texts[place] for place in order]])
    clusters = dict(zip(order, result.clusters, strict=True))
    assert clusters[0] == clusters[1] != clusters[2]


@pytest.mark.parametrize(
    "answers", [["3", "3", "5", "5"], ["5", "5", "3", "3"], ["5", "3", "3", "5"]]
)
def test_a_tie_gives_the_same_result_in_every_order(judge, answers):
    (result,) = judge.votes([_boxed(*answers)])
    assert (result.label, result.share, result.tie) == (None, 0.5, True)
    (shortest,) = _judge(tie="shortest").votes([_boxed(*answers)])
    assert (shortest.label, shortest.tie) == ("3", True)


def test_votes_do_not_depend_on_the_order_of_the_samples(judge):
    answers = ["0.5", r"\frac12", r"\sqrt{8}", r"2\sqrt{2}", r"2\sqrt2", "C", r"\text{(C)}", "7"]
    texts = [*_boxed(*answers), "no box"]
    (plain,) = judge.votes([texts])
    for seed in range(5):
        order = random.Random(seed).sample(range(len(texts)), len(texts))
        (mixed,) = judge.votes([[texts[place] for place in order]])
        assert (mixed.label, mixed.share, mixed.tie) == (plain.label, plain.share, plain.tie)
        assert mixed.answers == tuple(plain.answers[place] for place in order)


@pytest.mark.parametrize("label", [None, "", " ", r"\foo", "?"])
def test_without_a_label_every_reward_is_zero(judge, label):
    group = [*_boxed("5", r"\foo", ""), "no box"]
    assert judge.agreement([group], [label]) == [[0.0] * 4]
    assert judge.correctness([group], [label]) == [[0.0] * 4]


def test_answers_that_cannot_be_read_give_no_label(judge):
    (result,) = judge.votes([[*_boxed(r"\foo", r"\foo", ""), "no box"]])
    assert (result.label, result.share, result.answers) == (None, 0.0, (None,) * 4)


def test_further_extractors_are_asked_in_their_order():
    judge = _judge(extractors=("boxed", "hashes", "last_number"))
    texts = [r"\boxed{4} #### 5", "#### 5 of 6", "it is 6.", r"\boxed{} #### 7", "none"]
    (result,) = judge.votes([texts])
    assert result.answers == ("4", "5 of 6", "6", "7", None)


def test_support_is_the_share_of_voters_with_the_same_answer(judge):
    voters = [*_boxed("0.5", r"\frac12", "3", "4"), "no box"]
    votes = judge.votes([voters, ["no box"]])
    groups = [[*_boxed("1/2", "3.0", "7"), "no box"], _boxed("1")]
    assert judge.support(groups, votes) == [[0.4, 0.2, 0.0, 0.0], [0.0]]
    raw = _judge("raw")
    assert raw.support(groups, raw.votes([voters, ["x"]])) == [[0.0] * 4, [0.0]]


def test_plain_answers_are_compared_as_in_votes_and_with_the_truth(judge):
    answers, others = ["0.5", r"\sqrt8", "(C)", None, None], ["1/2", r"2\sqrt2", "D", "1", None]
    assert judge.same(answers, others) == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert judge.are_right(answers, others) == [1.0, 1.0, 0.0, 0.0, 0.0]
    raw = _judge("raw")
    assert raw.same(["0.5", "1"], [r"\frac{1}{2}", "1"]) == [0.0, 1.0]
    assert raw.are_right(["0.5", None], [r"\frac{1}{2}", ""]) == [1.0, 0.0]


def test_what_breaks_math_verify_counts_as_no_answer():
    hostile = "7^{7^{7^{7^7}}}+x"
    with _judge(timeout_s=5.0) as judge:
        (result,) = judge.votes([_boxed(hostile, hostile, "x+y<1", hostile, "x+y<1")])
        assert result.clusters == (None, None, 0, None, 0)
        assert result.label == "x+y<1"
        assert judge.statistics()["unreadable"] == 1.0
        assert judge.agreement([_boxed(hostile)], [hostile]) == [[0.0]]


def test_a_whole_number_is_a_truth(judge):
    assert judge.correctness([_boxed("5", "5.0", "6")], [5]) == [[1.0, 1.0, 0.0]]
    assert judge.correctness([_boxed("142")], ["142.0"]) == [[1.0]]


def test_the_last_box_counts(judge):
    text = r"First I get \boxed{3}. Wait, recheck. The final answer is \boxed{4}."
    assert judge.correctness([[text], [text]], ["4", "3"]) == [[1.0], [0.0]]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (r"90^\circ", r"\frac{\pi}{2}"),
        (r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}"),
        ("E", "2.718281828"),
        ("2abc", "2"),
        ("5 2", "52"),
        ("(1,2)", "(2,1)"),
        (r"\pi", "3.14"),
    ],
)
def test_different_answers_get_no_reward(judge, a, b):
    assert judge.correctness([_boxed(a), _boxed(b)], [b, a]) == [[0.0], [0.0]]


def test_the_judge_works_in_a_thread(judge):
    rewards = []
    thread = threading.Thread(
        target=lambda: rewards.extend(judge.correctness([_boxed(r"\frac{1}{3}")], [r"\frac{1}{3}"]))
    )
    thread.start()
    thread.join()
    assert rewards == [[1.0]]


def test_a_pending_alarm_of_the_caller_is_left_alone(judge):
    rung = threading.Event()
    previous = signal.signal(signal.SIGALRM, lambda *_: rung.set())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        judge.agreement([_boxed(r"\sqrt{18}")], [r"3\sqrt{2}"])
        assert rung.wait(5.0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def test_rewards_are_never_fewer_or_more_than_responses(judge):
    groups = [_boxed("1", "2", "3"), [], _boxed("1")]
    assert [len(row) for row in judge.agreement(groups, ["1", "1", "1"])] == [3, 0, 1]
    for method in (judge.agreement, judge.correctness):
        with pytest.raises(ValueError, match=r"per group \(3\), got 1"):
            method(groups, ["1"])


@pytest.mark.parametrize(
    ("change", "knob"),
    [
        ({"equivalence": "exact"}, "answers.equivalence"),
        ({"verify_timeout_s": 0.0}, "answers.verify_timeout_s"),
        ({"verify_workers": 0}, "answers.verify_workers"),
        ({"verify_memory_mb": 0}, "answers.verify_memory_mb"),
    ],
)
def test_a_wrong_setting_is_refused_with_the_knob(change, knob):
    settings = {"equivalence": "math", "tie": "abstain", "min_share": 0.0}
    with pytest.raises(ValueError, match=knob):
        AnswerJudge(
            **{
                **settings,
                "verify_timeout_s": 1.0,
                "verify_workers": 1,
                "verify_memory_mb": 2048,
                "extractors": ("boxed",),
                **change,
            }
        )
