"""`corew prepare` and `corew data` through the real command line."""

import json
import os
import re
from pathlib import Path

import datasets
import pytest
from typer.testing import CliRunner

from megatron_corew.cli import app
from megatron_corew.data.prepare.schema import read_prepared
from megatron_corew.preflight import LAB_POLICY
from tests.cpu.fake_openai import asked, serving
from tests.cpu.test_data_prompts import write_rows

RECIPE = Path(__file__).parents[2] / "configs" / "rephrase" / "qwen3_32b.yaml"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Nothing is read from or written to the user's own cache."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


def corew(*arguments: object) -> str:
    """Run a command that must succeed; its output."""
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def refusal(*arguments: object) -> str:
    """Run a command that must fail with one line; that line."""
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    assert result.exit_code == 1, result.output
    (line,) = [line for line in result.output.splitlines() if line.startswith("error: ")]
    return line


def sums(path: Path) -> str:
    rows = [
        {"prompt": f"{at}+{at}=", "again": f"add {at},{at}:", "answer": 2 * at} for at in range(9)
    ]
    rows.append({"prompt": "1+2+3+4+5=", "again": "add 1,2,3,4,5:", "answer": 15})
    rows.append({"prompt": "9+1=", "again": "<rewritten question>", "answer": 10})
    return write_rows(path, rows)


def test_prepare_writes_a_folder_and_says_what_became_of_every_row(tmp_path):
    exam = write_rows(tmp_path / "exam.jsonl", [{"prompt": "3+3="}])
    out = tmp_path / "out"
    text = corew(
        *("prepare", sums(tmp_path / "sums.jsonl"), "--out", out, "--against", f"exam={exam}"),
        *("--rephrased-column", "again", "--tokenizer", LAB_POLICY, "--max-prompt-tokens", 10),
    )
    assert "sums: 11 rows, 8 kept, 1 quarantined, 2 dropped" in text
    assert "1 verbatim in exam (1 of its 1 questions)" in text
    assert len(read_prepared(str(out), knob="DATA")) == 8
    report = json.loads((out / "report.json").read_text())
    assert report["dropped"] == {"contaminated": 1, "longer than 10 tokens": 1}
    (contaminated,) = map(json.loads, (out / "contaminated.jsonl").read_text().splitlines())
    assert (contaminated["id"], contaminated["evaluation_set"]) == ("sums-3", "exam")
    (quarantined,) = map(json.loads, (out / "quarantine.jsonl").read_text().splitlines())
    assert quarantined["reason"] == "rephrasing placeholder"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--quarantine", "typos"], r"--quarantine: need one of missing, placeholder"),
        (["--system-prompt", "s"], r"--tokenizer: needed with --system-prompt"),
        (["--tokenizer", "/does/not/exist"], r"--tokenizer: need a folder with a tokenizer"),
        (["--against", "nobody.jsonl"], r"--against nobody.jsonl: --original: need a file"),
        (
            ["--tokenizer", str(LAB_POLICY), "--max-prompt-tokens", "1"],
            r"need at least one usable question, got none of 11 rows",
        ),
    ],
)
def test_what_prepare_cannot_do_is_one_line_with_the_option(tmp_path, options, message):
    out = tmp_path / "out"
    line = refusal("prepare", sums(tmp_path / "sums.jsonl"), "--out", out, *options)
    assert message in line
    assert not out.exists()


KNOWN = {
    "math": {
        "found": {
            "no answer": 2,
            "rephrasing placeholder": 19,
            "rephrasing identical": 2,
            "rephrasing diagram lost": 583,
            "question with a diagram": 707,
        },
        "verbatim": {"math-test": 1},
        "fates": (6779, 599, 122),
    },
    "dapo": {
        "found": {
            "rephrasing placeholder": 45,
            "rephrasing diagram lost": 424,
            "question with a diagram": 559,
        },
        # 972 of the 14,116 questions before rephrasing; 7 of those are not in the files.
        "verbatim": {"math-test": 971, "amc": 8},
        "fates": (12020, 479, 1610),
    },
    "open-rs": {
        "found": {
            "rephrasing placeholder": 12,
            "rephrasing diagram lost": 4,
            "duplicate, character by character": 162,
            "question with a diagram": 9,
        },
        "verbatim": {"math-test": 253},
        "fates": (6482, 65, 452),
    },
}


@pytest.mark.parametrize("name", KNOWN)
def test_the_known_defects_of_the_papers_data_are_found(tmp_path, name):
    folder = os.environ.get("COREW_PAPER_DATA")
    if folder is None:
        pytest.skip("COREW_PAPER_DATA does not name the folder with the paper's parquet files")
    corew(
        *("prepare", name, "--out", tmp_path / "out"),
        *("--original", f"{folder}/{name}/train_original.parquet"),
        *("--rephrased", f"{folder}/{name}/train_rewrite_Qwen3-32B.parquet"),
        *("--against", f"math-test={folder}/math/test.parquet"),
        *("--against", f"amc={folder}/amc/test_original.parquet"),
    )
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    known = KNOWN[name]
    assert {key: report["found"].get(key) for key in known["found"]} == known["found"]
    verbatim = {key: kinds.get("verbatim") for key, kinds in report["contaminated"].items()}
    assert verbatim == known["verbatim"]
    kept, quarantined, dropped = known["fates"]
    assert report["kept"] == kept
    assert sum(report["quarantined"].values()) == quarantined
    assert sum(report["dropped"].values()) == dropped
    if name == "math":
        lines = (tmp_path / "out" / "quarantine.jsonl").read_text().splitlines()
        empty = [json.loads(line) for line in lines if '"no answer"' in line]
        assert [row["id"] for row in empty] == ["math-5341", "math-5343"]


