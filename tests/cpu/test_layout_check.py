"""Which layouts can hold which models, and what is said of the others."""

import dataclasses

import pytest

from checkpoint_tools.weight_map.architecture import Architecture, Mixture
from megatron_corew.config import Config, ParallelConfig
from megatron_corew.layout_check import check_divisible

EXPERTS = Mixture(num_experts=8, experts_per_token=2, expert_ffn_size=12, normalise_topk=True)
DENSE = Architecture(
    family="qwen3",
    num_layers=6,
    hidden_size=64,
    num_heads=8,
    num_kv_heads=4,
    head_size=8,
    ffn_size=36,
    vocab_size=100,
    tied=False,
    qkv_bias=False,
    qk_norm=True,
    norm_eps=1e-6,
    rope_theta=1e6,
    rope_scaling=None,
    max_positions=64,
)
SPARSE = dataclasses.replace(DENSE, family="qwen3_moe", ffn_size=7, mixture=EXPERTS)


def layout(**knobs: object) -> Config:
    return Config.model_validate(
        {
            "method": "co_rewarding_i",
            "run": {"name": "test", "steps": 1},
            "model": {"path": "somewhere"},
            "data": {"train": "lab"},
            "parallel": knobs,
        }
    )


@pytest.mark.parametrize(
    ("architecture", "knobs"),
    [
        (DENSE, {"tensor": 4, "pipeline": 3}),
        # The dense inner size of a model with experts stands in its config without any effect.
        (SPARSE, {"tensor": 4, "sequence": True, "pipeline": 2}),
        (SPARSE, {"data": 8, "expert": 8}),
        (SPARSE, {"tensor": 4, "sequence": True, "data": 2, "expert": 8}),
    ],
)
def test_a_layout_that_divides_the_model_is_accepted(architecture, knobs):
    check_divisible(architecture, layout(**knobs))


@pytest.mark.parametrize(
    ("architecture", "knobs", "said"),
    [
        (
            DENSE,
            {"tensor": 16},
            r"parallel\.tensor: need a divisor of the model's 8 attention heads",
        ),
        (DENSE, {"tensor": 8}, r"parallel\.tensor: .* 4 key/value heads, got 8"),
        (DENSE, {"pipeline": 4}, r"parallel\.pipeline: .* 6 layers, got 4"),
        (
            dataclasses.replace(DENSE, ffn_size=37),
            {"tensor": 2},
            r"parallel\.tensor: .* inner size",
        ),
        (DENSE, {"data": 2, "expert": 2}, r"parallel\.expert: need 1 for a model without experts"),
        (SPARSE, {"data": 3, "expert": 3}, r"parallel\.expert: .* 8 experts, got 3"),
        (SPARSE, {"tensor": 2}, r"parallel\.sequence: need true .* parallel\.tensor=2"),
    ],
)
def test_a_layout_that_cannot_hold_the_model_is_refused_by_its_knob(architecture, knobs, said):
    with pytest.raises(ValueError, match=said):
        check_divisible(architecture, layout(**knobs))


def test_an_expert_is_cut_over_tensor_parallel_ranks_only_without_expert_parallelism():
    odd = dataclasses.replace(EXPERTS, expert_ffn_size=13)
    uneven = dataclasses.replace(SPARSE, mixture=odd)
    check_divisible(uneven, layout(tensor=2, sequence=True, expert=2))
    with pytest.raises(ValueError, match=r"parallel\.tensor: .* 13 expert inner size"):
        check_divisible(uneven, layout(tensor=2, sequence=True))
    assert ParallelConfig(tensor=4, data=2).expert_tensor == 4
    assert ParallelConfig(tensor=4, data=2, expert=2).expert_tensor == 1


def test_experts_take_no_processes_of_their_own_but_divide_those_of_a_stage():
    assert ParallelConfig(tensor=2, pipeline=3, data=2, expert=4).processes == 12
    with pytest.raises(ValueError, match=r"parallel\.expert: .* parallel\.data \(4\), got 3"):
        ParallelConfig(tensor=2, pipeline=3, data=2, expert=3)


def test_a_router_without_a_choice_to_weigh_is_refused():
    one = dataclasses.replace(EXPERTS, experts_per_token=1)
    with pytest.raises(ValueError, match="the router cannot be trained"):
        check_divisible(dataclasses.replace(SPARSE, mixture=one), layout())
    unnormalised = dataclasses.replace(one, normalise_topk=False)
    check_divisible(dataclasses.replace(SPARSE, mixture=unnormalised), layout())
