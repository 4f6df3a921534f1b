"""What a run needs before it runs: counts by hand, published models, the paper's setting."""

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from megatron_corew.cli import app
from megatron_corew.plan.activations import layer_bytes, layers_in_flight
from megatron_corew.plan.generation import cache_bytes_per_token, decode_step_s
from megatron_corew.plan.known_models import architecture_of, known_configs
from megatron_corew.plan.memory import peak_memory, static_bytes
from megatron_corew.plan.parameters import stage_parameters, whole_model
from megatron_corew.plan.planner import judge, layouts, search
from megatron_corew.plan.step_time import phases
from megatron_corew.plan.workload import forward_flops, workload
from tests.cpu.plan_cases import H100, config_for, qwen3_8b, servers_of

GOLDEN = Path(__file__).parents[1] / "golden" / "hf_configs"
RUN = Path(__file__).parents[2] / "configs" / "runs" / "math_qwen3_8b.yaml"
PAPER_8B = RUN.parent / "paper" / "math_qwen3-8b-base.yaml"
MODEL_FILES = {file.stem: file for file in (RUN.parents[1] / "models").glob("*.yaml")}
PUBLISHED = {
    name.partition("/")[2]: fact["parameters"]
    for fact in (json.loads(file.read_text()) for file in GOLDEN.glob("*.json"))
    for name in fact["models"]
}


def test_the_known_models_are_the_published_ones():
    for file in GOLDEN.glob("*.json"):
        fact = json.loads(file.read_text())
        for name in fact["models"]:
            assert known_configs()[name.partition("/")[2].lower()] == fact["config"]


@pytest.mark.parametrize("model", PUBLISHED)
def test_a_model_has_as_many_parameters_as_its_card_says(model):
    assert whole_model(architecture_of(config_for(model))).total == PUBLISHED[model]


@pytest.mark.parametrize("tensor", [1, 2, 4])
@pytest.mark.parametrize("pipeline", [1, 2, 4])
def test_the_ranks_of_a_replica_hold_the_model_once(tensor, pipeline):
    config = qwen3_8b(tensor=tensor, pipeline=pipeline)
    architecture = architecture_of(config)
    stages = [stage_parameters(architecture, config.parallel, s) for s in range(pipeline)]
    # What every tensor-parallel rank holds whole: two norms and two head norms of 36 layers, and
    # the last norm.
    copied = (36 * (2 * 4096 + 2 * 128) + 4096) * (tensor - 1)
    assert tensor * sum(stage.total for stage in stages) == 8_190_735_360 + copied


def test_expert_parallelism_shares_the_experts_and_nothing_else():
    parts = {}
    for expert in (1, 8):
        config = config_for("Qwen3-30B-A3B", data=8, expert=expert)
        parts[expert] = stage_parameters(architecture_of(config), config.parallel, 0)
    # 48 layers x 128 experts x three matrices of 2,048 x 768.
    assert parts[1].experts == 48 * 128 * 3 * 2048 * 768
    assert parts[8].experts == parts[1].experts / 8
    assert parts[8].dense == parts[1].dense


def test_static_bytes_of_the_8b_model_by_hand():
    config = qwen3_8b(data=4, distributed_optimizer=True)
    p = 8_190_735_360
    # bfloat16 weights; float32 gradients; main, two moments over 4; teacher and residual over 4.
    expected = (2 * p, 4 * p, 12 * p / 4, 8 * p / 4)
    assert static_bytes(config, architecture_of(config), 0) == expected
    # In float32 the parameters are their own main ones.
    exact = config.model_copy(
        update={"model": config.model.model_copy(update={"dtype": "float32"})}
    )
    assert static_bytes(exact, architecture_of(exact), 0)[::2] == (4 * p, 8 * p / 4)
    frozen = config_for("Qwen3-8B-Base", "co_rewarding_i", data=4, distributed_optimizer=True)
    assert static_bytes(frozen, architecture_of(frozen), 0)[3] == 4 * p / 4
    alone = frozen.model_copy(update={"loss": frozen.loss.model_copy(update={"kl_coef": 0.0})})
    assert static_bytes(alone, architecture_of(alone), 0)[3] == 0


