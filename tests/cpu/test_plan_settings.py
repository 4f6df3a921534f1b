"""What FP8, offloading and interleaving change in a plan; how far published steps are from it."""

import json

import pytest

from megatron_corew.config import Config
from megatron_corew.plan.assumptions import PUBLISHED_OVER_PLANNED
from megatron_corew.plan.generation import Servers
from megatron_corew.plan.known_models import architecture_of, known_configs
from megatron_corew.plan.memory import host_bytes, micro_batches, peak_memory
from megatron_corew.plan.planner import layouts
from megatron_corew.plan.step_time import phases
from megatron_corew.plan.workload import forward_flops, workload
from tests.cpu.plan_cases import H100, config_for, qwen3_8b, servers_of


def test_fp8_follows_the_configuration():
    parallel = {"data": 4, "distributed_optimizer": True}
    plain, fp8 = qwen3_8b(**parallel), qwen3_8b(**parallel, precision={"fp8": "blockwise"})
    architecture, work = architecture_of(plain), workload(plain)
    embeddings = 2 * 151_936 * 4096
    norms = 36 * (2 * 4096 + 2 * 128) + 4096
    linear = 8_190_735_360 - embeddings - norms
    assert peak_memory(plain, architecture).fp8_copies == 0
    assert peak_memory(fp8, architecture).fp8_copies == 2 * linear
    # Half of the 36 layers stay bfloat16.
    kept = {"fp8": "blockwise", "bf16_first_layers": 10, "bf16_last_layers": 8}
    half = qwen3_8b(**parallel, precision=kept)
    assert peak_memory(half, architecture).fp8_copies == linear
    spent = {
        name: phases(config, architecture, H100, servers_of(4, 1), work)["training"]
        for name, config in (("plain", plain), ("fp8", fp8), ("half", half))
    }
    flops = 3 * forward_flops(architecture, work).dense * work.rollouts / 4
    saved = flops * (1 / (989e12 * 0.5) - 1 / (1_979e12 * 0.45))
    assert spent["plain"] - spent["fp8"] == pytest.approx(saved)
    assert spent["plain"] - spent["half"] == pytest.approx(saved / 2)
    # Emulation rounds the numbers of bfloat16 products.
    emulated = qwen3_8b(**parallel, precision={"fp8": "emulate"})
    assert peak_memory(emulated, architecture) == peak_memory(plain, architecture)


def test_what_is_offloaded_is_on_the_host_and_crosses_the_bus_by_hand():
    parallel = {"data": 4, "distributed_optimizer": True}
    here = qwen3_8b(**parallel)
    away = qwen3_8b(**parallel, optimizer={"offload": True}, teacher={"offload": True})
    architecture, work = architecture_of(here), workload(here)
    shard = 8_190_735_360 / 4
    before, after = peak_memory(here, architecture), peak_memory(away, architecture)
    assert after.optimizer == 0
    # Moments and main parameters; teacher and residual.
    assert before.teacher - after.teacher == 8 * shard
    assert host_bytes(away, architecture) == (12 + 8) * shard
    assert host_bytes(here, architecture) == 0
    # Three float32 tensors of 2^24 numbers at a time.
    assert (before.pieces, after.pieces) == (0, 3 * 4 * 2**24)
    spent = [
        phases(config, architecture, H100, servers_of(4, 1), work)["optimizer, teacher"]
        for config in (here, away)
    ]
    # The update: state both ways, mains into the model. The teacher's: itself both ways, mains in.
    # Installed twice, for its rollouts and the KL term: its values, then the mains.
    moved = shard * ((24 + 4) + (16 + 4) + 2 * (4 + 4))
    assert spent[1] - spent[0] == pytest.approx(moved / (64e9 * 0.7))


def test_offloading_only_one_leaves_the_other():
    parallel = {"data": 4, "distributed_optimizer": True}
    here, one, other = (
        peak_memory(config, architecture_of(config))
        for config in (
            qwen3_8b(**parallel),
            qwen3_8b(**parallel, optimizer={"offload": True}),
            qwen3_8b(**parallel, teacher={"offload": True}),
        )
    )
    assert (one.optimizer, one.teacher) == (0, here.teacher)
    assert (other.optimizer, other.teacher) == (here.optimizer, here.teacher - 2 * 8_190_735_360)


def test_offloading_a_teacher_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match=r"teacher\.offload: need a method with a teacher"):
        config_for("Qwen3-8B-Base", "ground_truth", teacher={"offload": True}, loss={"kl_coef": 0})
    # The frozen reference of a KL term is one.
    config_for("Qwen3-8B-Base", "ground_truth", teacher={"offload": True}, loss={"kl_coef": 1e-3})


