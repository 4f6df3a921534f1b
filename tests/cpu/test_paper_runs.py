"""Every cell of the paper's tables is a run that loads, fits its GPUs and can be launched."""

from itertools import product
from pathlib import Path

import pytest

from launchers.bundle import make_bundle
from launchers.cluster import Cluster, load_cluster
from launchers.placement import Wish, place
from megatron_corew.config import Config
from megatron_corew.config_file import load_config
from megatron_corew.methods import METHODS

CONFIGS = Path(__file__).parents[2] / "configs"
PAPER = CONFIGS / "runs" / "paper"
# Query heads, key/value groups and layers, as the models' config.json has them.
SHAPES = {
    "qwen2.5-3b": (16, 2, 36),
    "qwen2.5-7b": (28, 4, 28),
    "qwen3-1.7b-base": (16, 8, 28),
    "qwen3-4b-base": (32, 8, 36),
    "qwen3-8b-base": (32, 8, 36),
    "llama-3.2-3b-instruct": (24, 8, 28),
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


def tensor_of(model: str) -> int:
    return 4 if model in ("qwen2.5-7b", "qwen3-8b-base") else 2


def cluster_of(gpus: int) -> Cluster:
    cluster = load_cluster(CONFIGS / "clusters" / "slurm_pyxis_h100.yaml")
    return cluster.model_copy(update={"gpus_per_node": min(gpus, 8)})


def test_there_is_a_file_for_every_part_of_the_grid():
    assert {path.stem for path in (CONFIGS / "methods").glob("*.yaml")} == METHODS.keys()
    assert {path.stem for path in (CONFIGS / "models").glob("*.yaml")} == SHAPES.keys()
    cells = {path.stem for path in PAPER.glob("*_*.yaml")}
    assert cells == {f"{data}_{model}" for data, model in product(STEPS, SHAPES)}


@pytest.mark.parametrize("data", STEPS)
def test_every_cell_has_the_papers_values_and_a_name_of_its_own(data):
    names = set()
    for model, method in product(SHAPES, METHODS):
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
    assert len(names) == len(SHAPES) * len(METHODS)


@pytest.mark.parametrize("gpus", LAYOUTS)
@pytest.mark.parametrize("model", SHAPES)
def test_every_model_fits_every_layout_and_its_job_can_be_written(gpus, model):
    heads, groups, _ = SHAPES[model]
    layout = str(CONFIGS / "layouts" / f"gpus_{gpus}_tp{tensor_of(model)}.yaml")
    for data, method in product(STEPS, METHODS):
        config = cell(data, model, method, layout)
        assert heads % config.parallel.tensor == groups % config.parallel.tensor == 0
        rollouts = config.rollout.prompts_per_step * config.rollout.samples_per_prompt
        assert rollouts % (config.parallel.data * config.parallel.micro_batch_rollouts) == 0
        cluster = cluster_of(gpus)
        placement = place(config, cluster, LAYOUTS[gpus](config.preset.needs_teacher))
        assert placement.nodes * cluster.gpus_per_node == gpus
        assert placement.shares_gpus == (gpus == 4)
        assert (config.servers.gpu_memory_share < 0.5) == placement.shares_gpus
        roles = [pool.role for pool in placement.pools]
        teacher = config.preset.needs_teacher and gpus > 4
        assert roles == (["policy", "teacher"] if teacher else ["policy"])
        assert (
            "torch.distributed.run" in make_bundle(config, cluster, placement).scripts["trainer.sh"]
        )


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
