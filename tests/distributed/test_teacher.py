"""The sharded teacher and the checkpoint of a run, in real processes."""

from pathlib import Path

import pytest
import torch

from tests.distributed.launch import run_worker
from tests.models import save

# tensor, pipeline (x pieces per stage), data, distributed optimizer, dtype
ONE = (1, 1, 1, 0, "float32")
GRID = (2, 2, 1, 0, "float32")
SHARDED = (1, 1, 2, 1, "float32")
SHARDED_BF16 = (1, 1, 2, 1, "bfloat16")
TENSOR_BF16 = (2, 1, 1, 0, "bfloat16")
INTERLEAVED = (1, "2x2", 1, 0, "float32")


Weights = dict[str, dict[str, torch.Tensor]]


class Runs:
    """Worker runs of this module; each is run once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.done: dict[tuple, tuple[dict, Weights]] = {}

    def get(self, mode: str, layout: tuple, *, saved_by: tuple = ()) -> tuple[dict, Weights]:
        """What a worker measured, and the student's and teacher's weights at its end."""
        key = (mode, layout, saved_by)
        if key not in self.done:
            names = ["_".join(map(str, part)) for part in (layout, saved_by or layout)]
            out = self.root / f"{mode}_{names[0]}_from_{names[1]}.json"
            folders = [str(self.root / "model"), str(self.root / f"saved_{names[1]}")]
            measured = run_worker(
                "teacher_worker",
                *(mode, *map(str, layout), *folders),
                processes=layout[0] * int(str(layout[1])[0]) * layout[2],
                out=out,
            )
            self.done[key] = measured, torch.load(out.with_suffix(".pt"))
        return self.done[key]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    root = tmp_path_factory.mktemp("teacher")
    save("qwen3_tied", root / "model")
    return Runs(root)


def largest_difference(first: dict, second: dict) -> float:
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first)


@pytest.mark.parametrize("layout", [GRID, SHARDED], ids=["tp2_pp2", "dp2_distributed"])
def test_a_sharded_teacher_equals_that_of_one_process(runs, layout):
    _, alone = runs.get("follow", ONE)
    _, parts = runs.get("follow", layout)
    assert largest_difference(alone["student"], parts["student"]) == 0.0
    assert largest_difference(alone["teacher"], parts["teacher"]) <= 1e-7
    # The teacher must be somewhere between its start and the student, not a copy of either.
    assert largest_difference(parts["teacher"], parts["student"]) > 1e-3


RESUMED = {
    "tp2_pp2": GRID,
    "dp2_distributed_bf16": SHARDED_BF16,
    "tp2_bf16": TENSOR_BF16,
    "pp2_interleaved": INTERLEAVED,
}


@pytest.mark.parametrize("layout", RESUMED.values(), ids=list(RESUMED))
def test_a_resumed_run_equals_an_uninterrupted_one_to_the_bit(runs, layout):
    whole, whole_weights = runs.get("save", layout)
    rest, rest_weights = runs.get("resume", layout, saved_by=layout)
    assert rest["losses"] == whole["losses"][3:]
    assert rest["updates"] == whole["updates"] == 6
    for role in ("student", "teacher"):
        assert largest_difference(whole_weights[role], rest_weights[role]) == 0.0
    assert largest_difference(rest_weights["student"], rest_weights["teacher"]) > 0.0


@pytest.mark.parametrize("layout", RESUMED.values(), ids=list(RESUMED))
def test_installing_the_teacher_leaves_the_policy_bit_identical(runs, layout):
    measured, _ = runs.get("save", layout)
    assert measured["untouched"]


@pytest.mark.parametrize("saved_by", [GRID, INTERLEAVED], ids=["tp2_pp2", "pp2_interleaved"])
def test_a_run_resumes_under_another_layout(runs, saved_by):
    whole, whole_weights = runs.get("save", saved_by)
    rest, rest_weights = runs.get("resume", (1, 2, 1, 0, "float32"), saved_by=saved_by)
    assert rest["losses"] == [pytest.approx(x, rel=1e-5, abs=1e-5) for x in whole["losses"][3:]]
    assert largest_difference(whole_weights["teacher"], rest_weights["teacher"]) < 1e-4


@pytest.fixture(scope="module")
def overlapping(tmp_path_factory: pytest.TempPathFactory) -> dict:
    root = tmp_path_factory.mktemp("overlap")
    save("qwen3_untied", root / "model")
    return run_worker(
        "overlap_worker", str(root / "model"), processes=2, out=root / "measured.json"
    )


def test_the_teacher_is_whole_on_every_rank_while_gathers_are_stale_or_under_way(overlapping):
    assert overlapping["buckets"] > 2
    assert overlapping["whole"]


def test_installing_leaves_pending_gathers_pending(overlapping):
    assert overlapping["flags_kept"]


def test_installing_between_steps_does_not_change_training_to_the_bit(overlapping):
    assert overlapping["losses"]["with"] == overlapping["losses"]["without"]


def test_installing_between_forward_and_backward_is_refused(overlapping):
    assert overlapping["refused"]
