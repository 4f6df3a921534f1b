"""The end tokens are the union of what the files of a model folder name."""

import json
from pathlib import Path

import pytest

from megatron_corew.rollout.end_tokens import end_token_ids


def write(folder: Path, **files: object) -> Path:
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def test_qwen25_has_two_end_tokens(tmp_path):
    folder = write(
        tmp_path,
        config={"eos_token_id": 151643},
        generation_config={"eos_token_id": 151643},
        tokenizer_config={
            "eos_token": "<|im_end|>",
            "added_tokens_decoder": {"151645": {"content": "<|im_end|>"}},
        },
    )
    assert end_token_ids(folder) == (151643, 151645)


def test_llama32_has_three_end_tokens(tmp_path):
    folder = write(
        tmp_path,
        config={"eos_token_id": [128001, 128008, 128009]},
        generation_config={"eos_token_id": [128001, 128008, 128009]},
        tokenizer_config={"eos_token": {"content": "<|eot_id|>"}},
        tokenizer={"added_tokens": [{"content": "<|eot_id|>", "id": 128009}]},
    )
    assert end_token_ids(folder) == (128001, 128008, 128009)


def test_an_end_token_may_stand_in_the_vocabulary(tmp_path):
    folder = write(
        tmp_path,
        tokenizer_config={"eos_token": "</s>"},
        tokenizer={"model": {"vocab": {"a": 0, "</s>": 2}}},
    )
    assert end_token_ids(folder) == (2,)


def test_a_folder_that_names_none_gives_none(tmp_path):
    folder = write(tmp_path, config={"eos_token_id": None}, tokenizer_config={"eos_token": None})
    assert end_token_ids(folder) == ()


def test_an_end_token_that_the_tokenizer_does_not_know_is_an_error(tmp_path):
    folder = write(
        tmp_path, tokenizer_config={"eos_token": "<end>"}, tokenizer={"model": {"vocab": {"a": 0}}}
    )
    with pytest.raises(ValueError, match=r"eos_token.*'<end>'"):
        end_token_ids(folder)
