"""Votes: counts, ties, shares and spellings, without any mathematics."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_corew.answers.voting import Components, vote


def _vote(answers, tie="abstain", min_share=0.0):
    return vote(answers, answers, tie=tie, min_share=min_share)


def test_the_most_frequent_answer_wins_with_its_share_of_all_responses():
    result = _vote(["3", None, "5", "5"])
    assert (result.label, result.share, result.tie) == ("5", 0.5, False)
    assert result.clusters == (0, None, 1, 1)


def test_a_group_without_an_answer_has_no_label():
    result = _vote([None, None])
    assert (result.label, result.share, result.tie) == (None, 0.0, False)
    assert _vote([]).label is None


@pytest.mark.parametrize(
    ("tie", "label", "reversed_label"),
    [("abstain", None, None), ("shortest", "5", "5"), ("first", "10", "5")],
)
def test_a_tie_follows_its_rule_and_is_marked(tie, label, reversed_label):
    answers = ["10", "10", "5", "5"]
    result = _vote(answers, tie)
    assert (result.label, result.share, result.tie) == (label, 0.5, True)
    assert _vote(answers[::-1], tie).label == reversed_label


def test_a_share_below_the_minimum_gives_no_label():
    answers = ["1", "2", "3", "4"]
    assert _vote(answers, "shortest").label == "1"
    assert _vote(answers, "shortest", min_share=0.25).label == "1"
    assert _vote(answers, "shortest", min_share=0.26).label is None


def test_the_label_is_the_shortest_spelling_of_the_winner():
    result = vote(["1/2", "0.5", ".50", "3"], ["h", "h", "h", "t"], tie="abstain", min_share=0.0)
    assert result.label == ".50"


def test_an_unknown_tie_rule_is_refused_with_the_knob():
    with pytest.raises(ValueError, match=r"answers\.tie"):
        _vote(["1"], "random")


def test_keys_are_joined_through_a_common_neighbour():
    edges = {("a", "b"), ("b", "c")}
    root = Components("acbd", lambda x, y: (x, y) in edges or (y, x) in edges).root
    assert root("a") == root("b") == root("c") != root("d")


def test_joined_keys_are_not_compared_again():
    asked = []
    Components("abc", lambda x, y: asked.append((x, y)) or True)
    assert asked == [("a", "b"), ("a", "c")]


GRAPHS = st.tuples(
    st.lists(st.sampled_from("abcdef") | st.none(), min_size=1, max_size=10),
    st.sets(st.tuples(st.sampled_from("abcdef"), st.sampled_from("abcdef"))),
    st.randoms(),
)


@given(GRAPHS)
def test_votes_do_not_depend_on_the_order_of_the_samples(graph):
    answers, edges, random = graph
    late = {"a", "b", "c"}
    order = list(range(len(answers)))
    random.shuffle(order)
    shuffled = [answers[place] for place in order]

    def elect(samples, tie):
        present = [sample for sample in samples if sample is not None]
        # Half of the verdicts come late, as math-verify's do.
        joined = Components(
            present, lambda x, y: None if {x, y} & late else (x, y) in edges or (y, x) in edges
        )
        while questions := joined.questions():
            for x, y in questions:
                if (x, y) in edges or (y, x) in edges:
                    joined.join(x, y)
        clusters = [None if sample is None else joined.root(sample) for sample in samples]
        return vote(samples, clusters, tie=tie, min_share=0.0)

    for tie in ("abstain", "shortest"):
        plain, mixed = elect(answers, tie), elect(shuffled, tie)
        assert (plain.label, plain.share, plain.tie) == (mixed.label, mixed.share, mixed.tie)
        together = [plain.clusters[i] == plain.clusters[j] for i in order for j in order]
        assert together == [x == y for x in mixed.clusters for y in mixed.clusters]
