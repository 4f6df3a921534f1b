"""Every cell of the paper's tables is a run that loads, fits its GPUs and can be launched."""

from itertools import product
from pathlib import Path

import pytest
import yaml

from launchers.bundle import make_bundle
from launchers.cluster import Cluster, load_cluster
from launchers.placement import Wish, place
from megatron_corew.config import Config
from megatron_corew.config_file import load_config
from megatron_corew.methods import METHODS
from megatron_corew.plan.gpus import gpu_named
from megatron_corew.plan.known_models import architecture_of
from megatron_corew.plan.planner import judge
from megatron_corew.plan.workload import workload

CONFIGS = Path(__file__).parents[2] / "configs"
PAPER = CONFIGS / "runs" / "paper"
H100 = gpu_named("h100-80gb")
# Tensor-parallel size of each model's layouts.
MODELS = {
    "qwen2.5-3b": 2,
    "qwen2.5-7b": 4,
    "qwen3-1.7b-base": 2,
    "qwen3-4b-base": 2,
    "qwen3-8b-base": 4,
    "llama-3.2-3b-instruct": 2,
}
# floor(questions / 128) batches, three epochs.
STEPS = {"math": 7500 // 128 * 3, "dapo": 14109 // 128 * 3, "open-rs": 6999 // 128 * 3}
LAYOUTS = {
    4: lambda teacher: Wish(),
    8: lambda teacher: Wish(teacher_servers=2 if teacher else 0),
    32: lambda teacher: (
        Wish(nodes=2, policy_nodes=1, teacher_nodes=1) if teacher else Wish(nodes=2, policy_nodes=2)
    ),
}


def cell(data: str, model: str, method: str, *more: str) -> Config:
    return load_config(
        PAPER / f"{data}_{model}.yaml", [str(CONFIGS / "methods" / f"{method}.yaml"), *more]
    )


def cluster_of(gpus: int) -> Cluster:
    cluster = load_cluster(CONFIGS / "clusters" / "slurm_pyxis_h100.yaml")
    return cluster.model_copy(update={"gpus_per_node": min(gpus, 8)})


def test_there_is_a_file_for_every_part_of_the_grid():
    assert {path.stem for path in (CONFIGS / "methods").glob("*.yaml")} == METHODS.keys()
    assert {path.stem for path in (CONFIGS / "models").glob("*.yaml")} == MODELS.keys()
    cells = {path.stem for path in PAPER.glob("*_*.yaml")}
    assert cells == {f"{data}_{model}" for data, model in product(STEPS, MODELS)}


def test_every_layout_sets_the_same_knobs_so_that_one_put_on_another_replaces_all_of_it():
    files = sorted((CONFIGS / "layouts").glob("*.yaml"))
    knobs = {
        path.stem: {(name, key) for name, section in values.items() for key in section}
        for path, values in ((path, yaml.safe_load(path.read_text())) for path in files)
    }
    assert len(knobs) == len(LAYOUTS) * len(set(MODELS.values()))
    assert len(set(map(frozenset, knobs.values()))) == 1, knobs


@pytest.mark.parametrize("data", STEPS)
def test_every_cell_has_the_papers_values_and_a_name_of_its_own(data):
    names = set()
    for model, method in product(MODELS, METHODS):
        config = cell(data, model, method)
        names.add(config.run.name)
        assert config.method == method
        assert config.run.steps == STEPS[data]
        assert config.model.path.lower() == f"models/{model}"
        assert f"data/{data}/" in config.data.train
        assert (config.rollout.prompts_per_step, config.rollout.samples_per_prompt) == (128, 8)
        assert config.rollout.max_response_tokens == 3072
        assert (config.optimizer.lr, config.optimizer.warmup_share) == (3e-6, 0.1)
        assert config.loss.aggregation == "seq_mean"
        assert (config.teacher.weight_start, config.teacher.weight_end) == (0.01, 1e-4)
        trains_teacher = method in ("co_rewarding_ii", "co_rewarding_iii", "frozen_teacher")
        assert config.run.seed == (1234 if trains_teacher else 1)
        assert config.kl_coef == (0.001 if trains_teacher else 0.005)
        assert config.parallel.processes == 4
    assert len(names) == len(MODELS) * len(METHODS)


@pytest.mark.parametrize("gpus", LAYOUTS)
@pytest.mark.parametrize("model", MODELS)
def test_every_run_fits_its_gpus_by_the_plan_and_its_job_can_be_written(gpus, model):
    layout = str(CONFIGS / "layouts" / f"gpus_{gpus}_tp{MODELS[model]}.yaml")
    cluster = cluster_of(gpus)
    for data, method in product(STEPS, METHODS):
        config = cell(data, model, method, layout)
        rollouts = config.rollout.prompts_per_step * config.rollout.samples_per_prompt
        assert rollouts % (config.parallel.data * config.parallel.micro_batch_rollouts) == 0
        placement = place(config, cluster, LAYOUTS[gpus](config.preset.needs_teacher))
        assert placement.nodes * cluster.gpus_per_node == gpus
        assert placement.shares_gpus == (gpus == 4)
        roles = [pool.role for pool in placement.pools]
        teacher = config.preset.needs_teacher and gpus > 4
        assert roles == (["policy", "teacher"] if teacher else ["policy"])
        assert (
            "torch.distributed.run" in make_bundle(config, cluster, placement).scripts["trainer.sh"]
        )
        own = None if placement.shares_gpus else gpus - config.parallel.processes
        plan = judge(config, architecture_of(config), H100, workload(config), server_gpus=own)
        assert plan.faults == ()
        assert plan.gpus == gpus


def test_the_released_codes_semantics_can_be_put_on_top():
    official = str(CONFIGS / "profiles" / "official.yaml")
    config = cell("math", "qwen3-8b-base", "co_rewarding_ii", official)
    assert config.loss.aggregation == "micro_batch_token_mean"
    assert config.teacher.weight_end == 1e-5


def test_a_file_given_later_wins_and_a_knob_wins_over_files():
    layout = str(CONFIGS / "layouts" / "gpus_32_tp4.yaml")
    config = cell("math", "qwen3-8b-base", "entropy", "parallel.data=2", layout)
    assert (config.parallel.tensor, config.parallel.data) == (4, 2)
    with pytest.raises(ValueError, match=r"no-such\.yaml"):
        cell("math", "qwen3-8b-base", "entropy", "no-such.yaml")
