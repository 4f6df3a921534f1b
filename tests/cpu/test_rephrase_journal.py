"""The request, what is read out of an answer, and the record of all attempts."""

import json

import pytest

from megatron_corew.config_file import load_section
from megatron_corew.data.rephrase.journal import Attempt, Journal
from megatron_corew.data.rephrase.prompt import prompt_version, read_answer, request_text
from megatron_corew.data.rephrase.settings import RephraseConfig
from tests.cpu.test_data_rendering import CONFIGS


def recipe(**sections) -> RephraseConfig:
    values = {
        "model": "models/rewriter",
        "prompt": {"template": "Say {question} anew.", "start": "REWRITE:", "end": "### END"},
    }
    return RephraseConfig.model_validate(values | sections)


def attempt(number: int = 0, **fields) -> Attempt:
    values = {
        "id": "set-1",
        "version": "v",
        "digest": "d",
        "number": number,
        "seed": 7,
        "fault": "placeholder",
        "detail": "",
        "rephrased": None,
    }
    return Attempt(**(values | fields))


def test_the_question_stands_in_the_template_whatever_it_contains():
    question = r"Is {x} in \{1,2\} or {question}?"
    assert request_text(recipe(), question) == f"Say {question} anew."


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("REWRITE:\nnew\n### END", "new"),
        ("so: REWRITE: new ### END and more ### END", "new"),
        ("<think>REWRITE: draft ### END</think>REWRITE: new ### END", "new"),
        ("REWRITE: draft\nREWRITE: new\n### END", "new"),
        ("REWRITE: ### END", ""),
        ("new ### END", None),
        ("REWRITE: new", None),
        ("", None),
    ],
)
def test_the_new_question_is_what_stands_between_the_markers(answer, expected):
    assert read_answer(recipe(), answer) == expected


def test_without_markers_the_whole_answer_is_the_new_question():
    plain = recipe(prompt={"template": "{question}"})
    assert read_answer(plain, " new\n") == "new"
    assert read_answer(plain, "<think>hm</think>\nnew") == "new"


def test_the_version_names_what_decides_a_rephrasing_and_nothing_else():
    version = prompt_version(recipe())
    assert prompt_version(recipe()) == version
    same = (
        {"model": "/elsewhere/rewriter/"},
        {"check": {"attempts": 9}},
        {"concurrency": 1},
        {"servers": {"tensor_parallel": 8}},
    )
    assert {prompt_version(recipe(**change)) for change in same} == {version}
    others = (
        {"model": "another"},
        {"prompt": {"template": "Say {question} otherwise."}},
        {"sampling": {"temperature": 0.8}},
        {"sampling": {"seed": 1}},
        {"check": {"refuse": []}},
        {"preserve": {"samples": 4}},
    )
    versions = {prompt_version(recipe(**change)) for change in others}
    assert len(versions) == len(others)
    assert version not in versions


def test_the_shipped_recipes_are_read_and_take_overrides():
    for file in sorted((CONFIGS / "rephrase").glob("*.yaml")):
        config = load_section(file, RephraseConfig, ["model=here/mine", "preserve.samples=8"])
        assert (config.model, config.preserve.samples) == ("here/mine", 8)
        assert "{question}" in config.prompt.template
        # A model that only repeats its request has not rewritten anything.
        echoed = read_answer(config, request_text(config, "What is 1+1?"))
        assert echoed is None or "What is 1+1?" not in echoed


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("prompt.template=no question", r"prompt\.template: need \{question\} exactly once"),
        ("prompt.template={question} {question}", r"got 2 times"),
        ("sampling.max_tokens=24576", r"max_model_len: need more than the 24576 tokens"),
        ("sampling.temprature=1", r"Did you mean sampling\.temperature"),
        ("check.refuse=[typos]", r"check\.refuse\[0\]"),
    ],
)
def test_a_recipe_that_cannot_work_is_one_line_with_the_knob(override, message):
    override = override.replace("={q", "='{q") + ("'" if "={q" in override else "")
    with pytest.raises(ValueError, match=message) as caught:
        load_section(CONFIGS / "rephrase" / "qwen3_32b.yaml", RephraseConfig, [override])
    assert "\n" not in str(caught.value)


def test_attempts_come_back_in_order_and_only_under_their_own_key(tmp_path):
    path = tmp_path / "deep" / "attempts.jsonl"
    # A line separator inside a text must not end the line of the file.
    last = attempt(1, fault=None, rephrased="new\u2028question\r\n\x85 ünï")
    with Journal(path) as journal:
        journal.append(attempt(0))
        journal.append(last)
        journal.append(attempt(0, version="other"))
    with Journal(path) as journal:
        assert journal.attempts(("set-1", "v", "d")) == (attempt(0), last)
        assert len(journal.attempts(("set-1", "other", "d"))) == 1
        assert journal.attempts(("set-1", "v", "changed")) == ()


@pytest.mark.parametrize("torn", ['{"id": "set-1", "vers', '{"id": "ü', "x"])
def test_a_line_that_was_cut_by_a_kill_is_forgotten_and_written_over(tmp_path, torn):
    path = tmp_path / "attempts.jsonl"
    with Journal(path) as journal:
        journal.append(attempt(0, detail="ünï"))
    with path.open("a") as file:
        file.write(torn)
    with Journal(path) as journal:
        assert len(journal.attempts(("set-1", "v", "d"))) == 1
        journal.append(attempt(1))
    lines = path.read_text().splitlines()
    assert [json.loads(line)["number"] for line in lines] == [0, 1]


def test_two_jobs_cannot_write_to_one_journal(tmp_path):
    path = tmp_path / "attempts.jsonl"
    with Journal(path), pytest.raises(RuntimeError, match=r"another process .*--out"):
        Journal(path)
    Journal(path).close()


def test_a_file_that_is_no_journal_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "attempts.jsonl"
    path.write_text('{"prompt": "x"}\n')
    with pytest.raises(ValueError, match=r"line 1: need an attempt of `corew rephrase`"):
        Journal(path)
    assert path.read_text() == '{"prompt": "x"}\n'
