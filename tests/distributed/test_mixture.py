"""Models with experts: every layout computes the same, the teacher and checkpoints follow."""

import json
from pathlib import Path

import pytest
import torch

from checkpoint_tools.hf_folder import HfReader
from checkpoint_tools.weight_map.table import weight_table
from tests.distributed.launch import run_worker
from tests.models import MIXTURES, save

ONE: dict = {}
EXPERT = {"data": 2, "expert": 2, "distributed_optimizer": True}
LAYOUTS = {
    "ep2_distributed": EXPERT,
    # Two tensor-parallel ranks share the attention, and each holds half of the experts whole.
    "tp2_ep2": {"tensor": 2, "sequence": True, "expert": 2},
    "ep2": {"data": 2, "expert": 2},
    "tp2": {"tensor": 2, "sequence": True},
    "pp2": {"pipeline": 2},
    # Each expert is on two ranks: its gradient and its optimizer shards have a group of their own.
    "tp2_dp2_ep2_distributed": EXPERT | {"tensor": 2, "sequence": True},
}
QUICK = ("ep2_distributed", "tp2_ep2")


class Runs:
    """Worker runs of this module; each is run once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.done: dict[str, tuple[dict, dict]] = {}

    def get(self, mode: str, knobs: dict, *, saved_by: dict | None = None) -> tuple[dict, dict]:
        """What a worker measured, and the student's and teacher's weights at its end."""
        name, source = (
            "_".join(f"{key}-{value}" for key, value in part.items()) or "one"
            for part in (knobs, knobs if saved_by is None else saved_by)
        )
        key = f"{mode}_{name}_from_{source}"
        if key not in self.done:
            out = self.root / f"{key}.json"
            measured = run_worker(
                "mixture_worker",
                *(json.dumps(knobs), str(self.root), str(self.root / f"saved_{source}"), mode),
                processes=knobs.get("tensor", 1) * knobs.get("pipeline", 1) * knobs.get("data", 1),
                out=out,
            )
            self.done[key] = measured, torch.load(out.with_suffix(".pt"))
        return self.done[key]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    root = tmp_path_factory.mktemp("mixture")
    for family in MIXTURES:
        save(family, root / family)
    return Runs(root)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in LAYOUTS
    ],
)
def layout(request: pytest.FixtureRequest) -> dict:
    return LAYOUTS[request.param]


def largest_difference(first: dict, second: dict) -> float:
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def check_against_hugging_face(measured: dict, root: Path) -> None:
    for family in MIXTURES:
        assert measured[family]["logits"] <= 5e-6, family
        assert measured[family]["scores"] <= 5e-6, family
        assert measured[family]["exported"], family
        table = weight_table(HfReader(root / family).architecture)
        assert measured[family]["names"] == [name for entry in table for name in entry.hf_names]


def test_one_process_gives_hugging_face_logits_and_gives_its_weights_back(runs):
    check_against_hugging_face(runs.get("measure", ONE)[0], runs.root)


def test_logits_and_exported_weights_are_hugging_face_ones(runs, layout):
    check_against_hugging_face(runs.get("measure", layout)[0], runs.root)


def test_ten_training_steps_agree_with_one_process(runs, layout):
    alone, parts = runs.get("measure", ONE)[0], runs.get("measure", layout)[0]
    for family in MIXTURES:
        one, many = alone[family], parts[family]
        assert many["losses"] == pytest.approx(one["losses"], abs=1e-5, rel=1e-5), family
        assert many["grad_norms"] == pytest.approx(one["grad_norms"], rel=1e-5), family
        assert many["weight_sums"] == pytest.approx(one["weight_sums"], rel=1e-5), family


def test_the_teacher_equals_that_of_one_process(runs, layout):
    _, alone = runs.get("measure", ONE)
    _, parts = runs.get("measure", layout)
    assert largest_difference(alone["student"], parts["student"]) == 0.0
    assert largest_difference(alone["teacher"], parts["teacher"]) <= 1e-7
    # The teacher must be somewhere between its start and the student, not a copy of either.
    assert largest_difference(parts["teacher"], parts["student"]) > 1e-3


RESUMED = [
    pytest.param(EXPERT, id="ep2_distributed"),
    pytest.param(EXPERT | {"dtype": "bfloat16"}, id="ep2_distributed_bf16", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("knobs", RESUMED)
def test_a_resumed_run_equals_an_uninterrupted_one_to_the_bit(runs, knobs):
    whole, whole_weights = runs.get("save", knobs)
    rest, rest_weights = runs.get("resume", knobs, saved_by=knobs)
    assert rest["run"]["losses"] == whole["run"]["losses"][3:]
    for role in ("student", "teacher"):
        assert largest_difference(whole_weights[role], rest_weights[role]) == 0.0
    assert whole["run"]["untouched"]
    assert rest["run"]["untouched"]


@pytest.mark.parametrize(
    "knobs",
    [
        pytest.param(ONE, id="one_process"),
        pytest.param(LAYOUTS["tp2"], id="tp2", marks=pytest.mark.slow),
        pytest.param(LAYOUTS["tp2_ep2"], id="tp2_ep2", marks=pytest.mark.slow),
    ],
)
def test_a_run_under_expert_parallelism_resumes_under_another_layout(runs, knobs):
    whole, whole_weights = runs.get("save", EXPERT)
    rest, rest_weights = runs.get("resume", knobs, saved_by=EXPERT)
    expected = [pytest.approx(pair, rel=1e-5, abs=1e-5) for pair in whole["run"]["losses"][3:]]
    assert rest["run"]["losses"] == expected
    assert largest_difference(whole_weights["teacher"], rest_weights["teacher"]) < 1e-5
