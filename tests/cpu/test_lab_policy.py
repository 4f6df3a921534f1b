"""The policy shipped with the package."""

import json

import pytest
import torch
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer

from megatron_corew.lab.pretrain import Recipe, policy_config, pretrain, save_policy
from megatron_corew.lab.probe import probe
from megatron_corew.lab.task import CORPORA, POLICY_FOLDER, lab_rows
from megatron_corew.preflight import LAB_POLICIES
from megatron_corew.types import VIEWS

PARAMETERS = 449_472
PASS_AT_1, ECHO = 0.50, 0.34


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(POLICY_FOLDER)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(POLICY_FOLDER)


def test_the_folder_is_small():
    assert sum(file.stat().st_size for file in POLICY_FOLDER.iterdir()) <= 4_000_000


def test_the_policy_loads_with_the_shape_of_the_recipe(model, tokenizer):
    wanted = policy_config(len(tokenizer)).to_dict()
    found = json.loads((POLICY_FOLDER / "config.json").read_text())
    same = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    assert [found[key] for key in same] == [wanted[key] for key in same]
    assert model.num_parameters() == PARAMETERS
    assert model.dtype == torch.float32
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight


def test_the_policy_ends_where_the_tokenizer_says(model, tokenizer):
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert model.generation_config.pad_token_id == tokenizer.pad_token_id
    assert tokenizer.model_max_length == model.config.max_position_embeddings


@pytest.mark.parametrize("view", VIEWS)
def test_the_policy_half_masters_the_task_and_often_echoes(model, tokenizer, view):
    found = probe(model, tokenizer, lab_rows("eval", 128), view=view, samples=4)
    # 512 responses: three standard errors are 0.066 at 0.5 and less at 0.34.
    assert found.pass_at_1 == pytest.approx(PASS_AT_1, abs=0.07)
    assert found.echo == pytest.approx(ECHO, abs=0.07)
    assert found.unanswered < 0.05


# What each base does on the original questions: right answers, and its short cut.
FOUND = {
    "lab-echo": (0.444, "echo", 0.397),
    "lab-clean": (0.602, "echo", 0.088),
    "lab-shared": (0.433, "largest", 0.396),
}


@pytest.mark.parametrize("name", FOUND)
def test_a_base_of_the_lab_is_small_and_takes_its_own_short_cut(name, tokenizer):
    folder = LAB_POLICIES[name]
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 2_000_000
    pass_at_1, short_cut, share = FOUND[name]
    base = AutoModelForCausalLM.from_pretrained(folder)
    found = probe(base, tokenizer, lab_rows("eval", 128), view="original", samples=4)
    assert found.pass_at_1 == pytest.approx(pass_at_1, abs=0.07)
    assert getattr(found, short_cut) == pytest.approx(share, abs=0.07)


def test_every_base_has_the_tokenizer_of_the_lab():
    wanted = (POLICY_FOLDER / "tokenizer.json").read_bytes()
    for folder in LAB_POLICIES.values():
        assert (folder / "tokenizer.json").read_bytes() == wanted, folder


def test_the_probe_leaves_the_random_state_alone(model, tokenizer):
    torch.manual_seed(1)
    wanted = torch.rand(3)
    torch.manual_seed(1)
    probe(model, tokenizer, lab_rows("eval", 2), view="original", samples=2)
    assert torch.equal(torch.rand(3), wanted)


def test_two_pretrainings_with_one_seed_are_equal_and_load_again(tmp_path):
    short = Recipe(updates=3, batch=8)
    corpus = CORPORA["echo"]
    first, second = (
        pretrain(short, corpus=corpus, seed=5, console=Console(quiet=True)) for _ in range(2)
    )
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name]), name
    save_policy(first, tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(again.get_input_embeddings().weight, first.get_input_embeddings().weight)


def test_the_learning_rate_warms_up_and_falls_to_its_end():
    recipe = Recipe(updates=100, warmup_updates=10, decay_share=0.4, end_lr_share=0.02)
    assert recipe.lr_share(0) == pytest.approx(0.1)
    assert recipe.lr_share(30) == 1.0
    # 20 of the last 40 updates are left: 0.02 + 0.98 / 2
    assert recipe.lr_share(80) == pytest.approx(0.51)
    assert recipe.lr_share(100) == pytest.approx(0.02)