def test_a_layers_activations_by_hand():
    config = qwen3_8b(tensor=4, sequence=True)
    architecture = architecture_of(config)
    layer = layer_bytes(architecture, config.parallel, tokens=1000, width=1000, element=2)
    # Over 4 ranks: hidden 4,096 / 4, queries 1,024, keys 256, inner 3,072; bfloat16.
    hidden = 4 * 2 * 4096 / 4
    attention = 2 * (1024 + 2 * 256) + 2 * 1024 + 2 * 256 + 2 * 1024 + 4 * 8 + 2 * 1024
    sines = 4 * 2 * 128
    feed_forward = 5 * 2 * 3072
    assert layer.kept("none") == 1000 * (hidden + attention + sines + feed_forward)
    assert layer.kept("selective") == 1000 * (hidden + attention + sines)
    assert layer.kept("full") == 1000 * 2 * 4096 / 4
    assert layer.made_again("full") == layer.kept("none") - layer.kept("full")


@pytest.mark.parametrize(
    ("stage", "pieces", "micro_batches", "expected"),
    [
        (0, 1, 8, 4 * 4),  # four in flight on the first of four stages
        (3, 1, 8, 4 * 1),  # one on the last
        (0, 1, 2, 4 * 2),  # no more than there are
        (0, 2, 8, 4 / 2 * 11),  # interleaved: 2 x 3 + 4 pieces ahead, and the one at work
    ],
)
def test_layers_in_flight_by_hand(stage, pieces, micro_batches, expected):
    found = layers_in_flight(4, pipeline=4, stage=stage, pieces=pieces, micro_batches=micro_batches)
    assert found == expected


def test_a_forward_pass_costs_two_flops_per_weight_and_token():
    config = qwen3_8b()
    work = workload(config, response_tokens=1000)
    flops = forward_flops(architecture_of(config), work)
    embeddings = 2 * 151_936 * 4096
    norms = 36 * (2 * 4096 + 2 * 128) + 4096
    assert flops.dense == 2 * (8_190_735_360 - embeddings - norms) * (256 + 1000)
    assert flops.output == 2 * 151_936 * 4096 * 1000
    assert flops.attention == 2 * 36 * 4096 * 1256**2


def test_decoding_reads_weights_and_cache_once_per_token():
    config = qwen3_8b()
    architecture = architecture_of(config)
    # 36 layers x 8 heads x 128 x keys and values x 2 bytes.
    assert cache_bytes_per_token(architecture, 1) == 147_456
    assert cache_bytes_per_token(architecture, 16) == 147_456 / 8  # heads are not cut
    one = decode_step_s(architecture, servers_of(1, 1), H100, sequences=1, context=0)
    norms, embedding = 36 * (2 * 4096 + 2 * 128) + 4096, 151_936 * 4096
    read = 2 * (8_190_735_360 - norms - embedding)
    assert one == pytest.approx(read / (3.35e12 * 0.6))
    full = decode_step_s(architecture, servers_of(1, 1), H100, sequences=100, context=1000)
    assert full - one == pytest.approx(100 * 1000 * 147_456 / (3.35e12 * 0.6))


def test_training_of_a_dense_model_comes_out_at_the_published_utilisation():
    # Megatron-LM's README: 41 to 48 % of the peak in BF16 on H100.
    config = qwen3_8b(
        tensor=2, data=4, sequence=True, distributed_optimizer=True, tokens_per_micro_batch=8192
    )
    architecture, work = architecture_of(config), workload(config)
    spent = phases(config, architecture, H100, servers_of(8, 1), work)["training"]
    flops = forward_flops(architecture, work)
    useful = 3 * (flops.dense + flops.attention + flops.output) * work.rollouts
    assert 0.41 <= useful / (spent * 8 * H100.bf16) <= 0.48


def test_the_papers_setting_fits_four_h100():
    config = qwen3_8b()
    plans = search(config, architecture_of(config), H100, workload(config), gpus=4)
    assert {plan.servers.tensor for plan in plans} == {1, 2, 4}
    for plan in plans:
        assert plan.gpus == 4
        assert plan.memory.total <= H100.memory
        # What is proposed is what was judged.
        own = None if plan.shared else plan.servers.gpus
        again = judge(plan.config, architecture_of(config), H100, workload(config), server_gpus=own)
        assert (again.memory, again.phases) == (plan.memory, plan.phases)
    assert [plan.step_s for plan in plans] == sorted(plan.step_s for plan in plans)


def test_the_papers_setting_8b_on_four_h100_80gb_is_reported_as_fitting():
    done = run("method=co_rewarding_iii", "--gpus", "4", "--gpu", "h100-80gb", file=PAPER_8B)
    assert done.exit_code == 0, done.output
    assert "fits on 4 x h100-80gb: the best of" in done.output
    assert "a lower bound" in " ".join(done.output.split())