def test_selective_recompute_does_experts_and_their_messages_again_by_hand():
    layout = {"tensor": 2, "sequence": True, "data": 4, "expert": 8, "distributed_optimizer": True}
    spent = {}
    for recompute in ("none", "selective"):
        config = config_for("Qwen3-30B-A3B", **layout, recompute=recompute)
        architecture, work = architecture_of(config), workload(config)
        spent[recompute] = phases(config, architecture, H100, servers_of(8, 2), work)["training"]
    # 48 layers, 8 experts of three matrices of 2,048 x 768 for each token.
    tokens = work.rollouts * work.sequence_tokens
    flops = 2 * 48 * 8 * 3 * 2048 * 768 * tokens / 8
    # bfloat16 hidden states of a replica; half of the sums over 2 ranks; there and back to 8 ranks.
    whole = 48 * 2048 * 2 * tokens / 4
    sums, exchanged = 0.5 * 2 * whole * 2 / 2, 2 * whole * 8 * 7 / 8 / 2
    expected = flops / (989e12 * 0.35) + (sums + exchanged) / (450e9 * 0.7)
    assert spent["selective"] - spent["none"] == pytest.approx(expected)


def test_the_search_keeps_interleaving_where_there_is_a_pipeline():
    config = qwen3_8b(pipeline=2, virtual_pipeline=2, tokens_per_micro_batch=8192)
    found = {
        (candidate.parallel.pipeline, candidate.parallel.virtual_pipeline)
        for candidate in layouts(config, architecture_of(config), H100, 8)
    }
    # 36 layers over 8 stages do not divide.
    assert found == {(1, 1), (2, 2)}
    # Interleaved stages take whole rounds: of 5 micro-batches they make 6.
    rows = config.rollout.prompts_per_step * config.rollout.samples_per_prompt * 2
    assert micro_batches(config, 4.5 * 8192 / rows) == 6


# NeMo-RL 0.4, performance summary, GRPO on policy, DGX H100, BF16: GPUs, mean tokens of a sequence,
# layout, GPUs of a server, seconds of a step. 64 prompts, 32 responses, four updates.
NEMO_RL = {
    "Llama-3.1-8B": (16, 1060, {"pipeline": 2, "data": 8}, 1, 97.7),
    "Qwen3-32B": (32, 3206, {"tensor": 4, "pipeline": 4, "data": 2}, 4, 393.0),
    "Qwen3-30B-A3B": (32, 3154, {"tensor": 2, "expert": 8, "data": 16}, 4, 225.0),
}


SHARDED = {"distributed_optimizer": True, "tokens_per_micro_batch": 4196}
# From their published config.json.
OTHER_SHAPES = {
    "Llama-3.1-8B": known_configs()["llama-3.2-3b-instruct"]
    | {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "tie_word_embeddings": False,
    },
    "Qwen3-32B": known_configs()["qwen3-8b-base"]
    | {
        "hidden_size": 5120,
        "intermediate_size": 25600,
        "num_hidden_layers": 64,
        "num_attention_heads": 64,
    },
}


@pytest.mark.parametrize("model", NEMO_RL)
def test_published_steps_take_longer_than_planned_by_what_a_plan_says(model, tmp_path):
    gpus, tokens, layout, server, published = NEMO_RL[model]
    path = tmp_path / "config.json"
    known = known_configs()
    shapes = OTHER_SHAPES[model] if model in OTHER_SHAPES else known[model.lower()]
    path.write_text(json.dumps(shapes))
    config = config_for("", "ground_truth", **layout, **SHARDED, sequence="tensor" in layout)
    rollout = {"prompts_per_step": 64, "samples_per_prompt": 32, "max_response_tokens": 3996}
    config = Config.model_validate(
        config.model_dump()
        | {"model": {"path": str(path)}, "loss": {"updates_per_step": 4, "kl_coef": 0.01}}
        | {"data": {"train": "lab", "max_prompt_tokens": 200}, "rollout": rollout}
    )
    work = workload(config, response_tokens=tokens - 100)
    servers = Servers(gpus=gpus, tensor=server, memory=0.5 * H100.memory, max_sequences=256)
    planned = phases(config, architecture_of(config), H100, servers, work)
    low, high = PUBLISHED_OVER_PLANNED
    assert low <= published / sum(planned.values()) <= high