def rewritten(body: dict) -> list[str]:
    numbers = re.findall(r"\d", asked(body))
    return [f"{' '.join(numbers)} total:"] if len(set(numbers)) > 1 else ["<rewritten question>"]


SMALL = ("prompt.template='{question}'", "prompt.start=null", "prompt.end=null")


def test_rephrase_writes_what_the_trainer_loads_and_quarantines_the_rest(tmp_path):
    questions = write_rows(
        tmp_path / "sums.jsonl", [{"prompt": f"{at}+{at}+1=", "answer": at} for at in range(1, 5)]
    )
    corew("prepare", questions, "--out", tmp_path / "sums")
    with serving(rewritten, models=["mine"]) as fake:
        call = ("rephrase", tmp_path / "sums", *SMALL, "model=mine", "--url", fake.address)
        call = (*call, "--recipe", RECIPE)
        text = corew(*call)
        assert "4 questions, 3 rephrased, 1 quarantined, 0 left as they were; 6 answers" in text
        assert "refused: 3 placeholder" in text
        assert "0 answers asked for now" in corew(*call)
    out = tmp_path / "sums-rephrased"
    rows = read_prepared(str(out), knob="DATA")
    assert [row.rephrasing for row in rows] == ["2 2 1 total:", "3 3 1 total:", "4 4 1 total:"]
    (lost,) = read_prepared(str(out / "quarantine.jsonl"), knob="DATA")
    assert lost.question == "1+1+1="
    with serving(lambda body: ["all 1 and 1 and 1:"], models=["mine"]) as fake:
        call = ("rephrase", out / "quarantine.jsonl", *SMALL, "model=mine", "--url", fake.address)
        corew(*call, "--recipe", RECIPE, "--out", tmp_path / "rest")
    assert len(read_prepared(str(tmp_path / "rest"), knob="DATA")) == 1


def test_rephrasing_only_what_is_missing_leaves_the_others(tmp_path):
    rows = [
        {"prompt": "1+2=", "again": "2 and 1:", "answer": 3},
        {"prompt": "4+5=", "again": None, "answer": 9},
    ]
    questions = write_rows(tmp_path / "sums.jsonl", rows)
    corew(
        *("prepare", questions, "--out", tmp_path / "sums", "--rephrased-column", "again"),
        *("--quarantine", "none"),
    )
    with serving(rewritten, models=["mine"]) as fake:
        text = corew(
            *("rephrase", tmp_path / "sums", *SMALL, "model=mine", "--url", fake.address),
            *("--recipe", RECIPE, "--only-missing"),
        )
    assert "2 questions, 1 rephrased, 0 quarantined, 1 left as they were" in text
    got = [row.rephrasing for row in read_prepared(str(tmp_path / "sums-rephrased"), knob="DATA")]
    assert got == ["2 and 1:", "4 5 total:"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], r"--model or --url: need one of the two"),
        (["--model", "a", "--url", "b"], r"--model or --url: need one of the two"),
        (["--model", "/does/not/exist"], r"--model: need a Hugging Face folder"),
        (["--url", "http://127.0.0.1:9", "tries=1"], r"server http://127.0.0.1:9/v1/models"),
        (["--url", "x", "check.attemps=2"], r"Did you mean check.attempts"),
    ],
)
def test_what_rephrase_cannot_do_is_one_line_with_the_option(tmp_path, options, message):
    questions = write_rows(tmp_path / "sums.jsonl", [{"prompt": "1+1=", "answer": 2}])
    corew("prepare", questions, "--out", tmp_path / "sums")
    line = refusal("rephrase", tmp_path / "sums", "--recipe", RECIPE, *options)
    assert message in line


def test_rephrase_wants_prepared_questions(tmp_path):
    raw = write_rows(tmp_path / "raw.jsonl", [{"prompt": "1+1=", "answer": 2}])
    line = refusal("rephrase", raw, "--url", "http://127.0.0.1:9", "--recipe", RECIPE)
    assert "corew prepare" in line


def test_data_shows_counts_lengths_problems_and_samples_and_writes_nothing(tmp_path):
    raw = sums(tmp_path / "sums.jsonl")
    prepare = ("prepare", raw, "--rephrased-column", "again", "--out")
    corew(*prepare, tmp_path / "clean")
    corew(*prepare, tmp_path / "all", "--quarantine", "none")
    exam = write_rows(tmp_path / "exam.jsonl", [{"prompt": "3+3="}])
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("[ac]l*/*")}
    assert len(before) == 8
    text = corew(
        *("data", tmp_path / "clean", "--tokenizer", LAB_POLICY, "--max-tokens", 9),
        *("--against", f"exam={exam}", "--samples", 10),
    )
    assert "10 questions from sums" in text
    assert "10 with an answer, 10 with a rephrasing" in text
    assert "original, tokens: median 4, 99 % 10, longest 10, 1 over 9" in text
    assert "1 verbatim in exam" in text
    assert "sums-9  answer: 15" in text
    assert "rephrased: add 1,2,3,4,5:" in text
    assert "1 rephrasing placeholder" in corew("data", tmp_path / "all")
    assert "median 1" in corew("data", raw)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("[ac]l*/*")} == before
    assert "need a file that exists" in refusal("data", tmp_path / "none.jsonl")
    # A tokenizer that cannot read the questions is the user's choice.
    assert "tokenizer cannot read" in refusal("data", tmp_path / "all", "--tokenizer", LAB_POLICY)
