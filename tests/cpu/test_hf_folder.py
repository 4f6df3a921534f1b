"""Reading Hugging Face folders: whole, incomplete, broken."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from checkpoint_tools.hf_folder import HfReader
from checkpoint_tools.weight_map.table import weight_table
from tests.cpu.hf_models import FAMILIES, UNTIED_HEAD, save_model


def table_of(reader):
    return weight_table(reader.architecture)


def rewrite_weights(folder, change):
    """Apply ``change`` to the dict of stored tensors."""
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def rewrite_json(file, **changes):
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize("shard_size", ["5GB", "20KB"], ids=["one file", "many shards"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_saved_by_transformers_is_complete(tmp_path, family, tied, shard_size):
    model = save_model(tmp_path, family, tied=tied, max_shard_size=shard_size)
    reader = HfReader(tmp_path)
    reader.check_complete(table_of(reader))
    for name in reader.names():
        assert torch.equal(reader.read(name), model.state_dict()[name])


@pytest.mark.parametrize(
    "name", ["model.layers.1.self_attn.k_proj.bias", "model.embed_tokens.weight"]
)
def test_a_missing_or_renamed_tensor_is_named(tmp_path, name):
    save_model(tmp_path)
    rewrite_weights(tmp_path, lambda weights: weights.update({"renamed": weights.pop(name)}))
    reader = HfReader(tmp_path)
    with pytest.raises(ValueError, match=f"{name} is missing"):
        reader.check_complete(table_of(reader))
    with pytest.raises(ValueError, match=f"no tensor {name}"):
        reader.read(name)


def test_an_unexpected_tensor_is_named(tmp_path):
    save_model(tmp_path)
    rewrite_weights(tmp_path, lambda weights: weights.update(surplus=torch.ones(2)))
    reader = HfReader(tmp_path)
    with pytest.raises(ValueError, match="surplus is not part of a qwen2 model"):
        reader.check_complete(table_of(reader))


def test_only_the_first_offenders_are_named(tmp_path):
    save_model(tmp_path)
    surplus = {f"surplus{number}": torch.ones(1) for number in range(5)}
    rewrite_weights(tmp_path, lambda weights: weights.update(surplus))
    reader = HfReader(tmp_path)
    with pytest.raises(ValueError, match="surplus0, surplus1, surplus2 and 2 more are not part"):
        reader.check_complete(table_of(reader))


@pytest.mark.parametrize(
    ("tensor", "named"),
    [
        (torch.ones(31), r"model\.norm\.weight must be \[32\] .* got \[31\] in F32"),
        (torch.ones(32, dtype=torch.int8), r"model\.norm\.weight must be .* in I8"),
    ],
)
def test_a_tensor_of_another_shape_or_kind_is_named(tmp_path, tensor, named):
    save_model(tmp_path)
    rewrite_weights(tmp_path, lambda weights: weights.update({"model.norm.weight": tensor}))
    reader = HfReader(tmp_path)
    with pytest.raises(ValueError, match=named):
        reader.check_complete(table_of(reader))


def test_an_untied_model_without_output_layer_is_refused_and_never_tied(tmp_path):
    save_model(tmp_path, tied=False)
    rewrite_weights(tmp_path, lambda weights: weights.pop(UNTIED_HEAD))
    reader = HfReader(tmp_path)
    with pytest.raises(ValueError, match=r"lm_head\.weight is missing\. tie_word_embeddings"):
        reader.check_complete(table_of(reader))


def test_a_tied_model_may_store_an_equal_output_layer_but_no_other(tmp_path):
    save_model(tmp_path, tied=True)
    embedding = "model.embed_tokens.weight"
    rewrite_weights(tmp_path, lambda w: w.update({UNTIED_HEAD: w[embedding].clone()}))
    reader = HfReader(tmp_path)
    reader.check_complete(table_of(reader))
    rewrite_weights(tmp_path, lambda w: w.update({UNTIED_HEAD: w[embedding] + 1}))
    reader = HfReader(tmp_path)
    with pytest.raises(ValueError, match="says tie_word_embeddings, but"):
        reader.check_complete(table_of(reader))


def test_stored_rotary_frequencies_are_passed_over(tmp_path):
    save_model(tmp_path, "Llama")
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    rewrite_weights(tmp_path, lambda weights: weights.update({name: torch.ones(4)}))
    reader = HfReader(tmp_path)
    reader.check_complete(table_of(reader))
    assert name not in reader.names()


def test_a_missing_folder_or_config_says_what_was_meant(tmp_path):
    with pytest.raises(ValueError, match=r"need a Hugging Face folder or a checkpoint"):
        HfReader(tmp_path / "absent")
    with pytest.raises(ValueError, match=r"need config\.json.*Use a whole Hugging Face folder"):
        HfReader(tmp_path)
    (tmp_path / "step-000004").mkdir()
    with pytest.raises(ValueError, match=r"need config\.json.*Name one step.*step-000004"):
        HfReader(tmp_path)
    (tmp_path / ".metadata").touch()
    with pytest.raises(ValueError, match=r"need config\.json.*This is a checkpoint already"):
        HfReader(tmp_path)


def test_a_broken_config_is_named(tmp_path):
    save_model(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json: need JSON"):
        HfReader(tmp_path)


def test_an_unsupported_architecture_is_refused_at_once(tmp_path):
    save_model(tmp_path)
    rewrite_json(tmp_path / "config.json", architectures=["GPT2LMHeadModel"])
    with pytest.raises(ValueError, match="GPT2LMHeadModel"):
        HfReader(tmp_path)


def test_pickled_weights_are_refused_with_a_way_out(tmp_path):
    save_model(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"only the pickled pytorch_model\.bin.*save_pretrained"):
        HfReader(tmp_path)
    (tmp_path / "pytorch_model.bin").unlink()
    with pytest.raises(ValueError, match=r"need model\.safetensors .* got none"):
        HfReader(tmp_path)


@pytest.mark.parametrize("kept_bytes", [4, 1000, 40_000])
def test_a_truncated_file_is_named(tmp_path, kept_bytes):
    save_model(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept_bytes])
    with pytest.raises(RuntimeError, match=r"model\.safetensors: need a whole safetensors file"):
        HfReader(tmp_path)


def test_a_missing_shard_is_named(tmp_path):
    save_model(tmp_path, max_shard_size="20KB")
    shard = sorted(tmp_path.glob("model-00002-of-*"))[0]
    shard.unlink()
    with pytest.raises(RuntimeError, match=shard.name):
        HfReader(tmp_path)


def test_an_index_that_disagrees_with_its_shards_is_refused(tmp_path):
    save_model(tmp_path, max_shard_size="20KB")
    file = tmp_path / "model.safetensors.index.json"
    weight_map = json.loads(file.read_text())["weight_map"]
    weight_map["model.norm.weight"] = weight_map["model.embed_tokens.weight"]
    rewrite_json(file, weight_map=weight_map)
    with pytest.raises(RuntimeError, match=r"need model\.norm\.weight in model-"):
        HfReader(tmp_path)


def test_an_index_cannot_point_outside_its_folder(tmp_path):
    save_model(tmp_path / "in")
    (tmp_path / "in/model.safetensors").rename(tmp_path / "elsewhere.safetensors")
    index = {"weight_map": {"model.norm.weight": "../elsewhere.safetensors"}}
    (tmp_path / "in/model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(RuntimeError, match="elsewhere"):
        HfReader(tmp_path / "in")
