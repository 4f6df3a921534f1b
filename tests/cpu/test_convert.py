"""Conversions between Hugging Face folders and Megatron-Core checkpoints, both ways."""

import io
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata
from typer.testing import CliRunner

from checkpoint_tools import cli, compare, hf_to_megatron, megatron_to_hf
from checkpoint_tools.conversion import in_parallel
from checkpoint_tools.hf_folder import HfReader
from checkpoint_tools.megatron_folder import MegatronReader
from checkpoint_tools.megatron_index import INDEX_FILE, read_index, write_index
from checkpoint_tools.megatron_to_hf import parse_size
from checkpoint_tools.megatron_writer import Layout, plan_files
from checkpoint_tools.raw_bytes import mapped
from checkpoint_tools.weight_map.architecture import read_architecture
from checkpoint_tools.weight_map.checkpoint_keys import extra_states, places
from checkpoint_tools.weight_map.table import weight_table
from tests import models

FAMILIES = (*models.FAMILIES, *models.MIXTURES)
LAYOUTS = [
    Layout(tensor=tensor, pipeline=pipeline)
    for tensor, pipeline in [(1, 1), (2, 1), (4, 1), (1, 2), (1, 4), (2, 2), (4, 4)]
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """Family -> Hugging Face folder with 4 key/value heads, which four ranks can share."""
    root = tmp_path_factory.mktemp("models")
    return {family: models.save(family, root / family, kv_heads=4) for family in FAMILIES}


@pytest.fixture(scope="module")
def qwen(folders) -> Path:
    return folders["qwen2_untied"]


@pytest.fixture
def checkpoint(qwen, tmp_path) -> Path:
    hf_to_megatron.convert(qwen, tmp_path / "checkpoint", layout=Layout(tensor=2, pipeline=2))
    return tmp_path / "checkpoint"


def contents_of_files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


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


# Refusals


def changed(source: Path, target: Path, change) -> Path:
    """A copy of a model with its dict of weights changed."""
    shutil.copytree(source, target)
    weights = load_file(target / "model.safetensors")
    change(weights)
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return target


def no_traces(folder: Path, *known: str) -> bool:
    return sorted(path.name for path in folder.iterdir()) == sorted(known)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_not_finite_is_refused_by_the_name_of_its_tensor(qwen, value, tmp_path):
    name = "model.layers.2.mlp.up_proj.weight"
    broken = changed(qwen, tmp_path / "in", lambda weights: weights[name][5].fill_(value))
    with pytest.raises(ValueError, match=r"in: need finite numbers, got 64 .*up_proj\.weight"):
        hf_to_megatron.convert(broken, tmp_path / "out", layout=Layout())
    assert no_traces(tmp_path, "in")
    account = hf_to_megatron.convert(
        broken, tmp_path / "out", layout=Layout(), allow_nonfinite=True
    )
    assert "kept in 1 tensors" in str(account)
    assert name in str(account)
    with pytest.raises(ValueError, match=r"out: need finite numbers, got 64 .*up_proj\.weight"):
        megatron_to_hf.convert(tmp_path / "out", tmp_path / "back")
    assert no_traces(tmp_path, "in", "out")
    megatron_to_hf.convert(tmp_path / "out", tmp_path / "back", allow_nonfinite=True)
    assert contents(tmp_path / "back")["model.safetensors"] == contents(broken)["model.safetensors"]


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (Layout(tensor=3), r"--tensor\): need a divisor of num_key_value_heads \(4\)"),
        (Layout(pipeline=3), r"--pipeline: need a divisor of num_hidden_layers \(4\), got 3"),
        (Layout(expert=2), r"--expert: need 1 for a model without experts, got 2"),
    ],
)
def test_a_layout_that_does_not_divide_the_model_is_refused(qwen, layout, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        hf_to_megatron.convert(qwen, tmp_path / "out", layout=layout)
    assert no_traces(tmp_path)


def test_experts_that_do_not_divide_are_refused(folders, tmp_path):
    with pytest.raises(ValueError, match=r"--expert: need a divisor of num_experts \(4\), got 3"):
        hf_to_megatron.convert(
            folders["qwen3_moe_untied"], tmp_path / "out", layout=Layout(expert=3)
        )


def test_weights_of_several_types_want_one_to_be_chosen(qwen, tmp_path):
    def mix(weights):
        weights["model.norm.weight"] = weights["model.norm.weight"].bfloat16()

    mixed = changed(qwen, tmp_path / "in", mix)
    with pytest.raises(ValueError, match=r"got bfloat16, float32\. Choose one \(--dtype\)"):
        hf_to_megatron.convert(mixed, tmp_path / "out", layout=Layout())
    hf_to_megatron.convert(mixed, tmp_path / "out", layout=Layout(), dtype=torch.float32)


def test_a_tied_model_needs_no_output_layer_and_gets_none(folders, tmp_path):
    hf_to_megatron.convert(folders["qwen3_tied"], tmp_path / "checkpoint", layout=Layout())
    stored = read_index(tmp_path / "checkpoint").state_dict_metadata
    assert not [key for key in stored if key.startswith("output_layer")]
    megatron_to_hf.convert(tmp_path / "checkpoint", tmp_path / "back")
    assert "lm_head.weight" not in HfReader(tmp_path / "back").names()
    assert HfReader(tmp_path / "back").config["tie_word_embeddings"] is True


def test_an_untied_model_without_output_layer_is_refused_not_tied(qwen, tmp_path):
    broken = changed(qwen, tmp_path / "in", lambda weights: weights.pop("lm_head.weight"))
    with pytest.raises(ValueError, match=r"lm_head\.weight is missing"):
        hf_to_megatron.convert(broken, tmp_path / "out", layout=Layout())


def test_an_untied_output_layer_stays_apart(qwen, checkpoint, tmp_path):
    megatron_to_hf.convert(checkpoint, tmp_path / "back")
    reader = HfReader(tmp_path / "back")
    head, embedding = reader.read("lm_head.weight"), reader.read("model.embed_tokens.weight")
    assert not torch.equal(head, embedding)
    assert torch.equal(head, HfReader(qwen).read("lm_head.weight"))


def test_llama3_scaling_survives_with_all_its_values(folders, tmp_path):
    source = folders["llama32_tied"]
    hf_to_megatron.convert(source, tmp_path / "checkpoint", layout=Layout())
    megatron_to_hf.convert(tmp_path / "checkpoint", tmp_path / "back")
    scaling = read_architecture(HfReader(tmp_path / "back").config).rope_scaling
    assert scaling == HfReader(source).architecture.rope_scaling
    assert (scaling.factor, scaling.low_freq_factor, scaling.high_freq_factor) == (32.0, 1.0, 4.0)


def test_an_existing_target_is_refused_before_any_work(qwen, checkpoint, tmp_path):
    with pytest.raises(ValueError, match=r"checkpoint: need a folder that does not exist yet"):
        hf_to_megatron.convert(qwen, checkpoint, layout=Layout())
    hf_to_megatron.convert(qwen, checkpoint, layout=Layout(tensor=4), overwrite=True)
    assert len(list(checkpoint.glob("__*_0.distcp"))) == 4
    assert no_traces(tmp_path, "checkpoint")


@pytest.mark.parametrize("lost", ["thesis.tex", "model.safetensors"])
def test_what_was_not_written_here_is_never_overwritten(qwen, lost, tmp_path):
    target = tmp_path / "out"
    target.mkdir()
    (target / "metadata.json").write_text("{}")
    (target / lost).write_text("years of work")
    with pytest.raises(ValueError, match=rf"out: only a folder .* got one with {lost}"):
        hf_to_megatron.convert(qwen, target, layout=Layout(), overwrite=True)
    assert (target / lost).read_text() == "years of work"


def test_a_target_that_is_a_link_is_written_where_it_points(qwen, tmp_path):
    hf_to_megatron.convert(qwen, tmp_path / "real", layout=Layout())
    (tmp_path / "link").symlink_to("real")
    hf_to_megatron.convert(qwen, tmp_path / "link", layout=Layout(tensor=2), overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert len(list((tmp_path / "real").glob("__*"))) == 2
    assert no_traces(tmp_path, "link", "real")


def test_a_partial_folder_that_is_a_link_is_left_alone(qwen, tmp_path):
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "thesis.tex").write_text("years of work")
    (tmp_path / ".out.partial").symlink_to("victim")
    with pytest.raises(RuntimeError, match="need this name for a folder"):
        hf_to_megatron.convert(qwen, tmp_path / "out", layout=Layout())
    assert (tmp_path / "victim" / "thesis.tex").exists()


def test_an_overwritten_target_survives_a_rename_that_fails(qwen, tmp_path, monkeypatch):
    hf_to_megatron.convert(qwen, tmp_path / "out", layout=Layout())
    before = contents_of_files(tmp_path / "out")
    rename = Path.rename

    def fail_for_the_new_one(self, target):
        if self.name.endswith(".partial"):
            raise OSError("the disk is gone")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_for_the_new_one)
    with pytest.raises(OSError, match="the disk is gone"):
        hf_to_megatron.convert(qwen, tmp_path / "out", layout=Layout(tensor=2), overwrite=True)
    monkeypatch.undo()
    assert contents_of_files(tmp_path / "out") == before
    assert no_traces(tmp_path, "out")


