"""Any source becomes rows of one schema; the fate of every row is decided once and counted."""

import json
from pathlib import Path

import datasets
import pytest

from megatron_corew.config import DataConfig
from megatron_corew.data.prepare.contamination import EvaluationIndex
from megatron_corew.data.prepare.pipeline import Prepared, prepare_rows
from megatron_corew.data.prepare.quarantine import write_quarantine
from megatron_corew.data.prepare.reading import Request, read_evaluation_sets, read_request
from megatron_corew.data.prepare.rows import SourceRows
from megatron_corew.data.prepare.schema import (
    PreparedRow,
    read_prepared,
    user_message,
    write_prepared,
)
from megatron_corew.data.prepare.settings import PrepareSettings
from megatron_corew.data.prepare.sources import RECIPES
from megatron_corew.data.prompts import load_questions
from megatron_corew.data.rendering import PromptRenderer
from tests.cpu.test_data_prompts import TEMPLATE, byte_tokenizer, write_rows

SYSTEM = {"role": "system", "content": "think"}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Nothing is read from or written to the user's own cache."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


def question(number: int, text: str = "", rephrased: str | None = "", **fields) -> PreparedRow:
    """A sound pair; an empty text stands for a generated one, a rephrasing of None for none."""
    text = text or f"What is {number} plus {number} and then {number} again?"
    if rephrased == "":
        rephrased = f"Add {number} to itself twice: what comes out? {number}"
    values = {
        "id": f"set-{number}",
        "source": "set",
        "messages": user_message(text),
        "answer": str(3 * number),
        "rephrased_messages": None if rephrased is None else user_message(rephrased),
        "meta": {"row": number},
    }
    return PreparedRow(**(values | fields))


def fates(*rows: PreparedRow, exam=(), renderer=None, limit=10**6, keep=False, **knobs) -> Prepared:
    return prepare_rows(
        "set",
        SourceRows(rows=rows, broken=(), notes={}),
        settings=PrepareSettings(**knobs),
        index=EvaluationIndex({"exam": exam} if exam else {}, ngram=13, overlap=0.6),
        keep_contaminated=keep,
        renderer=renderer,
        max_prompt_tokens=limit,
    )


def kept_ids(prepared: Prepared) -> list[str]:
    return [row.id for row in prepared.kept]


def released_row(index: int, text: str, answer: str | None, **extra) -> dict:
    return {
        "prompt": [SYSTEM, {"role": "user", "content": text}],
        "reward_model": {"ground_truth": answer, "style": "rule"},
        "extra_info": {"index": index, "split": "train"},
        **extra,
    }


def test_the_released_files_join_by_id_and_lose_their_system_message(tmp_path):
    rows = [released_row(at, f"question {at}", str(at), level="Level 5") for at in range(3)]
    others = [released_row(at, f"again {at}", str(at)) for at in (2, 0, 1)]
    source = read_request(
        Request(
            what="math",
            original=write_rows(tmp_path / "a.jsonl", rows),
            rephrased=write_rows(tmp_path / "b.jsonl", others),
        )
    )
    assert not source.broken
    assert source.notes == {"texts with a system message, taken out": 6}
    row = source.rows[1]
    assert (row.id, row.source, row.answer) == ("math-1", "math", "1")
    assert row.messages == ({"content": "question 1", "role": "user"},)
    assert row.rephrasing == "again 1"
    assert row.meta == {"row": 1, "level": "Level 5"}


@pytest.mark.parametrize(
    ("row", "answer"),
    [
        ({"problem": "p", "solution": r"so \boxed{\frac{1}{2}}.", "level": "1"}, r"\frac{1}{2}"),
        ({"question": "p", "answer": "9 * 2 = 18\n#### 1,018"}, "1018"),
        ({"problem": "p", "answer": 142.0, "id": 7, "url": "u"}, "142"),
        ({"problem": "p", "answer": "204", "solution": r"\boxed{9}", "unique_id": "u"}, "204"),
        ({"prompt": "p", "solution": "34", "extra_info": {"index": "x"}}, "34"),
        ({"prompt": "p", "answer": "-3.0"}, "-3"),
        ({"prompt": "p", "answer": "3.10"}, "3.10"),
        ({"question": "p"}, None),
    ],
)
def test_the_layouts_of_the_papers_sets_are_recognised(tmp_path, row, answer):
    (got,) = read_request(Request(what=write_rows(tmp_path / "own.jsonl", [row]))).rows
    assert (got.question, got.answer, got.source) == ("p", answer, "own")


