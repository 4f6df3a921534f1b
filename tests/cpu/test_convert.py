"""Conversions between Hugging Face folders and Megatron-Core checkpoints, both ways."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

from checkpoint_tools import hf_to_megatron, megatron_to_hf
from checkpoint_tools.hf_folder import HfReader
from checkpoint_tools.megatron_folder import MegatronReader
from checkpoint_tools.megatron_index import read_index, write_index
from checkpoint_tools.megatron_writer import Layout
from checkpoint_tools.weight_map.checkpoint_keys import extra_states, places
from checkpoint_tools.weight_map.table import weight_table
from tests import models
from tests.cpu.conversions import FAMILIES, contents

LAYOUTS = [
    Layout(tensor=tensor, pipeline=pipeline)
    for tensor, pipeline in [(1, 1), (2, 1), (4, 1), (1, 2), (1, 4), (2, 2), (4, 4)]
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda one: f"T{one.tensor}P{one.pipeline}")
@pytest.mark.parametrize("family", FAMILIES)
def test_there_and_back_gives_every_file_byte_for_byte(folders, family, layout, tmp_path):
    source = folders[family]
    hf_to_megatron.convert(source, tmp_path / "checkpoint", layout=layout)
    megatron_to_hf.convert(tmp_path / "checkpoint", tmp_path / "back", like=source)
    assert contents(tmp_path / "back") == contents(source)


@pytest.mark.parametrize("family", models.MIXTURES)
def test_there_and_back_with_expert_parallelism_is_exact(folders, family, tmp_path):
    layout = Layout(tensor=2, pipeline=2, expert=2)
    hf_to_megatron.convert(folders[family], tmp_path / "checkpoint", layout=layout)
    megatron_to_hf.convert(tmp_path / "checkpoint", tmp_path / "back", like=folders[family])
    assert contents(tmp_path / "back") == contents(folders[family])


def test_without_like_the_checkpoint_gives_config_and_tokenizer(qwen, checkpoint, tmp_path):
    megatron_to_hf.convert(checkpoint, tmp_path / "back", shard_bytes=30_000)
    files = contents(tmp_path / "back")
    for name in ("config.json", "generation_config.json", "tokenizer.json"):
        assert files[name] == (qwen / name).read_bytes()
    shards = [file for file in (tmp_path / "back").glob("*.safetensors")]
    assert len(shards) > 5
    before, after = HfReader(qwen), HfReader(tmp_path / "back")
    assert set(before.names()) == set(after.names())
    assert all(torch.equal(before.read(name), after.read(name)) for name in before.names())


def test_fused_rows_stand_in_megatrons_order_and_cut_between_heads(qwen, checkpoint):
    # 8 query heads over 4 key/value heads of size 8: groups of q q k v, 32 rows each.
    weights = load_file(qwen / "model.safetensors")
    query, key, value = (
        weights[f"model.layers.3.self_attn.{name}_proj.bias"] for name in ("q", "k", "v")
    )
    index = read_index(checkpoint).state_dict_metadata
    bias = index["decoder.layers.self_attention.linear_qkv.bias"]
    assert tuple(bias.size) == (4, 128)
    last_stage = [tuple(chunk.offsets) for chunk in bias.chunks if chunk.offsets[0] == 3]
    assert last_stage == [(3, 0), (3, 64)]
    reader = MegatronReader(checkpoint)
    name = "decoder.layers.self_attention.linear_qkv.bias"
    second_rank = reader._box(name, bias.chunks.index(bias.chunks[-1]), [(3, 4), (64, 128)])[0]
    expected = [
        part[group * size : (group + 1) * size]
        for group in (2, 3)
        for part, size in ((query, 16), (key, 8), (value, 8))
    ]
    assert torch.equal(second_rank, torch.cat(expected))


def test_a_stored_piece_takes_no_more_room_than_its_numbers(checkpoint):
    index = read_index(checkpoint)
    sizes = {
        (key, tuple(chunk.offsets)): chunk.sizes.numel() * 4
        for key, stored in index.state_dict_metadata.items()
        for chunk in getattr(stored, "chunks", ())
    }
    for place, stored in index.storage_data.items():
        if place.offset is not None:
            assert stored.length < sizes[place.fqn, tuple(place.offset)] + 2000, place


def test_a_config_of_unusual_form_comes_back_as_it_was(qwen, tmp_path):
    shutil.copytree(qwen, tmp_path / "in")
    text = json.dumps(HfReader(qwen).config, indent=7, sort_keys=True)
    (tmp_path / "in" / "config.json").write_text(text)
    hf_to_megatron.convert(tmp_path / "in", tmp_path / "checkpoint", layout=Layout())
    megatron_to_hf.convert(tmp_path / "checkpoint", tmp_path / "back")
    assert (tmp_path / "back" / "config.json").read_text() == text


def test_the_vocabulary_is_padded_for_the_ranks_and_cut_again(qwen, checkpoint, tmp_path):
    stored = read_index(checkpoint).state_dict_metadata["output_layer.weight"]
    assert tuple(stored.size) == (128, 64)
    megatron_to_hf.convert(checkpoint, tmp_path / "back")
    assert HfReader(tmp_path / "back").read("lm_head.weight").shape == (models.VOCAB_SIZE, 64)


def test_the_keys_are_those_of_megatrons_checkpoints(folders):
    table = weight_table(HfReader(folders["qwen2_untied"]).architecture)
    place = places(table)["decoder.layers.2.pre_mlp_layernorm.weight"]
    assert place.key == "decoder.layers.mlp.linear_fc1.layer_norm_weight"
    assert (place.index, place.stack) == ((2,), (4,))
    mixture = weight_table(HfReader(folders["qwen3_moe_untied"]).architecture)
    place = places(mixture)["decoder.layers.1.mlp.experts.local_experts.3.linear_fc1.weight"]
    assert place.key == "decoder.layers.mlp.experts.experts.linear_fc1.weight"
    assert (place.index, place.stack) == ((1, 3), (4, 4))
    states = extra_states(mixture)
    assert "decoder.layers.mlp.experts.experts.linear_fc1._extra_state/shard_1.3_4.4" in states
    assert "decoder.layers.self_attention.linear_qkv._extra_state/shard_0_4" in states
    assert "decoder.final_layernorm._extra_state/shard_0_1" in states
    assert not [name for name in states if "router" in name or "embedding" in name]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_are_written_in_the_type_asked_for(qwen, dtype, tmp_path):
    hf_to_megatron.convert(qwen, tmp_path / "checkpoint", layout=Layout(tensor=2), dtype=dtype)
    account = megatron_to_hf.convert(tmp_path / "checkpoint", tmp_path / "back")
    assert account.dtype == dtype
    before, after = HfReader(qwen), HfReader(tmp_path / "back")
    assert after.config["dtype"] == str(dtype).removeprefix("torch.")
    assert all(torch.equal(before.read(n).to(dtype), after.read(n)) for n in before.names())


def test_layers_stored_under_their_own_numbers_are_read(qwen, checkpoint, tmp_path):
    """As Megatron-Core writes models whose layers differ: one tensor per layer, no stack."""
    index, key = read_index(checkpoint), "decoder.layers.mlp.linear_fc2.weight"
    stacked = index.state_dict_metadata.pop(key)
    places_of_key = [place for place in index.storage_data if place.fqn == key]
    a_place, a_file = places_of_key[0], index.storage_data[places_of_key[0]]
    for place in places_of_key:
        del index.storage_data[place]
    with (checkpoint / "layers.distcp").open("wb") as file:
        for layer in range(4):
            name = f"decoder.layers.{layer}.mlp.linear_fc2.weight"
            weight = HfReader(qwen).read(f"model.layers.{layer}.mlp.down_proj.weight").clone()
            start = file.tell()
            torch.save(weight, file)
            whole = ChunkStorageMetadata(torch.Size((0, 0)), weight.shape)
            index.state_dict_metadata[name] = replace(stacked, size=weight.shape, chunks=[whole])
            index.storage_data[type(a_place)(name, torch.Size((0, 0)), 0)] = type(a_file)(
                "layers.distcp", start, file.tell() - start
            )
    write_index(checkpoint, index)
    megatron_to_hf.convert(checkpoint, tmp_path / "back", like=qwen)
    assert contents(tmp_path / "back") == contents(qwen)


def test_megatron_bridge_writes_the_same_folder(qwen, tmp_path):
    from checkpoint_tools import megatron_bridge

    if not megatron_bridge.is_installed():
        pytest.skip("megatron-bridge and transformer-engine are not installed")
    megatron_bridge.hf_to_megatron(qwen, tmp_path / "checkpoint", overwrite=False)
    megatron_bridge.megatron_to_hf(
        tmp_path / "checkpoint", tmp_path / "back", like=qwen, overwrite=False
    )
    before, after = HfReader(qwen), HfReader(tmp_path / "back")
    assert set(before.names()) == set(after.names())
    assert all(torch.equal(before.read(name), after.read(name)) for name in before.names())


def test_numbers_are_used_where_they_lie_in_a_file(qwen, tmp_path):
    hf_to_megatron.convert(qwen, tmp_path / "ckpt", layout=Layout())
    reader = MegatronReader(tmp_path / "ckpt")
    for entry in reader.table:
        # Query, key and value rows alone have to be put in another order.
        if entry.parallel != "column":
            for name, tensor in reader.read(entry).items():
                # A map begins with its file, a copy with its first number.
                assert tensor.storage_offset() > 0, name
