"""Conversions of the published shapes: every plan, and real layers one at a time."""

import json
import math
from collections import Counter
from pathlib import Path

import pytest
import torch

from checkpoint_tools import hf_to_megatron, megatron_to_hf
from checkpoint_tools.hf_writer import HfWriter
from checkpoint_tools.megatron_writer import Layout, plan_files
from checkpoint_tools.weight_map.architecture import read_architecture
from checkpoint_tools.weight_map.table import weight_table

CONFIGS = sorted((Path(__file__).parents[1] / "golden" / "hf_configs").glob("*.json"))
SMOLLM2 = Path(__file__).parents[2] / "models" / "smollm2-135m-instruct"


def by_name(path: Path) -> str:
    return path.stem


@pytest.mark.parametrize("tensor", [1, 2, 4, 8])
@pytest.mark.parametrize("config", CONFIGS, ids=by_name)
def test_a_plan_holds_every_number_once_and_shares_them_evenly(config, tensor):
    arch = read_architecture(json.loads(config.read_text())["config"])
    if arch.num_kv_heads % tensor:
        pytest.skip(f"{arch.num_kv_heads} key/value heads are not shared by {tensor} ranks")
    experts = 1 if arch.mixture is None else 4
    layout = Layout(tensor=tensor, pipeline=2 if arch.num_layers % 4 else 4, expert=experts)
    padded = math.ceil(arch.vocab_size / tensor) * tensor
    table = weight_table(arch, padded_vocab=padded)
    files = plan_files(arch, table, layout, torch.bfloat16)
    boxes = Counter((i.place.key, i.offset) for file in files for i in file.items)
    assert set(boxes.values()) == {1}
    planned = sum(item.shape.numel() for file in files for item in file.items)
    assert planned == sum(math.prod(entry.megatron_shape) for entry in table)
    largest = max(item.shape.numel() * 2 for file in files for item in file.items)
    sizes = [sum(item.shape.numel() * 2 for item in file.items) for file in files]
    assert max(sizes) <= max(256e6, largest)


def one_layer(config: Path, folder: Path) -> Path:
    """One layer of the real width with random weights, and a few tokens."""
    content = json.loads(config.read_text())["config"]
    content |= {"num_hidden_layers": 1, "vocab_size": 512}
    content.pop("layer_types", None)
    (folder / "config").mkdir(parents=True)
    (folder / "config" / "config.json").write_text(json.dumps(content))
    generator = torch.Generator().manual_seed(3)
    with HfWriter(folder / "hf", source_folder=folder / "config", dtype=torch.bfloat16) as writer:
        for entry in weight_table(read_architecture(content)):
            for name, shape in zip(entry.hf_names, entry.hf_shapes, strict=True):
                writer.add(name, torch.randn(shape, generator=generator))
    return folder / "hf"


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS, ids=by_name)
def test_a_real_layer_goes_there_and_back_byte_for_byte(config, tmp_path):
    source = one_layer(config, tmp_path)
    layout = Layout(tensor=2, expert=2 if "a3b" in config.stem else 1)
    hf_to_megatron.convert(source, tmp_path / "checkpoint", layout=layout)
    megatron_to_hf.convert(tmp_path / "checkpoint", tmp_path / "back", like=source)
    for file in source.iterdir():
        assert (tmp_path / "back" / file.name).read_bytes() == file.read_bytes()


@pytest.mark.slow
@pytest.mark.skipif(not SMOLLM2.is_dir(), reason="wants the weights of `make smollm2`")
def test_smollm2_says_the_same_before_and_after(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    hf_to_megatron.convert(SMOLLM2, tmp_path / "checkpoint", layout=Layout(tensor=3, pipeline=2))
    megatron_to_hf.convert(tmp_path / "checkpoint", tmp_path / "back")
    said = []
    for folder in (SMOLLM2, tmp_path / "back"):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        prompt = tokenizer("The capital of France is", return_tensors="pt")
        tokens = model.generate(**prompt, max_new_tokens=40, do_sample=False)
        said.append(tokenizer.decode(tokens[0]))
    assert said[0] == said[1]
    assert "Paris" in said[0]
