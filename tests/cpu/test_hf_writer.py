"""Writing Hugging Face folders: whole, in shards, interrupted."""

import json
import os
import shutil

import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file

from checkpoint_tools.hf_folder import HfReader
from checkpoint_tools.hf_writer import HfWriter
from checkpoint_tools.weight_map.table import weight_table
from tests.cpu.hf_models import FAMILIES, LLAMA3_ROPE, UNTIED_HEAD, save_model

LARGEST_TENSOR_BYTES = 131 * 32 * 4


def copy_through_megatron(source, target, *, padded_vocab=None, **options):
    """HF -> Megatron names -> HF, as import and export do."""
    reader = HfReader(source)
    with HfWriter(target, source_folder=source, dtype=torch.float32, **options) as writer:
        for entry in weight_table(reader.architecture, padded_vocab=padded_vocab):
            whole = entry.to_megatron({name: reader.read(name) for name in entry.hf_names})
            for name, tensor in entry.to_hf(whole).items():
                writer.add(name, tensor)


def logits(model):
    with torch.no_grad():
        return model(torch.arange(12).unsqueeze(0)).logits


@pytest.mark.parametrize("shard_bytes", [5e9, 20_000], ids=["one file", "many shards"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", [*FAMILIES, "Qwen3Moe"])
def test_a_written_folder_loads_in_transformers_bit_for_bit(tmp_path, family, tied, shard_bytes):
    model = save_model(tmp_path / "in", family, tied=tied)
    copy_through_megatron(
        tmp_path / "in", tmp_path / "out", padded_vocab=256, shard_bytes=shard_bytes
    )
    loaded, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    for name, weight in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight), name
    assert torch.equal(logits(loaded), logits(model))
    assert loaded.config.tie_word_embeddings is tied


def test_an_untied_output_layer_stays_apart_from_the_embedding(tmp_path):
    save_model(tmp_path / "in", tied=False)
    copy_through_megatron(tmp_path / "in", tmp_path / "out")
    reader = HfReader(tmp_path / "out")
    assert not torch.equal(reader.read(UNTIED_HEAD), reader.read("model.embed_tokens.weight"))


def test_a_tied_output_layer_is_not_written(tmp_path):
    save_model(tmp_path / "in", tied=True)
    copy_through_megatron(tmp_path / "in", tmp_path / "out")
    assert UNTIED_HEAD not in HfReader(tmp_path / "out").names()


def test_the_written_config_keeps_every_field_but_the_type(tmp_path):
    save_model(tmp_path / "in", "Llama")
    with HfWriter(tmp_path / "out", source_folder=tmp_path / "in", dtype=torch.bfloat16) as writer:
        for name in HfReader(tmp_path / "in").names():
            writer.add(name, HfReader(tmp_path / "in").read(name))
    before, after = (json.loads((tmp_path / f / "config.json").read_text()) for f in ("in", "out"))
    assert before["rope_parameters"] == LLAMA3_ROPE
    assert after == before | {"dtype": "bfloat16"}
    assert HfReader(tmp_path / "out").read("model.norm.weight").dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("spelled", "written"),
    [
        (["torch_dtype"], ["torch_dtype"]),
        (["dtype", "torch_dtype"], ["dtype", "torch_dtype"]),
        ([], ["torch_dtype"]),
    ],
)
def test_the_type_is_written_in_the_spelling_of_the_source(tmp_path, spelled, written):
    save_model(tmp_path / "in")
    config = json.loads((tmp_path / "in/config.json").read_text())
    del config["dtype"]
    (tmp_path / "in/config.json").write_text(
        json.dumps(config | dict.fromkeys(spelled, "bfloat16"))
    )
    copy_through_megatron(tmp_path / "in", tmp_path / "out")
    after = json.loads((tmp_path / "out/config.json").read_text())
    assert after == config | dict.fromkeys(written, "float32")


