"""Questions from files: views joined by id, every loss counted, every refusal naming its knob."""

import json
import os
import random
from pathlib import Path

import datasets
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from megatron_corew.config import DataConfig
from megatron_corew.data.prompts import load_questions

TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Nothing is read from or written to the user's own cache."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


def byte_tokenizer(*, template: str | None = None, bos: bool = False) -> PreTrainedTokenizerFast:
    """One token per byte, ids by byte value order; id 0 is the begin token."""
    alphabet = ["<s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({token: at for at, token in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A <s>", special_tokens=[("<s>", 0)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", chat_template=template
    )


def write_rows(path: Path, rows: list[dict]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def load(config: DataConfig, **options):
    """Load training questions of plain text; ``options`` override the arguments."""
    arguments = {"which": "train", "needs_rephrasings": False, "needs_answers": False}
    tokenizer = options.pop("tokenizer", byte_tokenizer())
    return load_questions(config, tokenizer, **(arguments | options))


def plain(train: str, **knobs) -> DataConfig:
    return DataConfig(train=train, chat_template=False, **knobs)


def numbered(count: int) -> list[dict]:
    return [{"key": f"q{at}", "prompt": f"question {at}", "answer": at} for at in range(count)]


def test_text_becomes_tokens_of_exactly_that_text(tmp_path):
    loaded = load(plain(write_rows(tmp_path / "a.jsonl", [{"prompt": "1+1="}])))
    (question,) = loaded.questions
    prompt = question.prompts["original"]
    assert (question.id, question.answer, prompt.text) == ("0", None, "1+1=")
    assert byte_tokenizer().decode(prompt.token_ids) == "1+1="
    assert len(prompt.token_ids) == 4


def test_both_files_may_be_in_any_order_and_each_question_meets_its_own_rephrasing(tmp_path):
    rows = numbered(6)
    others = [{"key": row["key"], "prompt": f"asked again {row['key']}"} for row in rows]
    random.Random(3).shuffle(others)
    del others[2]
    config = plain(
        write_rows(tmp_path / "a.jsonl", rows),
        train_rephrased=write_rows(tmp_path / "b.jsonl", others),
        id_column="key",
        answer_column="answer",
    )
    loaded = load(config, needs_rephrasings=True)
    assert len(loaded.questions) == 5
    assert loaded.report.dropped == {"without a rephrasing": 1}
    for question in loaded.questions:
        number = question.id.removeprefix("q")
        assert question.prompts["original"].text == f"question {number}"
        assert question.prompts["rephrased"].text == f"asked again {question.id}"
        assert question.answer == number
        assert {prompt.question_id for prompt in question.prompts.values()} == {question.id}


@pytest.mark.parametrize(
    ("rephrased", "reason"),
    [
        (None, "without a rephrasing"),
        (" \n", "without a rephrasing"),
        ("<rewritten question>", "with a placeholder as rephrasing"),
    ],
)
def test_a_row_without_a_real_rephrasing_is_dropped_and_counted_never_shifted(
    tmp_path, rephrased, reason
):
    rows = [{"prompt": f"q{at}", "again": f"r{at}"} for at in range(4)]
    rows[1]["again"] = rephrased
    config = plain(write_rows(tmp_path / "a.jsonl", rows), rephrased_column="again")
    loaded = load(config, needs_rephrasings=True)
    assert loaded.report.dropped == {reason: 1}
    assert [question.id for question in loaded.questions] == ["0", "2", "3"]
    texts = [question.prompts["rephrased"].text for question in loaded.questions]
    assert texts == ["r0", "r2", "r3"]
    # A method of one view loses nothing by it.
    assert len(load(config).questions) == 4


@pytest.mark.parametrize("text", ["is 1 < 2 and 3 > 2", "<What is the sum of 2 and 3?>"])
def test_a_question_with_angle_brackets_is_a_rephrasing(tmp_path, text):
    rows = [{"prompt": "q", "again": text}]
    config = plain(write_rows(tmp_path / "a.jsonl", rows), rephrased_column="again")
    assert load(config, needs_rephrasings=True).report.dropped == {}


def test_the_same_question_twice_stays_two_questions(tmp_path):
    rows = [{"prompt": "same", "again": "r0"}, {"prompt": "same", "again": "same"}]
    config = plain(write_rows(tmp_path / "a.jsonl", rows), rephrased_column="again")
    loaded = load(config, needs_rephrasings=True)
    assert [question.id for question in loaded.questions] == ["0", "1"]
    assert loaded.report.noted == {"rephrased in the same words": 1}
    assert str(loaded.report) == "2 rows, 2 questions; noted: 1 rephrased in the same words"


@pytest.mark.parametrize("long_side", ["prompt", "again"])
def test_a_pair_leaves_together_when_one_side_is_too_long(tmp_path, long_side):
    rows = [{"prompt": "12345", "again": "12345"} for _ in range(3)]
    rows[1][long_side] = "123456"
    config = plain(
        write_rows(tmp_path / "a.jsonl", rows), rephrased_column="again", max_prompt_tokens=5
    )
    loaded = load(config, needs_rephrasings=True)
    assert [question.id for question in loaded.questions] == ["0", "2"]
    assert loaded.report.dropped == {"too long": 1}
    # Without need of the second view, only the first one's length counts.
    assert len(load(config).questions) == (2 if long_side == "prompt" else 3)


def test_files_of_different_length_pair_by_id_or_not_at_all(tmp_path):
    first = write_rows(tmp_path / "a.jsonl", numbered(4))
    second = write_rows(tmp_path / "b.jsonl", [*numbered(5)[1:], {"key": "x", "prompt": "y"}])
    with pytest.raises(ValueError, match=r"got 5 and 4\. Set data\.id_column"):
        load(plain(first, train_rephrased=second))
    loaded = load(plain(first, train_rephrased=second, id_column="key"), needs_rephrasings=True)
    assert [question.id for question in loaded.questions] == ["q1", "q2", "q3"]
    assert loaded.report.noted["rephrasings without a question"] == 2


def test_files_whose_answers_contradict_do_not_pair(tmp_path):
    rows, shifted = numbered(4), numbered(5)[1:]
    config = plain(
        write_rows(tmp_path / "a.jsonl", rows),
        train_rephrased=write_rows(tmp_path / "b.jsonl", shifted),
        answer_column="answer",
    )
    with pytest.raises(ValueError, match=r"question 0, got '0' and '1'.*data\.id_column"):
        load(config)


@pytest.mark.parametrize("bad", ["q0", None, ""])
def test_an_id_that_is_missing_or_stands_twice_is_refused(tmp_path, bad):
    rows = numbered(3)
    rows[2]["key"] = bad
    with pytest.raises(ValueError, match=r"data\.id_column: need an id of its own.*row 2"):
        load(plain(write_rows(tmp_path / "a.jsonl", rows), id_column="key"))


def test_nested_columns_are_reached_by_dots_and_numbers_become_text(tmp_path):
    rows = [
        {"q": {"text": "a"}, "reward_model": {"ground_truth": 5}, "extra_info": {"index": 7}},
        {"q": {"text": "b"}, "reward_model": {"ground_truth": None}, "extra_info": {"index": 8}},
        {"q": {"text": "c"}, "reward_model": None, "extra_info": {"index": 9}},
    ]
    config = plain(
        write_rows(tmp_path / "a.jsonl", rows),
        prompt_column="q.text",
        answer_column="reward_model.ground_truth",
        id_column="extra_info.index",
    )
    loaded = load(config)
    answers = [(question.id, question.answer) for question in loaded.questions]
    assert answers == [("7", "5"), ("8", None), ("9", None)]
    assert load(config, needs_answers=True).report.dropped == {"without an answer": 2}


def test_parquet_and_json_lists_read_like_jsonl(tmp_path):
    rows = numbered(3)
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "a.parquet")
    (tmp_path / "a.json").write_text(json.dumps(rows))
    texts = [
        [question.prompts["original"].text for question in load(plain(str(path))).questions]
        for path in (tmp_path / "a.parquet", tmp_path / "a.json")
    ]
    assert texts[0] == texts[1] == ["question 0", "question 1", "question 2"]


def test_the_chat_template_renders_text_and_messages_and_adds_no_second_begin_token(tmp_path):
    rows = [
        {"prompt": "hi"},
        {"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]},
    ]
    tokenizer = byte_tokenizer(template=TEMPLATE, bos=True)
    config = DataConfig(train=write_rows(tmp_path / "a.jsonl", rows))
    first, second = load(config, tokenizer=tokenizer).questions
    assert first.prompts["original"].text == "<user>hi<assistant>"
    assert second.prompts["original"].text == "<system>s<user>u<assistant>"
    assert 0 not in first.prompts["original"].token_ids


def test_a_system_prompt_comes_before_plain_text_questions(tmp_path):
    path = write_rows(tmp_path / "a.jsonl", [{"prompt": "hi"}])
    config = DataConfig(train=path, system_prompt="think")
    (question,) = load(config, tokenizer=byte_tokenizer(template=TEMPLATE)).questions
    assert question.prompts["original"].text == "<system>think<user>hi<assistant>"


def test_plain_text_gets_the_begin_token_the_tokenizer_writes_and_no_end_token(tmp_path):
    path = write_rows(tmp_path / "a.jsonl", [{"prompt": "hi"}])
    (question,) = load(plain(path), tokenizer=byte_tokenizer(bos=True)).questions
    assert question.prompts["original"].token_ids[0] == 0
    assert len(question.prompts["original"].token_ids) == 3


def test_the_limit_counts_usable_questions(tmp_path):
    rows = [{"prompt": text} for text in ("a", "", "b", "c", "d")]
    path = write_rows(tmp_path / "a.jsonl", rows)
    loaded = load(plain(path, max_questions=2))
    assert [question.id for question in loaded.questions] == ["0", "2"]
    assert (loaded.report.rows, loaded.report.kept) == (3, 2)
    assert len(load(plain(path, max_questions=2), limit=3).questions) == 3


def test_held_out_questions_may_lack_the_second_view_that_the_columns_name(tmp_path):
    train = write_rows(tmp_path / "a.jsonl", [{"prompt": "q", "again": "r"}])
    held_out = write_rows(tmp_path / "b.jsonl", [{"prompt": "e", "answer": "1"}])
    config = plain(train, eval=held_out, rephrased_column="again", answer_column="answer")
    (question,) = load(config, which="eval", needs_answers=True).questions
    assert list(question.prompts) == ["original"]
    with pytest.raises(ValueError, match=r"data\.rephrased_column: need a column"):
        load(config, which="eval", needs_rephrasings=True)


def test_the_lab_needs_no_columns():
    config = plain("lab", eval="lab", max_questions=5)
    train = load(config, needs_rephrasings=True, needs_answers=True).questions
    held_out = load(config, which="eval", needs_rephrasings=True, limit=7).questions
    assert len(train) == 5
    assert len(held_out) == 7
    assert all(question.answer and len(question.prompts) == 2 for question in train)
    assert len(load(plain("lab")).questions) == 2048


@pytest.mark.parametrize(
    ("knobs", "needs", "message"),
    [
        ({"prompt_column": "question"}, {}, r"data\.prompt_column.*'question'.*has: key, prompt"),
        ({"answer_column": "a.b"}, {}, r"data\.answer_column: need a column.*'a\.b'"),
        ({"id_column": "id"}, {}, r"data\.id_column: need a column"),
        ({"rephrased_column": "r"}, {}, r"data\.rephrased_column: need a column"),
        ({}, {"needs_rephrasings": True}, r"data\.rephrased_column: need rephrased questions"),
        ({}, {"needs_answers": True}, r"data\.answer_column: need true answers"),
        (
            {"max_prompt_tokens": 3},
            {},
            r"none of 3 rows \(3 too long\).*max_prompt_tokens \(now 3; ",
        ),
        ({"system_prompt": "s"}, {}, r"data\.system_prompt: needs data\.chat_template=true"),
        ({"chat_template": True}, {}, r"data\.chat_template: need a tokenizer with"),
        ({"prompt_column": "answer"}, {}, r"need text or a list of \{role, content\}"),
        ({"answer_column": "list"}, {}, r"data\.answer_column: need text or a number"),
        ({}, {"which": "eval"}, r"data\.eval: need questions, got null"),
        (
            {"train_rephrased": "no/such/file"},
            {},
            r"data\.train_rephrased: need a file that exists",
        ),
    ],
)
def test_what_the_data_cannot_give_is_one_line_with_the_knob(tmp_path, knobs, needs, message):
    rows = [row | {"list": [1]} for row in numbered(3)]
    config = DataConfig(
        **({"train": write_rows(tmp_path / "a.jsonl", rows), "chat_template": False} | knobs)
    )
    with pytest.raises(ValueError, match=message) as caught:
        load(config, **needs)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "source",
    ["missing.parquet", "data/missing.jsonl", "./missing", "a/b/c", "/no/such", "word", "here/new"],
)
def test_a_path_that_does_not_exist_is_refused_and_never_asked_of_the_hub(
    tmp_path, monkeypatch, source
):
    def no_hub(*_, **__):
        pytest.fail("asked the hub")

    monkeypatch.setattr(datasets, "load_dataset", no_hub)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    with pytest.raises(ValueError, match=r"data\.train: need a file that exists"):
        load(plain(source))


def test_a_hub_that_cannot_be_reached_is_the_worlds_fault(monkeypatch):
    def offline(path, *, name, split):
        assert (path, name, split) == ("owner/sums", None, "train")
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(RuntimeError, match=r"data\.train: the hub cannot be reached.*no route"):
        load(plain("owner/sums"))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("empty.jsonl", "", "need at least one row"),
        ("empty.json", "[]", "need a readable json file"),
        ("bad.jsonl", '{"prompt": "a"}\n{oops}\n', "need a readable json file"),
        ("bad.parquet", "text", "need a readable parquet file"),
        ("a.csv", "prompt\n1\n", r"need a \.parquet, \.jsonl or \.json file"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=rf"data\.train: {message}") as caught:
        load(plain(str(tmp_path / name)))
    assert "\n" not in str(caught.value)


def test_a_template_that_refuses_the_messages_is_named(tmp_path):
    tokenizer = byte_tokenizer(template="{{ raise_exception('no system role') }}")
    config = DataConfig(train=write_rows(tmp_path / "a.jsonl", [{"prompt": "hi"}]))
    with pytest.raises(ValueError, match=r"data\.chat_template: .* question 0: no system role"):
        load(config, tokenizer=tokenizer)


@pytest.mark.parametrize(
    ("name", "rows", "placeholders"),
    [("math", 7500, 19), ("dapo", 14109, 45), ("open-rs", 6999, 12)],
)
def test_the_papers_data_join_by_id(name, rows, placeholders):
    folder = os.environ.get("COREW_PAPER_DATA")
    if folder is None:
        pytest.skip("COREW_PAPER_DATA does not name the folder with the paper's parquet files")
    config = DataConfig(
        train=f"{folder}/{name}/train_original.parquet",
        train_rephrased=f"{folder}/{name}/train_rewrite_Qwen3-32B.parquet",
        answer_column="reward_model.ground_truth",
        id_column="extra_info.index",
        max_prompt_tokens=100_000,
    )
    tokenizer = byte_tokenizer(template=TEMPLATE)
    loaded = load(config, needs_rephrasings=True, tokenizer=tokenizer)
    assert loaded.report.rows == rows
    assert loaded.report.dropped == {"with a placeholder as rephrasing": placeholders}
    assert loaded.report.noted.get("rephrased in the same words", 0) == (2 if name == "math" else 0)
    prompt = loaded.questions[0].prompts["rephrased"]
    assert prompt.text.startswith("<system>Let's think step by step")
    assert prompt.text.endswith("<assistant>")
