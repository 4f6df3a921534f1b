"""The sharded teacher and the checkpoint of a run, in real processes."""

from pathlib import Path

import pytest
import torch

from tests.distributed.launch import run_worker
from tests.models import save

# tensor, pipeline, data, distributed optimizer, dtype
ONE = (1, 1, 1, 0, "float32")
GRID = (2, 2, 1, 0, "float32")
SHARDED = (1, 1, 2, 1, "float32")
SHARDED_BF16 = (1, 1, 2, 1, "bfloat16")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("teacher")
    save("qwen3_tied", root / "model")
    return root


def run(root: Path, mode: str, layout: tuple, *, saved: str = "none") -> tuple[dict, dict]:
    out = root / f"{mode}_{'_'.join(map(str, layout))}_{saved}.json"
    arguments = [mode, *map(str, layout), str(root / "model"), str(root / saved)]
    processes = layout[0] * layout[1] * layout[2]
    measured = run_worker("teacher_worker", *arguments, processes=processes, out=out)
    return measured, torch.load(out.with_suffix(".pt"))


def largest_difference(first: dict, second: dict) -> float:
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first)


@pytest.mark.parametrize("layout", [GRID, SHARDED], ids=["tp2_pp2", "dp2_distributed"])
def test_a_sharded_teacher_equals_that_of_one_process(root, layout):
    _, alone = run(root, "follow", ONE)
    _, parts = run(root, "follow", layout)
    assert largest_difference(alone["student"], parts["student"]) == 0.0
    assert largest_difference(alone["teacher"], parts["teacher"]) <= 1e-7
    # The teacher must be somewhere between its start and the student, not a copy of either.
    assert largest_difference(parts["teacher"], parts["student"]) > 1e-3


@pytest.mark.parametrize("layout", [GRID, SHARDED_BF16], ids=["tp2_pp2", "dp2_distributed_bf16"])
def test_a_resumed_run_equals_an_uninterrupted_one_to_the_bit(root, layout):
    name = "_".join(map(str, layout))
    whole, whole_weights = run(root, "save", layout, saved=name)
    rest, rest_weights = run(root, "resume", layout, saved=name)
    assert rest["losses"] == whole["losses"][3:]
    assert rest["updates"] == whole["updates"] == 6
    for role in ("student", "teacher"):
        assert largest_difference(whole_weights[role], rest_weights[role]) == 0.0
    assert largest_difference(rest_weights["student"], rest_weights["teacher"]) > 0.0


def test_installing_the_teacher_leaves_the_policy_bit_identical(root):
    for layout in (ONE, SHARDED_BF16):
        measured, _ = run(root, "save", layout, saved=f"again_{layout[2]}")
        assert measured["untouched"]


def test_a_run_resumes_under_another_layout(root):
    whole, whole_weights = run(root, "save", GRID, saved="reshard")
    rest, rest_weights = run(root, "resume", (1, 2, 1, 0, "float32"), saved="reshard")
    assert rest["losses"] == [pytest.approx(x, rel=1e-5, abs=1e-5) for x in whole["losses"][3:]]
    assert largest_difference(whole_weights["teacher"], rest_weights["teacher"]) < 1e-4
