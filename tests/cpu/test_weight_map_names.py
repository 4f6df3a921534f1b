"""Names in the weight table against those recorded from Megatron-Core's two specifications."""

import json
from pathlib import Path

import pytest

from checkpoint_tools.weight_map.architecture import Architecture, Mixture
from checkpoint_tools.weight_map.names import local_name, shift_expert, te_name
from checkpoint_tools.weight_map.table import weight_table

GOLDEN = Path(__file__).parents[1] / "golden" / "megatron_names.json"
CASES = {case["name"]: case for case in json.loads(GOLDEN.read_text())["cases"]}
HEAD_NORMS, BIAS = ("q_layernorm.weight", "k_layernorm.weight"), ("bias",)
NOTHING = ("no such name",)


def architecture(family: str, *, tied: bool) -> Architecture:
    experts = Mixture(num_experts=2, experts_per_token=2, expert_ffn_size=32, normalise_topk=True)
    return Architecture(
        family=family,
        num_layers=1,
        hidden_size=64,
        num_heads=4,
        num_kv_heads=2,
        head_size=16,
        ffn_size=128,
        vocab_size=128,
        tied=tied,
        qkv_bias=family == "qwen2",
        qk_norm=family.startswith("qwen3"),
        norm_eps=1e-6,
        rope_theta=1e6,
        rope_scaling=None,
        max_positions=64,
        mixture=experts if family == "qwen3_moe" else None,
    )


def recorded(case: str, left_out: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a recorded model's weights, without Transformer Engine's own states."""
    return {
        name: tuple(shape)
        for name, shape in CASES[case]["states"].items()
        if not name.endswith(("_extra_state", *left_out))
    }


@pytest.mark.parametrize(
    ("case", "family", "left_out"),
    [
        ("local", "llama", NOTHING),
        ("local tie", "llama", NOTHING),
        # No family has both head norms and biases, as this recorded model has.
        ("local qk bias", "qwen2", HEAD_NORMS),
        ("local qk bias", "qwen3", BIAS),
        ("local moe", "qwen3_moe", HEAD_NORMS),
        ("te", "llama", NOTHING),
        ("te tie", "llama", NOTHING),
        ("te qk bias", "qwen2", HEAD_NORMS),
        ("te qk bias", "qwen3", BIAS),
        ("te moe", "qwen3_moe", HEAD_NORMS),
        ("te moe grouped", "qwen3_moe", HEAD_NORMS),
    ],
)
def test_the_tables_names_and_shapes_are_the_recorded_ones(case, family, left_out):
    expected = recorded(case, left_out)
    table = {
        entry.megatron_name: entry.megatron_shape
        for entry in weight_table(architecture(family, tied="tie" in case))
        if not entry.megatron_name.endswith(left_out)
    }
    behind_norm = CASES[case]["feed_forward"]
    is_te = CASES[case]["spec"] == "te"
    renamed = {te_name(name, behind_norm) if is_te else name: table[name] for name in table}
    assert renamed == expected
    assert {local_name(name): shape for name, shape in expected.items()} == table


def test_a_norm_before_experts_stays_its_own_module():
    norm = "decoder.layers.0.pre_mlp_layernorm.weight"
    assert te_name(norm) == "decoder.layers.0.mlp.linear_fc1.layer_norm_weight"
    assert te_name(norm, "grouped_experts") == te_name(norm, "sequential_experts") == norm


def test_an_expert_is_renumbered_and_nothing_else():
    expert = "decoder.layers.7.mlp.experts.local_experts.5.linear_fc2.weight"
    assert shift_expert(expert, 16) == expert.replace("5", "21")
    assert te_name(shift_expert(expert, 16), "grouped_experts") == (
        "decoder.layers.7.mlp.experts.linear_fc2.weight21"
    )
    for other in ("decoder.layers.7.mlp.linear_fc2.weight", "decoder.layers.7.mlp.router.weight"):
        assert shift_expert(other, 16) == other