def test_rows_that_are_no_questions_are_named_with_their_reason(tmp_path):
    rows = [
        {"prompt": "fine", "answer": "1"},
        {"prompt": "  ", "answer": "1"},
        {"prompt": None, "answer": "1"},
        {"prompt": "no answer", "answer": ""},
        {"prompt": "answer of another kind", "answer": None},
    ]
    source = read_request(Request(what=write_rows(tmp_path / "a.jsonl", rows)))
    assert [row.question for row in source.rows] == ["fine"]
    assert [(one.id, one.reason) for one in source.broken] == [
        ("a-1", "no question"),
        ("a-2", "no question"),
        ("a-3", "no answer"),
        ("a-4", "no answer"),
    ]
    assert source.total == 5
    # Of these, only the rows with a question read back from the quarantine file.
    write_quarantine(source.broken, tmp_path / "quarantine.jsonl")
    back = read_prepared(str(tmp_path / "quarantine.jsonl"), knob="DATA")
    assert [row.id for row in back] == ["a-3", "a-4"]


def test_one_pair_with_two_answers_is_quarantined_and_the_others_stay(tmp_path):
    rows = [{"id": at, "prompt": f"q{at}", "answer": at} for at in range(3)]
    others = [{"id": at, "prompt": f"r{at}", "answer": 9 if at == 1 else at} for at in range(3)]
    source = read_request(
        Request(
            what="mine",
            original=write_rows(tmp_path / "a.jsonl", rows),
            rephrased=write_rows(tmp_path / "b.jsonl", others),
            id_column="id",
        )
    )
    assert [row.id for row in source.rows] == ["mine-0", "mine-2"]
    (broken,) = source.broken
    assert broken.reason == "unreadable row"
    assert "one answer for both views of question 1" in broken.detail


def test_the_file_reads_back_equal_and_the_trainer_loads_it(tmp_path):
    rows = [question(1), question(2, rephrased=None), question(3, "ünï\n\\frac", answer=None)]
    path = tmp_path / "deep" / "questions.parquet"
    write_prepared(rows, path)
    assert read_prepared(str(path), knob="DATA") == rows
    assert read_prepared(str(path.parent), knob="DATA") == rows
    assert not list(path.parent.glob(".*"))
    config = DataConfig(
        train=str(path),
        prompt_column="messages",
        rephrased_column="rephrased_messages",
        answer_column="answer",
        id_column="id",
        system_prompt="think",
    )
    loaded = load_questions(
        config,
        byte_tokenizer(template=TEMPLATE),
        which="train",
        needs_rephrasings=True,
        needs_answers=False,
    )
    assert [one.id for one in loaded.questions] == ["set-1", "set-3"]
    assert loaded.report.dropped == {"without a rephrasing": 1}
    text = loaded.questions[1].prompts["original"].text
    assert text == "<system>think<user>ünï\n\\frac<assistant>"


def test_prepared_questions_prepared_again_keep_their_ids_and_what_is_known(tmp_path):
    path = tmp_path / "questions.parquet"
    write_prepared([question(4)], path)
    (row,) = read_request(Request(what=str(path))).rows
    assert row == question(4)
    # A second file with rephrasings wins over those that are there.
    other = tmp_path / "other.parquet"
    write_prepared([question(4, text="Said in another way: 4?", rephrased=None)], other)
    (row,) = read_request(Request(what=str(path), rephrased=str(other))).rows
    assert row.rephrasing == "Said in another way: 4?"


def test_quarantined_rows_read_back_as_questions(tmp_path):
    prepared = fates(question(1), question(2, rephrased="<rewritten question>"))
    write_quarantine(prepared.quarantined, tmp_path / "quarantine.jsonl")
    assert read_prepared(str(tmp_path / "quarantine.jsonl"), knob="DATA") == [
        question(2, rephrased="<rewritten question>")
    ]
    record = json.loads((tmp_path / "quarantine.jsonl").read_text())
    assert record["reason"] == "rephrasing placeholder"
    assert "<rewritten question>" in record["detail"]


def test_every_row_has_one_fate_and_the_first_reason_counts():
    exam = "How many of the first two hundred odd numbers are also squares of odd primes?"
    prepared = fates(
        question(1),
        question(2, rephrased="<rewritten question>"),
        question(3, rephrased=None),
        question(4, text=question(1).question.replace(" ", "  "), answer="3"),
        question(5, text=exam, answer="15"),
        question(6, text=exam, answer="15", rephrased="<rewritten question>"),
        question(7, text=f" {exam}\n", answer="15"),
        exam=[exam],
    )
    report = prepared.report
    assert kept_ids(prepared) == ["set-1"]
    assert report.quarantined == {"rephrasing placeholder": 2, "rephrasing missing": 1}
    assert report.dropped == {"duplicate": 2, "contaminated": 1}
    assert report.rows == 7 == report.kept + 3 + 3
    # What is found does not depend on what left first.
    assert report.found["rephrasing placeholder"] == 2
    assert report.found["duplicate, character by character"] == 1
    assert report.found["duplicate but for white space"] == 2
    assert report.contaminated == {"exam": {"verbatim": 3}}
    assert report.evaluation_questions_found == {"exam": 1}


