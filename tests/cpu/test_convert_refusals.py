"""Models and checkpoints that a conversion refuses, by the name of what is wrong."""

import io
import json
import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch

from checkpoint_tools import hf_to_megatron, megatron_to_hf
from checkpoint_tools.hf_folder import HfReader
from checkpoint_tools.megatron_index import INDEX_FILE, read_index, write_index
from checkpoint_tools.megatron_writer import Layout, plan_files
from checkpoint_tools.raw_bytes import mapped
from checkpoint_tools.weight_map.architecture import read_architecture
from checkpoint_tools.weight_map.table import weight_table
from tests import models
from tests.cpu.conversions import changed, contents, no_traces


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
