"""The commands of corew-convert as their users type them."""

import json
import re
import shutil

import pytest
from typer.testing import CliRunner

from checkpoint_tools import cli, compare
from checkpoint_tools.hf_folder import HfReader
from checkpoint_tools.megatron_to_hf import parse_size
from tests.cpu.conversions import changed, no_traces


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


def test_the_backend_is_named_when_it_is_missing(qwen, tmp_path):
    done = run("hf-to-megatron", qwen, tmp_path / "out", "--backend", "megatron-bridge")
    assert done.exit_code == 1
    assert "need the packages megatron-bridge and transformer-engine" in done.output
