"""The benchmark of votes on a few built-in answers: what it reports adds up."""

from benchmarks.votes import BUILT_IN, is_consistent, make_groups, measure


def test_both_sides_get_the_same_groups_and_disagreements_are_listed():
    result = measure(BUILT_IN, count=48, group=4, algebra=0.5, workers=1, seed=1)
    assert (result["responses"], result["groups"]) == (48, 12)
    assert result["same_labels"] + len(result["disagreements"]) == result["consistent_groups"] <= 12
    assert result["same_labels"] >= 10
    assert result["our_math_verify_calls"] < result["thrifty_math_verify_calls"]
    assert result["thrifty_math_verify_calls"] < result["pairwise_math_verify_calls"]
    assert result["ratio"] > 0


def test_groups_are_a_function_of_the_seed_and_hold_right_and_wrong_answers():
    groups = make_groups(BUILT_IN, 20, 8, 0.3, seed=3)
    assert (
        groups == make_groups(BUILT_IN, 20, 8, 0.3, seed=3) != make_groups(BUILT_IN, 20, 8, 0.3, 4)
    )
    assert {len(group) for group in groups} == {8}
    assert any(len(set(group)) > 2 for group in groups)
    assert any(None in group for group in groups)


def test_verdicts_that_depend_on_the_direction_are_inconsistent():
    # math-verify takes x < 3 for (-oo, 3) in one direction only.
    assert not is_consistent([r"\boxed{x<3}", r"\boxed{(-\infty,3)}"])
    assert is_consistent([r"\boxed{0.5}", r"\boxed{\frac{1}{2}}", r"\boxed{7}"])