@pytest.mark.parametrize("gpus", [4, 8, 32, 128])
@pytest.mark.parametrize("model", [*MODEL_FILES, "Qwen3-30B-A3B"])
def test_every_model_of_the_configs_gets_a_plan(model, gpus):
    if model in MODEL_FILES:
        file = yaml.safe_load(MODEL_FILES[model].read_text(encoding="utf-8"))
        model = Path(file["model"]["path"]).name
    config = config_for(model)
    architecture, work = architecture_of(config), workload(config)
    every = list(layouts(config, architecture, H100, gpus))
    assert all(candidate.parallel.processes == gpus for candidate in every)
    found = search(config, architecture, H100, work, gpus=gpus)
    assert all(plan.gpus == gpus and not plan.faults for plan in found)
    # 26 bytes for each of 30.5 G parameters are more than eight GPUs hold.
    assert bool(found) == (gpus > 8 or "30B" not in model)


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ({"recompute": "full"}, {"recompute": "selective"}),
        ({"recompute": "selective"}, {"recompute": "none"}),
        ({"tensor": 4, "sequence": True}, {"tensor": 2, "sequence": True}),
        ({"tensor": 4, "sequence": True}, {"tensor": 4}),
        ({"data": 4, "distributed_optimizer": True}, {"data": 4}),
        ({"tokens_per_micro_batch": 4096}, {"tokens_per_micro_batch": 16384}),
        ({"pipeline": 2}, {"pipeline": 1}),
        ({"context": 2}, {"context": 1}),
        (
            {"pipeline": 2, "tokens_per_micro_batch": 4096},
            {"pipeline": 2, "virtual_pipeline": 2, "tokens_per_micro_batch": 4096},
        ),
        ({"optimizer": {"offload": True}}, {}),
    ],
    ids=[
        *("full", "selective", "tensor", "sequence", "distributed", "tokens", "pipeline"),
        *("context", "no_interleaving", "offload"),
    ],
)
def test_what_saves_memory_does(less, more):
    small, large = (
        peak_memory(config, architecture_of(config)).total
        for config in (qwen3_8b(**less), qwen3_8b(**more))
    )
    assert small < large


def run(*arguments: str, file: Path = RUN):
    return CliRunner().invoke(app, ["plan", str(file), *arguments])


def test_the_command_says_what_fits_and_how_to_ask_for_it():
    done = run("--gpus", "4", "--json", "--top", "2")
    assert done.exit_code == 0, done.output
    answer = json.loads(done.output)
    assert answer["fits"]
    assert len(answer["plans"]) == 2
    best = answer["plans"][0]
    assert best["gpus"] == 4
    # Not the default, so that the proposal must say it.
    assert "parallel.recompute=full" in best["overrides"]
    assert best["step_s"] == pytest.approx(sum(best["phase_s"].values()))
    assert sum(best["memory_bytes"].values()) > best["memory_bytes"]["total"]
    # The proposal is a configuration: its own overrides lead to the same memory.
    own = json.loads(
        run(*best["overrides"], "servers.policy=[]", "servers.teacher=[]", "--json").output
    )
    assert own["plans"][0]["memory_bytes"]["total"] == best["memory_bytes"]["total"]


def test_the_table_ends_with_a_plain_verdict():
    done = run()
    assert done.exit_code == 0, done.output
    assert "not modelled" in done.output
    assert done.output.strip().splitlines()[-1].startswith("fits on 10 x h100-80gb:")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["model.path=Qwen3-30B-A3B", "--gpus", "4"], "nothing fits on 4 x h100-80gb"),
        (["--gpu", "l40s"], "does not fit on"),
        (["--gpu", "a100-80gb", "precision.fp8=blockwise"], "has no FP8"),
        (["--gpu", "b7", "--gpus", "4"], "--gpu: need one of"),
        (["model.path=nowhere/unknown-1b"], "model.path: need"),
        (["parallel.tensor=3", "parallel.data=1"], "parallel.tensor: need a divisor"),
        (["--response-tokens", "4000"], "--response-tokens: need 1 to"),
    ],
    ids=["too_large", "own_too_large", "no_fp8", "gpu", "model", "layout", "lengths"],
)
def test_what_does_not_fit_ends_with_code_1_and_the_reason(arguments, words):
    overrides = [one for one in arguments if "=" in one]
    options = [one for one in arguments if "=" not in one]
    if "model.path=Qwen3-30B-A3B" in overrides:
        overrides += ["parallel.tensor=1", "parallel.data=8", "parallel.sequence=false"]
    done = run(*overrides, *options)
    assert done.exit_code == 1
    assert words in done.output
