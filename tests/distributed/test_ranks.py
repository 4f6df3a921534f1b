"""What one rank learns, and what fails on one rank, reaches all of them."""

from tests.distributed.launch import run_worker


def test_results_and_errors_of_one_rank_reach_all_ranks(tmp_path):
    measured = run_worker("ranks_worker", processes=2, out=tmp_path / "out.json")
    assert measured["shared"] == [{"rank": 0}] * 2
    assert measured["value_error"] == ["ValueError: a knob"] * 2
    assert measured["os_error"] == ["RuntimeError: a file"] * 2