def test_a_target_that_a_killed_overwrite_has_moved_comes_back(qwen, checkpoint, tmp_path):
    checkpoint.rename(tmp_path / ".checkpoint.replaced")
    with pytest.raises(ValueError, match="checkpoint: need a folder that does not exist yet"):
        hf_to_megatron.convert(qwen, checkpoint, layout=Layout())
    assert no_traces(tmp_path, "checkpoint")


@pytest.mark.parametrize(("key", "value"), [("vocab_size", 120), ("rms_norm_eps", 0.1)])
def test_another_models_config_is_refused(qwen, checkpoint, key, value, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text(json.dumps(HfReader(qwen).config | {key: value}))
    with pytest.raises(ValueError, match=r"other: need the (vocab_size|norm_eps) of .*hf"):
        megatron_to_hf.convert(checkpoint, tmp_path / "back", like=other)


def test_a_type_that_is_not_written_wants_another_to_be_chosen(qwen, tmp_path):
    def widen(weights):
        weights |= {name: tensor.double() for name, tensor in weights.items()}

    wide = changed(qwen, tmp_path / "in", widen)
    with pytest.raises(ValueError, match=r"got float64\. Choose one \(--dtype\)"):
        hf_to_megatron.convert(wide, tmp_path / "out", layout=Layout())
    hf_to_megatron.convert(wide, tmp_path / "out", layout=Layout(), dtype=torch.float32)


def test_a_checkpoint_of_several_types_wants_one_to_be_chosen(checkpoint, tmp_path):
    index = read_index(checkpoint)
    norm = index.state_dict_metadata["decoder.final_layernorm.weight"]
    object.__setattr__(norm.properties, "dtype", torch.bfloat16)
    write_index(checkpoint, index)
    with pytest.raises(ValueError, match=r"got bfloat16, float32\. Choose one"):
        megatron_to_hf.convert(checkpoint, tmp_path / "back")
    with pytest.raises(RuntimeError, match="another shape or type"):
        megatron_to_hf.convert(checkpoint, tmp_path / "back", dtype=torch.float32)


def test_a_part_that_is_stored_twice_is_noticed(checkpoint, tmp_path):
    index = read_index(checkpoint)
    chunks = index.state_dict_metadata["embedding.word_embeddings.weight"].chunks
    chunks[1] = chunks[0]
    write_index(checkpoint, index)
    with pytest.raises(RuntimeError, match=r"parts of embedding\.word.* twice"):
        megatron_to_hf.convert(checkpoint, tmp_path / "back")


def test_an_equal_output_layer_of_a_tied_model_may_have_another_type(folders, tmp_path):
    def store_head(weights):
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"].bfloat16()

    def round_embedding(weights):
        weights["model.embed_tokens.weight"] = (
            weights["model.embed_tokens.weight"].bfloat16().float()
        )

    rounded = changed(folders["qwen3_tied"], tmp_path / "rounded", round_embedding)
    stored = changed(rounded, tmp_path / "in", store_head)
    hf_to_megatron.convert(stored, tmp_path / "out", layout=Layout(), dtype=torch.float32)


@pytest.mark.parametrize("content", ['{"weight_map": [1]}', '{"weight_map": null}', "[]"])
def test_a_broken_index_of_shards_is_refused_in_one_line(qwen, content, tmp_path):
    shutil.copytree(qwen, tmp_path / "in")
    (tmp_path / "in" / "model.safetensors").rename(tmp_path / "in" / "model-1.safetensors")
    (tmp_path / "in" / "model.safetensors.index.json").write_text(content)
    done = run("inspect", tmp_path / "in")
    assert done.exit_code == 1
    assert done.output.startswith("error: ")


@pytest.mark.parametrize(
    "change",
    [
        {"rope_parameters": [1]},
        {"architectures": [["a"]]},
        {"layer_types": 5},
        {"rope_parameters": {"rope_type": ["x"]}},
        {"rope_parameters": None, "rope_theta": [1]},
        {"tie_word_embeddings": "false"},
    ],
)
def test_a_malformed_config_is_refused_in_one_line(qwen, change, tmp_path):
    shutil.copytree(qwen, tmp_path / "in")
    config = HfReader(qwen).config | change
    (tmp_path / "in" / "config.json").write_text(json.dumps(config))
    done = run("inspect", tmp_path / "in")
    assert done.exit_code == 1
    assert done.output.startswith("error: config.json: ")


def test_configs_that_compute_other_things_are_told_apart(qwen, tmp_path):
    shutil.copytree(qwen, tmp_path / "other")
    config = HfReader(qwen).config | {"rms_norm_eps": 0.5, "[/red]": 1}
    (tmp_path / "other" / "config.json").write_text(json.dumps(config))
    done = run("compare", qwen, tmp_path / "other")
    assert done.exit_code == 1
    assert "51 equal, 0 differ" in done.output
    assert "compute different things" in done.output


# Damaged and hostile checkpoints


def test_a_cut_file_is_named(checkpoint, tmp_path):
    file = checkpoint / "__3_0.distcp"
    os.truncate(file, file.stat().st_size - 1)
    with pytest.raises(RuntimeError, match=r"__3_0\.distcp: need \d+ bytes, got \d+"):
        megatron_to_hf.convert(checkpoint, tmp_path / "back")


def test_a_missing_file_is_named(checkpoint, tmp_path):
    (checkpoint / "__1_0.distcp").unlink()
    with pytest.raises(RuntimeError, match=r"__1_0\.distcp: need \d+ bytes, got 0"):
        megatron_to_hf.convert(checkpoint, tmp_path / "back")


def test_a_garbled_tensor_is_named_and_nothing_is_left(checkpoint, tmp_path):
    stored = read_index(checkpoint).storage_data
    place = next(p for p in stored if p.fqn.endswith("linear_fc2.weight"))
    with (checkpoint / stored[place].relative_path).open("r+b") as file:
        file.seek(stored[place].offset)
        file.write(b"\0" * 64)
    with pytest.raises(RuntimeError, match=r"distcp: need .*linear_fc2\.weight at byte \d+"):
        megatron_to_hf.convert(checkpoint, tmp_path / "back")
    assert no_traces(tmp_path, "checkpoint")


def test_extra_states_may_be_missing(qwen, checkpoint, tmp_path):
    index = read_index(checkpoint)
    for name in [key for key in index.state_dict_metadata if "_extra_state" in key]:
        del index.state_dict_metadata[name]
    write_index(checkpoint, index)
    megatron_to_hf.convert(checkpoint, tmp_path / "back", like=qwen)
    assert contents(tmp_path / "back") == contents(qwen)


def test_the_first_stage_has_the_embedding_and_the_last_the_output_layer(qwen):
    arch = HfReader(qwen).architecture
    table = weight_table(arch, padded_vocab=models.VOCAB_SIZE)
    files = plan_files(arch, table, Layout(pipeline=4), torch.float32)
    names = [{item.piece.entry.megatron_name for item in file.items} for file in files]
    assert ["embedding.word_embeddings.weight" in stage for stage in names] == [True, *[False] * 3]
    assert ["output_layer.weight" in stage for stage in names] == [*[False] * 3, True]
    assert ["decoder.layers.2.mlp.linear_fc2.weight" in stage for stage in names][2]


def test_a_missing_weight_is_named(checkpoint, tmp_path):
    index = read_index(checkpoint)
    del index.state_dict_metadata["decoder.final_layernorm.weight"]
    write_index(checkpoint, index)
    with pytest.raises(ValueError, match=r"decoder\.final_layernorm\.weight is missing"):
        megatron_to_hf.convert(checkpoint, tmp_path / "back")


def test_an_unexpected_weight_is_named(folders, checkpoint, tmp_path):
    shutil.rmtree(checkpoint / "hf")
    with pytest.raises(ValueError, match=r"linear_qkv\.bias, .* are not part of a llama model"):
        megatron_to_hf.convert(checkpoint, tmp_path / "back", like=folders["llama32_tied"])


def test_a_weight_of_another_shape_is_named(folders, checkpoint, tmp_path):
    other = models.save("qwen2_untied", tmp_path / "other", kv_heads=2)
    shutil.rmtree(checkpoint / "hf")
    with pytest.raises(ValueError, match=r"linear_qkv\.weight must be \[4, 96, 64\], got \[4, 128"):
        megatron_to_hf.convert(checkpoint, tmp_path / "back", like=other)


def test_a_box_that_the_index_lost_is_noticed(checkpoint, tmp_path):
    index = read_index(checkpoint)
    index.state_dict_metadata["decoder.layers.mlp.linear_fc2.weight"].chunks.pop()
    write_index(checkpoint, index)
    with pytest.raises(RuntimeError, match=r"need 24576 numbers of decoder.*, got 21504"):
        megatron_to_hf.convert(checkpoint, tmp_path / "back")


class _Attack:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return (os.mkdir, (str(self.target),))


@pytest.mark.parametrize("kind", ["attack", "damaged"])
def test_an_index_is_never_run_as_code(checkpoint, kind, tmp_path):
    content = pickle.dumps(_Attack(tmp_path / "owned")) if kind == "attack" else b"\x80\x04garbage"
    (checkpoint / INDEX_FILE).write_bytes(content)
    with pytest.raises(RuntimeError, match=r"\.metadata: need torch's index of a checkpoint"):
        megatron_to_hf.convert(checkpoint, tmp_path / "back")
    assert not (tmp_path / "owned").exists()


def test_a_tensor_that_is_code_is_never_run(checkpoint, tmp_path):
    index = read_index(checkpoint)
    place = next(p for p in index.storage_data if p.fqn == "decoder.final_layernorm.weight")
    buffer = io.BytesIO()
    torch.save(_Attack(tmp_path / "owned"), buffer)
    (checkpoint / "evil.distcp").write_bytes(buffer.getvalue())
    stored = type(index.storage_data[place])("evil.distcp", 0, len(buffer.getvalue()))
    index.storage_data[place] = stored
    write_index(checkpoint, index)
    with pytest.raises(RuntimeError, match=r"evil\.distcp: need decoder\.final_layernorm\.weight"):
        megatron_to_hf.convert(checkpoint, tmp_path / "back")
    assert not (tmp_path / "owned").exists()


def test_numbers_beyond_the_end_of_a_file_are_refused(tmp_path):
    (tmp_path / "short").write_bytes(b"\0" * 100)
    with pytest.raises(RuntimeError, match=r"short: need 64 bytes from byte 50 on, got 50"):
        mapped(tmp_path / "short", start=50, count=16, dtype=torch.float32)
    aligned = mapped(tmp_path / "short", start=36, count=16, dtype=torch.float32)
    assert torch.equal(aligned, torch.zeros(16))


def test_an_index_cannot_point_outside_its_folder(checkpoint, tmp_path):
    index = read_index(checkpoint)
    place, stored = next(iter(index.storage_data.items()))
    (tmp_path / "elsewhere").write_bytes(b"\0" * 10**6)
    index.storage_data[place] = type(stored)("../elsewhere", 0, 10)
    write_index(checkpoint, index)
    with pytest.raises(RuntimeError, match=r"names \.\./elsewhere, which lies outside"):
        megatron_to_hf.convert(checkpoint, tmp_path / "back")


def test_a_checkpoint_without_config_says_which_option_gives_one(checkpoint, tmp_path):
    shutil.rmtree(checkpoint / "hf")
    with pytest.raises(ValueError, match=r"without hf/.*\(--like\)"):
        megatron_to_hf.convert(checkpoint, tmp_path / "back")


def test_a_checkpoint_without_teacher_is_refused(checkpoint, tmp_path):
    with pytest.raises(ValueError, match=r"need the teacher's embedding.*Leave --teacher out"):
        megatron_to_hf.convert(checkpoint, tmp_path / "back", teacher=True)


# Commands


def run(*arguments: object):
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def test_the_commands_convert_compare_and_inspect(qwen, tmp_path):
    done = run("hf-to-megatron", qwen, tmp_path / "checkpoint", "--tensor", 2, "--pipeline", 2)
    assert done.exit_code == 0, done.output
    assert re.search(r"wrote 0\.000561 GB in float32 .* GB/s, peak memory \d+\.\d+ GB", done.output)
    done = run("megatron-to-hf", tmp_path / "checkpoint", tmp_path / "back", "--dtype", "bf16")
    assert done.exit_code == 0, done.output
    done = run("compare", qwen, tmp_path / "checkpoint", "--logits")
    assert done.exit_code == 0, done.output
    assert "51 tensors: 51 equal, 0 differ" in done.output
    assert "logits: largest difference 0," in done.output
    done = run("compare", tmp_path / "checkpoint", tmp_path / "back")
    assert done.exit_code == 1
    assert "51 tensors: 0 equal, 51 differ" in done.output
    assert "config.json differs in: dtype" in done.output
    done = run("inspect", tmp_path / "checkpoint")
    assert done.exit_code == 0
    for fact in ("qwen2", "140,224", "padded vocabulary    128", "tensor size  2", "its own"):
        assert fact in done.output, done.output


def test_compare_measures_the_largest_difference(qwen, tmp_path):
    def shift(weights):
        weights["model.norm.weight"] += 0.25

    other = changed(qwen, tmp_path / "other", shift)
    done = run("compare", qwen, other)
    assert done.exit_code == 1
    assert "model.norm.weight: values: largest 0.25, relative" in done.output
    assert "50 equal, 1 differ" in done.output


def test_compare_looks_at_every_part_of_a_tensor(qwen, tmp_path, monkeypatch):
    monkeypatch.setattr(compare, "_PART", 7)

    def shift(weights):
        weights["model.norm.weight"][3] += 0.5
        weights["model.norm.weight"][60] += 0.25

    done = run("compare", qwen, changed(qwen, tmp_path / "other", shift))
    assert "model.norm.weight: values: largest 0.5, relative" in done.output


def test_compare_refuses_an_incomplete_folder(qwen, tmp_path):
    broken = changed(qwen, tmp_path / "other", lambda weights: weights.pop("model.norm.weight"))
    done = run("compare", broken, qwen)
    assert done.exit_code == 1
    assert "model.norm.weight is missing" in done.output


def test_after_a_failure_no_further_item_is_begun():
    begun = []

    def fail_first(item):
        begun.append(item)
        raise KeyError(item)

    with pytest.raises(KeyError, match="0"):
        in_parallel(fail_first, range(100), workers=1)
    assert begun == [0]


@pytest.mark.parametrize(
    "arguments",
    [
        ("hf-to-megatron", "nowhere", "out"),
        ("megatron-to-hf", "nowhere", "out"),
        ("megatron-to-hf", "nowhere", "out", "--shard-size", "many"),
        ("compare", "nowhere", "elsewhere"),
        ("inspect", "nowhere"),
        ("hf-to-megatron", "nowhere", "n" * 300),
        ("hf-to-megatron", "nowhere", "out", "--backend", "megatron-bridge"),
    ],
)
def test_a_failing_command_ends_with_one_line_and_code_1(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(*arguments)
    assert done.exit_code == 1
    assert done.output.startswith("error: ")
    assert done.output.count("\n") == 1
    assert no_traces(tmp_path)


def test_inspect_of_an_incomplete_folder_says_what_is_missing(qwen, tmp_path):
    name = "model.layers.0.mlp.up_proj.weight"
    broken = changed(qwen, tmp_path / "in", lambda weights: weights.pop(name))
    done = run("inspect", broken)
    assert done.exit_code == 1
    assert f"{name} is missing" in done.output.replace("\n", " ").replace("  ", "")


@pytest.mark.parametrize(
    ("text", "size"), [("5GB", 5e9), ("500MB", 5e8), ("1.5gb", 1.5e9), ("4096", 4096)]
)
def test_sizes_are_read(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "5XB", "1.2.3GB", "0"])
def test_a_size_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match="--shard-size"):
        parse_size(text)


