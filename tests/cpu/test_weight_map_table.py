"""The weight table against real tiny models: every name once, every bit back, every cut."""

import dataclasses
import tempfile

import pytest
import torch
import transformers
from safetensors.torch import load_file

from checkpoint_tools.weight_map.architecture import Architecture, read_architecture
from checkpoint_tools.weight_map.names import shift_expert
from checkpoint_tools.weight_map.table import weight_table

FAMILIES = ["Llama", "Qwen2", "Qwen3", "Qwen3Moe"]
VOCABULARY = 131
"""A prime: no padding and no cut of it is even by accident."""


EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12}


def tiny_model(family: str, *, tied: bool) -> torch.nn.Module:
    rope = {"rope_type": "default", "rope_theta": 1e6}
    if family == "Llama":
        rope = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 32.0, "low_freq_factor": 1.0}
        rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    config = getattr(transformers, f"{family}Config")(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=128,
        tie_word_embeddings=tied,
        rope_parameters=rope,
        **({"head_dim": 6} if family.startswith("Qwen3") else {}),
        **(EXPERTS if family == "Qwen3Moe" else {}),
    )
    torch.manual_seed(1)
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape))
    return model


def architecture_of(model) -> Architecture:
    config = model.config.to_dict() | {"architectures": [type(model).__name__]}
    return read_architecture(config)