def test_kept_contaminated_questions_are_reported_all_the_same():
    prepared = fates(question(1), question(2), exam=[question(2).question], keep=True)
    assert kept_ids(prepared) == ["set-1", "set-2"]
    assert [one.row.id for one in prepared.contaminated] == ["set-2"]
    assert prepared.report.dropped == {}


def test_a_pair_is_contaminated_by_either_view():
    prepared = fates(question(1), question(2), exam=[question(2).rephrasing])
    assert kept_ids(prepared) == ["set-1"]
    assert prepared.contaminated[0].view == "rephrased"


def test_answers_that_contradict_take_all_copies_out_and_spellings_do_not():
    text = "What is the largest of them?"
    prepared = fates(
        question(1, text=text, answer="48"),
        question(2, text=text + " ", answer="42"),
        question(3, text="What is half of three?", answer=r"\frac{3}{2}"),
        question(4, text="What is  half of three?", answer="1.5"),
        question(5, text="Which root is it?", answer=r"\sqrt{40}"),
        question(6, text="Which root is it?", answer=r"2\sqrt{10}"),
        question(7, text="And without an answer?", answer=None),
        question(8, text="And without an answer?", answer="1"),
    )
    assert kept_ids(prepared) == ["set-3", "set-5", "set-7"]
    assert prepared.report.quarantined == {"asked twice with different answers": 2}
    assert prepared.quarantined[0].detail == "answers to this question: 48 | 42"
    assert prepared.report.dropped == {"duplicate": 3}


def test_a_set_without_rephrasings_misses_none():
    prepared = fates(question(1, rephrased=None), question(2, rephrased=None))
    assert len(prepared.kept) == 2
    assert prepared.report.found == {}


def test_which_faults_quarantine_is_a_choice_and_the_others_are_counted():
    rows = (question(1), question(77, rephrased="Now without the number, what comes out of it?"))
    assert len(fates(*rows).kept) == 2
    assert fates(*rows).report.found == {"rephrasing numbers lost": 1}
    strict = fates(*rows, quarantine=("numbers lost",))
    assert kept_ids(strict) == ["set-1"]
    assert strict.quarantined[0].detail == "lost: 77"
    tolerant = fates(question(1), question(2, rephrased="<rewritten question>"), quarantine=())
    assert len(tolerant.kept) == 2


@pytest.mark.parametrize("side", ["text", "rephrased"])
def test_a_pair_leaves_together_when_either_prompt_is_too_long(side):
    config = DataConfig(train="x", chat_template=False)
    renderer = PromptRenderer(config, byte_tokenizer())
    fits = {"text": "what is six, please?", "rephrased": "six is what?"}
    long = {"text": "what is nine?", "rephrased": "nine is what?", side: "what, then, is nine?!"}
    rows = [question(1, **fits), question(2, **long)]
    prepared = fates(*rows, renderer=renderer, limit=20, quarantine=())
    assert kept_ids(prepared) == ["set-1"]
    assert prepared.report.dropped == {"longer than 20 tokens": 1}


def test_evaluation_sets_come_from_files_under_the_name_given(tmp_path):
    file = write_rows(tmp_path / "exam.jsonl", [{"problem": "one?", "answer": "1"}])
    assert read_evaluation_sets([f"amc={file}", file], None) == {"amc": ["one?"], file: ["one?"]}
    assert read_evaluation_sets(["none"], RECIPES["math"]) == {}
    assert read_evaluation_sets([], RECIPES["amc"]) == {}
    assert read_evaluation_sets([], None) == {}


def test_a_hub_that_cannot_be_reached_is_said_with_the_way_out(monkeypatch):
    asked = []

    def offline(path, *, name, split):
        asked.append((path, name, split))
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(RuntimeError, match=r"--original: the hub cannot be reached"):
        read_request(Request(what="gsm8k"))
    with pytest.raises(RuntimeError, match=r"--against math-test: .* Give NAME=FILE"):
        read_evaluation_sets([], RECIPES["math"])
    assert asked == [
        ("openai/gsm8k", "main", "test"),
        ("DigitalLearningGmbH/MATH-lighteval", None, "test"),
    ]


@pytest.mark.parametrize(
    ("rows", "others", "options", "message"),
    [
        ([{"text": "q"}], None, {}, r"need a column of questions .*got text.*--prompt-column"),
        ([{"prompt": "q"}], None, {"answer_column": "a"}, r"--answer-column: .* It has: prompt"),
        ([{"prompt": "q"}], None, {"id_column": "k"}, r"--id-column: need a column"),
        ([{"prompt": "q"}], [{"prompt": "r"}] * 2, {}, r"--rephrased: need as many rows as"),
    ],
)
def test_what_a_source_cannot_give_is_said_with_the_option(
    tmp_path: Path, rows, others, options, message
):
    if others is not None:
        options["rephrased"] = write_rows(tmp_path / "b.jsonl", others)
    with pytest.raises(ValueError, match=message):
        read_request(Request(what=write_rows(tmp_path / "a.jsonl", rows), **options))
