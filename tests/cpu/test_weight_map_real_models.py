"""The weight tables of published models: transformers' names and shapes, the known sizes."""

import json
import math
from pathlib import Path

import pytest
import torch
import transformers

from checkpoint_tools.weight_map.architecture import read_architecture
from checkpoint_tools.weight_map.table import weight_table

FACTS = {
    file.stem: json.loads(file.read_text())
    for file in sorted((Path(__file__).parents[1] / "golden" / "hf_configs").glob("*.json"))
}


def meta_weights(config: dict) -> dict[str, tuple[int, ...]]:
    """Names and shapes of transformers' own model as its folder holds them, without memory."""
    kind = config["architectures"][0].removesuffix("ForCausalLM")
    with torch.device("meta"):
        model = getattr(transformers, f"{kind}ForCausalLM")(
            getattr(transformers, f"{kind}Config")(**config)
        )
    shapes = {}
    for name, weight in model.named_parameters():
        stem, experts, projection = name.partition(".mlp.experts.")
        if not experts:
            shapes[name] = tuple(weight.shape)
            continue
        # In memory all experts are one tensor [experts, out, in], gate over up; on disk each is
        # a tensor of its own, as test_weight_map_table checks with written folders.
        count, rows, columns = weight.shape
        halves = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}[projection]
        for expert in range(count):
            for half in halves:
                shape = (rows // len(halves), columns)
                shapes[f"{stem}.mlp.experts.{expert}.{half}.weight"] = shape
    return shapes


@pytest.mark.parametrize("name", FACTS)
def test_a_published_model_has_the_known_number_of_parameters(name):
    table = weight_table(read_architecture(FACTS[name]["config"]))
    count = sum(math.prod(shape) for entry in table for shape in entry.hf_shapes)
    assert count == FACTS[name]["parameters"]
    assert count == sum(math.prod(entry.megatron_shape) for entry in table)


@pytest.mark.parametrize("name", FACTS)
def test_a_published_model_has_the_names_and_shapes_of_transformers(name):
    config = FACTS[name]["config"]
    table = weight_table(read_architecture(config))
    ours = {
        hf_name: shape
        for entry in table
        for hf_name, shape in zip(entry.hf_names, entry.hf_shapes, strict=True)
    }
    assert ours == meta_weights(config)


def test_the_models_of_the_paper_are_among_the_facts():
    names = {model for facts in FACTS.values() for model in facts["models"]}
    assert {
        "Qwen/Qwen2.5-3B",
        "Qwen/Qwen2.5-7B",
        "Qwen/Qwen3-1.7B-Base",
        "Qwen/Qwen3-4B-Base",
        "Qwen/Qwen3-8B-Base",
        "meta-llama/Llama-3.2-3B-Instruct",
        "Qwen/Qwen3-30B-A3B",
    } <= names
