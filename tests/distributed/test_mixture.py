"""Models with experts: every layout computes the same, the teacher and checkpoints follow."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from checkpoint_tools.hf_folder import HfReader
from checkpoint_tools.weight_map.table import weight_table
from megatron_corew.mcore.model import build_model
from megatron_corew.mcore.parallel import Layout, parallel_world
from megatron_corew.mcore.weights import global_parameters
from tests.distributed.launch import run_worker
from tests.distributed.parts import config_for
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
QUICK = ("ep2_distributed", "tp2_ep2", "tp2")


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


GOLDEN = Path(__file__).parents[1] / "golden" / "megatron_names.json"
CHECKPOINT_KEYS = {
    case["name"]: set(case["checkpoint_keys"])
    for case in json.loads(GOLDEN.read_text())["cases"]
    if "checkpoint_keys" in case
}


@pytest.mark.parametrize(
    ("family", "recorded"), [(MIXTURES[0], "te moe grouped"), ("llama32_tied", "te tie")]
)
def test_checkpoints_have_the_keys_of_transformer_engines_specification(tmp_path, family, recorded):
    folder = save(family, tmp_path)
    config = config_for(str(folder))
    with parallel_world(config.parallel, seed=0) as layout:
        model = build_model(HfReader(folder).architecture, config, layout)
        keys = {state.key for state in model.sharded_state_dict().values()}
    head_norms = {f"decoder.layers.self_attention.{part}_layernorm.weight" for part in "qk"}
    weights = {key for key in keys if "_extra_state" not in key}
    # The recorded models have no head norms.
    assert weights - head_norms == CHECKPOINT_KEYS[recorded]


class GroupedExperts(torch.nn.Module):
    """The parameter names of Transformer Engine's grouped experts, for two experts."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(num_layers=8, num_moe_experts=6)
        self.decoder = torch.nn.Module()
        self.decoder.layers = torch.nn.ModuleList([torch.nn.Module(), torch.nn.Module()])
        for number, layer in enumerate(self.decoder.layers):
            layer.layer_number = 7 + number  # Megatron counts from 1: the last two of eight.
        mlp = self.decoder.layers[1].mlp = torch.nn.Module()
        mlp.experts = torch.nn.Module()
        mlp.experts.linear_fc1 = torch.nn.Module()
        mlp.experts.linear_fc1.weight0 = torch.nn.Parameter(torch.zeros(1))
        mlp.experts.linear_fc1.weight1 = torch.nn.Parameter(torch.zeros(1))


def test_grouped_experts_are_found_by_their_numbers_in_the_whole_model():
    names = {"tensor_rank": 0, "tensor_size": 1, "data_rank": 2, "data_size": 3}
    names |= {"pipeline_rank": 3, "pipeline_size": 4, "expert_rank": 2, "expert_size": 3}
    names |= {"context_rank": 0, "context_size": 1}
    found = global_parameters([GroupedExperts()], Layout(**names, sequence_parallel=False))
    prefix = "decoder.layers.7.mlp.experts.local_experts"
    assert list(found) == [f"{prefix}.{expert}.linear_fc1.weight" for expert in (4, 5)]


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
