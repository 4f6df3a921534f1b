"""The lab's tokenizer, built and as shipped with the policy."""

import random

import pytest
from transformers import AutoTokenizer

from megatron_corew.lab.task import POLICY_FOLDER, corpus_pair
from megatron_corew.lab.tokenizer import TOKENS, build_tokenizer


@pytest.fixture(scope="module", params=["built", "shipped"])
def tokenizer(request):
    if request.param == "built":
        return build_tokenizer(128)
    return AutoTokenizer.from_pretrained(POLICY_FOLDER)


def test_a_box_opens_with_one_token_and_closes_with_another(tokenizer):
    ids = tokenizer(r"13;\boxed{20}").input_ids
    assert tokenizer.convert_ids_to_tokens(ids) == ["1", "3", ";", "\\boxed{", "2", "0", "}"]


def test_questions_and_answers_survive_the_round_trip(tokenizer):
    rng = random.Random(0)
    for _ in range(200):
        text = "".join(corpus_pair(rng))
        assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == text


def test_decoded_text_keeps_the_closing_brace_but_not_the_end_token(tokenizer):
    ids = tokenizer(r"\boxed{20}<eos><pad>").input_ids
    assert ids[-2:] == [tokenizer.eos_token_id, tokenizer.pad_token_id]
    assert tokenizer.decode(ids, skip_special_tokens=True) == r"\boxed{20}"


def test_every_token_is_text_but_two(tokenizer):
    assert len(tokenizer) == len(TOKENS)
    assert set(tokenizer.all_special_tokens) == {"<pad>", "<eos>"}
    assert tokenizer.bos_token is None
    assert tokenizer.chat_template is None


def test_an_unknown_character_is_refused(tokenizer):
    with pytest.raises(Exception, match="UNK"):
        tokenizer("X")
