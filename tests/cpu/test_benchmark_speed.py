"""The benchmarks of packing and of the teacher's update run, and their figures add up."""

import pytest
import torch

from benchmarks import ema, packing

SMALL = {"ROWS": 8, "PROMPT": 4, "LONGEST": 16, "ROWS_PADDED": 2, "BUDGET": 40, "ROUNDS": 1}


def test_packing_computes_true_tokens_only_and_sorting_pads_less_than_random_order(
    tmp_path, monkeypatch
):
    for name, value in SMALL.items():
        monkeypatch.setattr(packing, name, value)
    folder = packing.model_folder(tmp_path / "model")
    found = packing.measure(folder, packing.Mix(median=4.0, spread=1.0))
    computed = found["tokens_with_padding"]
    assert computed["packed"] == found["tokens"] < computed["sorted"] < computed["random"]
    speed = found["tokens_per_second"]
    assert found["packed_over_random"] == pytest.approx(speed["packed"] / speed["random"], rel=0.05)


def test_the_update_is_compared_with_a_copy_of_the_bytes_it_moves():
    row = ema.measure(
        torch.bfloat16, compiled=False, elements=1 << 16, repeats=2, device=torch.device("cpu")
    )
    assert row["bytes_per_element"] == 16
    assert row["of_copy"] > 0