def stored_weights(model) -> dict[str, torch.Tensor]:
    """What a folder of the model holds: no tied output layer, and one tensor per expert."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(f"{folder}/model.safetensors")


def small(**changes) -> Architecture:
    return dataclasses.replace(architecture_of(tiny_model("Llama", tied=False)), **changes)


def entry_of(arch: Architecture, megatron_name: str, padded_vocab: int | None = None):
    table = {entry.megatron_name: entry for entry in weight_table(arch, padded_vocab=padded_vocab)}
    return table[megatron_name]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_hugging_face_name_is_used_exactly_once(family, tied):
    model = tiny_model(family, tied=tied)
    table = weight_table(architecture_of(model))
    shapes = [
        (name, shape)
        for entry in table
        for name, shape in zip(entry.hf_names, entry.hf_shapes, strict=True)
    ]
    stored = [(name, tuple(weight.shape)) for name, weight in stored_weights(model).items()]
    assert sorted(shapes) == sorted(stored)
    assert len({entry.megatron_name for entry in table}) == len(table)


@pytest.mark.parametrize("padded_vocab", [None, 256])
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_round_trip_over_tensor_parallel_shards_returns_every_bit(
    family, tied, size, padded_vocab
):
    model = tiny_model(family, tied=tied)
    stored = stored_weights(model)
    back = {}
    for entry in weight_table(architecture_of(model), padded_vocab=padded_vocab):
        whole = entry.to_megatron({name: stored[name] for name in entry.hf_names})
        assert tuple(whole.shape) == entry.megatron_shape
        # a prime vocabulary cannot be cut without padding
        ranks = 1 if entry.parallel == "vocabulary" and padded_vocab is None else size
        shards = [entry.split(whole, rank, ranks) for rank in range(ranks)]
        copies = ranks if entry.parallel == "replicated" else 1
        assert sum(shard.numel() for shard in shards) == whole.numel() * copies
        back |= entry.to_hf(entry.join(shards))
    assert back.keys() == stored.keys()
    assert all(torch.equal(back[name], stored[name]) for name in stored)


def test_the_table_runs_from_the_embedding_to_the_output_layer():
    names = [entry.megatron_name for entry in weight_table(small())]
    layers = [int(name.split(".")[2]) for name in names if name.startswith("decoder.layers")]
    assert names[0] == "embedding.word_embeddings.weight"
    assert layers == sorted(layers)
    assert names[-2:] == ["decoder.final_layernorm.weight", "output_layer.weight"]


def test_a_tied_model_has_no_entry_for_the_output_layer():
    assert weight_table(small(tied=True)) == weight_table(small())[:-1]


def test_an_untied_output_layer_is_not_the_embedding():
    table = weight_table(small())
    assert table[-1].hf_names == ("lm_head.weight",)
    with pytest.raises(ValueError, match=r"output_layer\.weight: needs lm_head\.weight, got none"):
        table[-1].to_megatron({})


def test_a_rank_gets_whole_key_value_groups():
    # 4 query heads, 2 key/value heads, head size 1, as in test_weight_map_tensors
    arch = small(num_heads=4, num_kv_heads=2, head_size=1, hidden_size=1)
    entry = entry_of(arch, "decoder.layers.0.self_attention.linear_qkv.weight")
    whole = torch.tensor([0.0, 1, 10, 20, 2, 3, 11, 21]).unsqueeze(1)
    assert entry.split(whole, 0, 2).flatten().tolist() == [0, 1, 10, 20]
    assert entry.split(whole, 1, 2).flatten().tolist() == [2, 3, 11, 21]


def test_the_bias_follows_the_weight():
    arch = small(num_heads=4, num_kv_heads=2, head_size=1, hidden_size=1, family="qwen2")
    entry = entry_of(arch, "decoder.layers.1.self_attention.linear_qkv.bias")
    prefix = "model.layers.1.self_attn"
    assert entry.hf_names == tuple(f"{prefix}.{part}_proj.bias" for part in "qkv")
    parts = ([0.0, 1, 2, 3], [10.0, 11], [20.0, 21])
    named = dict(zip(entry.hf_names, map(torch.tensor, parts), strict=True))
    whole = entry.to_megatron(named)
    assert whole.tolist() == [0, 1, 10, 20, 2, 3, 11, 21]
    assert entry.split(whole, 1, 2).tolist() == [2, 3, 11, 21]


def test_the_output_projection_is_cut_by_the_heads_it_reads():
    arch = small(num_heads=4, num_kv_heads=2, head_size=1, hidden_size=1)
    entry = entry_of(arch, "decoder.layers.0.self_attention.linear_proj.weight")
    assert entry.split(torch.tensor([[0.0, 1, 2, 3]]), 1, 2).tolist() == [[2, 3]]


def test_a_rank_gets_its_part_of_the_gate_and_of_the_up_projection():
    entry = entry_of(small(ffn_size=4, hidden_size=1), "decoder.layers.0.mlp.linear_fc1.weight")
    whole = torch.tensor([0.0, 1, 2, 3, 10, 11, 12, 13]).unsqueeze(1)
    shards = [entry.split(whole, rank, 2) for rank in range(2)]
    assert shards[0].flatten().tolist() == [0, 1, 10, 11]
    assert shards[1].flatten().tolist() == [2, 3, 12, 13]
    assert torch.equal(entry.join(shards), whole)


@pytest.mark.parametrize("name", ["embedding.word_embeddings.weight", "output_layer.weight"])
def test_padding_rows_are_zero_and_never_come_back(name):
    entry = entry_of(small(vocab_size=3, hidden_size=1), name, padded_vocab=4)
    whole = entry.to_megatron({entry.hf_names[0]: torch.ones(3, 1)})
    assert whole.flatten().tolist() == [1, 1, 1, 0]
    whole[3] = 7.0
    assert entry.to_hf(whole)[entry.hf_names[0]].flatten().tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("name", "changes", "unit"),
    [
        ("decoder.layers.0.self_attention.linear_qkv.weight", {}, "num_key_value_heads"),
        ("decoder.layers.0.self_attention.linear_proj.weight", {}, "num_key_value_heads"),
        ("decoder.layers.0.mlp.linear_fc1.weight", {"ffn_size": 36}, "intermediate_size"),
        ("decoder.layers.0.mlp.linear_fc2.weight", {"ffn_size": 36}, "intermediate_size"),
        ("embedding.word_embeddings.weight", {}, "padded vocabulary"),
    ],
)
def test_a_cut_through_a_unit_is_refused(name, changes, unit):
    # 8 ranks: 8 query heads would do, 4 key/value heads, 36 and 131 do not
    entry = entry_of(small(**changes), name)
    with pytest.raises(
        ValueError, match=rf"parallel\.tensor \(--tensor\): need a divisor of .*{unit}"
    ):
        entry.split(torch.zeros(entry.megatron_shape), 0, 8)
    with pytest.raises(ValueError, match="need a divisor"):
        entry.join([torch.zeros(entry.megatron_shape)] * 8)


def test_wrong_tensors_are_refused_by_name():
    entry = entry_of(small(), "decoder.layers.0.mlp.linear_fc1.weight")
    gate, up = (torch.zeros(shape) for shape in entry.hf_shapes)
    gate_name, up_name = entry.hf_names
    with pytest.raises(ValueError, match=f"needs {up_name}, got none"):
        entry.to_megatron({gate_name: gate})
    with pytest.raises(ValueError, match=r"got also lm_head\.weight"):
        entry.to_megatron({gate_name: gate, up_name: up, "lm_head.weight": up})
    with pytest.raises(ValueError, match=rf"{up_name}: need shape \[40, 32\], got \[40, 31\]"):
        entry.to_megatron({gate_name: gate, up_name: up[:, 1:]})
    for way in (entry.to_hf, lambda whole: entry.split(whole, 0, 2), lambda one: entry.join([one])):
        with pytest.raises(ValueError, match=r"need shape \[80, 32\], got \[79, 32\]"):
            way(torch.zeros(79, 32))


def test_copies_that_have_drifted_apart_are_refused():
    entry = entry_of(small(), "decoder.layers.1.input_layernorm.weight")
    with pytest.raises(RuntimeError, match="ranks 0 and 2 differ"):
        entry.join([torch.ones(32), torch.ones(32), torch.full((32,), 1.001)])


def test_a_padded_vocabulary_below_the_true_one_is_refused():
    with pytest.raises(ValueError, match=r"vocab_size \(131\), got 130"):
        weight_table(small(), padded_vocab=130)


def mixture(**changes) -> Architecture:
    return dataclasses.replace(architecture_of(tiny_model("Qwen3Moe", tied=False)), **changes)


def test_an_expert_is_named_by_its_number_among_all_in_both_tables():
    entry = entry_of(mixture(), "decoder.layers.1.mlp.experts.local_experts.3.linear_fc1.weight")
    prefix = "model.layers.1.mlp.experts.3"
    assert entry.hf_names == (f"{prefix}.gate_proj.weight", f"{prefix}.up_proj.weight")
    assert (entry.expert, entry.megatron_shape) == (3, (24, 32))


def test_only_experts_have_a_number_and_each_layer_has_every_one_in_order():
    numbers = [
        (entry.megatron_name.split(".")[2], entry.expert)
        for entry in weight_table(mixture())
        if ".experts." in entry.megatron_name
    ]
    assert numbers == [(layer, expert) for layer in "01" for expert in (0, 0, 1, 1, 2, 2, 3, 3)]
    others = [e for e in weight_table(mixture()) if ".experts." not in e.megatron_name]
    assert {entry.expert for entry in others} == {None}


@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_experts_of_all_expert_parallel_ranks_are_those_of_the_table(size):
    experts = [e.megatron_name for e in weight_table(mixture()) if e.expert is not None]
    per_rank = 4 // size
    on_a_rank = [name for name in experts if int(name.split(".")[6]) < per_rank]
    over_all = [shift_expert(name, rank * per_rank) for rank in range(size) for name in on_a_rank]
    assert sorted(over_all) == sorted(experts)
    assert [shift_expert(shift_expert(name, 2), -2) for name in experts] == experts


def test_an_experts_output_is_cut_by_its_inputs():
    entry = entry_of(mixture(), "decoder.layers.0.mlp.experts.local_experts.0.linear_fc2.weight")
    whole = torch.arange(12.0).expand(32, 12)
    assert torch.equal(entry.split(whole, 1, 2), torch.arange(6.0, 12.0).expand(32, 6))


def test_a_cut_through_an_expert_is_refused_by_its_own_size():
    entry = entry_of(mixture(), "decoder.layers.0.mlp.experts.local_experts.0.linear_fc2.weight")
    with pytest.raises(ValueError, match=r"a divisor of moe_intermediate_size \(12\)"):
        entry.split(torch.zeros(32, 12), 0, 8)
