"""Ranks without a judge ask the same rounds of questions as the one that has it."""

from tests.distributed.launch import run_worker


def test_all_ranks_ask_and_train_alike(tmp_path):
    first, second = run_worker("gather_worker", processes=2, out=tmp_path / "out.json")
    assert first == second
    assert first["rounds"] == [0, 0, 1, 1, 2, 2] * 2
    assert first["trained"] == ["1.2a", "1.2b"] * 2
    assert first["events"].count("policy answers") == 3