KILLED = """
import sys, time
from pathlib import Path
from checkpoint_tools import hf_to_megatron
from checkpoint_tools.megatron_writer import Layout, MegatronWriter
write = MegatronWriter.write
def slow(self, file, build):
    write(self, file, build)
    print("written", flush=True)
    time.sleep(60)
MegatronWriter.write = slow
hf_to_megatron.convert(Path(sys.argv[1]), Path(sys.argv[2]), layout=Layout(tensor=2), workers=1)
"""


def test_a_killed_conversion_leaves_nothing_that_looks_finished_and_starts_again(qwen, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(qwen), str(tmp_path / "out")], stdout=subprocess.PIPE
    )
    assert process.stdout.readline().split()[-1] == b"written"
    process.kill()
    process.communicate()
    assert no_traces(tmp_path, ".out.partial")
    with pytest.raises(ValueError, match=r"without \.metadata"):
        read_index(tmp_path / ".out.partial")
    hf_to_megatron.convert(qwen, tmp_path / "out", layout=Layout(tensor=2))
    assert no_traces(tmp_path, "out")


def test_the_backend_is_named_when_it_is_missing(qwen, tmp_path):
    done = run("hf-to-megatron", qwen, tmp_path / "out", "--backend", "megatron-bridge")
    assert done.exit_code == 1
    assert "need the packages megatron-bridge and transformer-engine" in done.output


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