def test_tokenizer_and_generation_config_come_along(tmp_path):
    save_model(tmp_path / "in")
    (tmp_path / "in/tokenizer.json").write_text("{}")
    (tmp_path / "in/chat_template.jinja").write_text("{{ messages }}")
    (tmp_path / "in/training_args.bin").write_text("not ours")
    copy_through_megatron(tmp_path / "in", tmp_path / "out")
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
    ]


def test_shards_are_small_enough_and_the_index_lists_each_tensor(tmp_path):
    save_model(tmp_path / "in")
    copy_through_megatron(tmp_path / "in", tmp_path / "out", shard_bytes=LARGEST_TENSOR_BYTES)
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    files = sorted((tmp_path / "out").glob("*.safetensors"))
    assert [file.name for file in files] == [
        f"model-{number:05d}-of-{len(files):05d}.safetensors" for number in range(1, len(files) + 1)
    ]
    assert len(files) > 2
    total = 0
    for file in files:
        tensors = load_file(file)
        size = sum(tensor.nbytes for tensor in tensors.values())
        assert size <= LARGEST_TENSOR_BYTES
        assert all(index["weight_map"][name] == file.name for name in tensors)
        total += size
    assert index["metadata"]["total_size"] == total


def test_a_single_file_has_no_index_and_says_its_format(tmp_path):
    save_model(tmp_path / "in")
    copy_through_megatron(tmp_path / "in", tmp_path / "out")
    assert not (tmp_path / "out/model.safetensors.index.json").exists()
    with safe_open(tmp_path / "out/model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_a_tensor_may_change_after_it_was_added(tmp_path):
    save_model(tmp_path / "in")
    reader = HfReader(tmp_path / "in")
    writer = HfWriter(tmp_path / "out", source_folder=tmp_path / "in", dtype=torch.float32)
    for name in reader.names():
        tensor = reader.read(name).clone()
        writer.add(name, tensor)
        tensor.zero_()
    writer.finish()
    norm = HfReader(tmp_path / "out").read("model.norm.weight")
    assert torch.equal(norm, torch.ones(32))


def test_a_writer_may_be_finished_inside_its_context(tmp_path):
    save_model(tmp_path / "in")
    reader = HfReader(tmp_path / "in")
    with HfWriter(tmp_path / "out", source_folder=tmp_path / "in", dtype=torch.float32) as writer:
        for name in reader.names():
            writer.add(name, reader.read(name))
        assert writer.finish() == tmp_path / "out"
    assert set(HfReader(tmp_path / "out").names()) == set(reader.names())


def test_an_interrupted_write_leaves_nothing_that_looks_finished(tmp_path):
    save_model(tmp_path / "in")
    writer = HfWriter(
        tmp_path / "out", source_folder=tmp_path / "in", dtype=torch.float32, shard_bytes=1
    )
    for name in HfReader(tmp_path / "in").names()[:4]:
        writer.add(name, HfReader(tmp_path / "in").read(name))
    # As after a kill: the folder is hidden and has no config.
    assert sorted(folder.name for folder in tmp_path.iterdir()) == [".out.partial", "in"]
    with pytest.raises(ValueError, match=r"config\.json"):
        HfReader(tmp_path / ".out.partial")


def test_a_target_is_written_by_one_process_at_a_time_and_a_new_start_is_clean(tmp_path):
    save_model(tmp_path / "in")
    options = {"source_folder": tmp_path / "in", "dtype": torch.float32}
    first = HfWriter(tmp_path / "out", shard_bytes=1, **options)
    with pytest.raises(RuntimeError, match=r"out: another process is writing it"):
        HfWriter(tmp_path / "out", **options)
    os.close(first._partial._lock)  # What the system does when the process is killed.
    second = HfWriter(tmp_path / "out", **options)
    assert [file.name for file in (tmp_path / ".out.partial").iterdir()] == ["model.safetensors"]
    second.discard()
    assert not (tmp_path / ".out.partial").exists()


def test_a_full_disk_is_noticed_before_anything_is_written(tmp_path, monkeypatch):
    save_model(tmp_path / "in")
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(RuntimeError, match=r"out: need 0\.00 GB on the disk, got 0\.00 GB free"):
        HfWriter(tmp_path / "out", source_folder=tmp_path / "in", dtype=torch.float32)
    assert [folder.name for folder in tmp_path.iterdir()] == ["in"]


def test_only_a_model_folder_is_overwritten(tmp_path):
    save_model(tmp_path / "in")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match=r"out: only a folder that was written here is"):
        HfWriter(
            tmp_path / "out", source_folder=tmp_path / "in", dtype=torch.float32, overwrite=True
        )
    assert (tmp_path / "out" / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("shard_size", ["1GB", "20KB"])
def test_the_files_are_those_of_the_safetensors_library_byte_for_byte(tmp_path, shard_size):
    save_model(tmp_path / "in", max_shard_size=shard_size)
    reader = HfReader(tmp_path / "in")
    names = list(reader.names())
    with HfWriter(
        tmp_path / "out", source_folder=tmp_path / "in", dtype=torch.float32, like=True
    ) as writer:
        for name in reversed(names):
            writer.add(name, reader.read(name))
    for file in sorted((tmp_path / "in").iterdir()):
        assert (tmp_path / "out" / file.name).read_bytes() == file.read_bytes(), file.name


def test_an_error_while_writing_clears_away_and_keeps_the_old_folder(tmp_path):
    save_model(tmp_path / "in")
    save_model(tmp_path / "out", tied=False)

    def fail_halfway():
        with HfWriter(
            tmp_path / "out", source_folder=tmp_path / "in", dtype=torch.float32, overwrite=True
        ) as writer:
            writer.add("model.norm.weight", torch.ones(32))
            raise KeyError("the source failed")

    with pytest.raises(KeyError):
        fail_halfway()
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["in", "out"]
    assert UNTIED_HEAD in HfReader(tmp_path / "out").names()


def test_an_incomplete_model_is_not_published(tmp_path):
    save_model(tmp_path / "in")
    writer = HfWriter(tmp_path / "out", source_folder=tmp_path / "in", dtype=torch.float32)
    for name in HfReader(tmp_path / "in").names():
        if name != "model.layers.1.mlp.up_proj.weight":
            writer.add(name, HfReader(tmp_path / "in").read(name))
    with pytest.raises(ValueError, match=r"model\.layers\.1\.mlp\.up_proj\.weight is not added"):
        writer.finish()
    assert not (tmp_path / "out").exists()


def test_an_existing_target_is_refused_unless_overwriting(tmp_path):
    save_model(tmp_path / "in", tied=True)
    save_model(tmp_path / "out", tied=False)
    with pytest.raises(ValueError, match="does not exist yet"):
        HfWriter(tmp_path / "out", source_folder=tmp_path / "in", dtype=torch.float32)
    copy_through_megatron(tmp_path / "in", tmp_path / "out", overwrite=True)
    assert UNTIED_HEAD not in HfReader(tmp_path / "out").names()
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["in", "out"]


def test_a_model_can_be_written_over_its_own_source(tmp_path):
    model = save_model(tmp_path / "in")
    copy_through_megatron(tmp_path / "in", tmp_path / "in", overwrite=True)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "in")
    assert torch.equal(logits(loaded), logits(model))


@pytest.mark.parametrize(
    ("name", "shape"),
    [("lm_head.weight", (131, 32)), ("model.norm.weight", (33,)), ("model.surplus", (1,))],
    ids=["tied head", "wrong shape", "unknown"],
)
def test_a_tensor_that_does_not_belong_is_not_written(tmp_path, name, shape):
    save_model(tmp_path / "in", tied=True)
    with (
        pytest.raises(ValueError, match=name),
        HfWriter(tmp_path / "out", source_folder=tmp_path / "in", dtype=torch.float32) as writer,
    ):
        writer.add(name, torch.zeros(shape))


def test_a_tensor_is_not_written_twice(tmp_path):
    save_model(tmp_path / "in")
    writer = HfWriter(tmp_path / "out", source_folder=tmp_path / "in", dtype=torch.float32)
    writer.add("model.norm.weight", torch.ones(32))
    with pytest.raises(ValueError, match="only once"):
        writer.add("model.norm.weight", torch.ones(32))
