"""`corew lab compare` as a user runs it: real training runs, skipped when they are finished."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from megatron_corew.lab.compare.writing import FILES

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

ROOT = Path(__file__).parents[2]


def compare(out: Path, methods: str) -> str:
    command = [sys.executable, "-m", "megatron_corew.cli", "lab", "compare"]
    options = ["--methods", methods, "--seeds", "1", "--steps", "2", "--jobs", "2"]
    done = subprocess.run(
        [*command, *options, "--out", str(out)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def test_two_methods_are_trained_and_a_finished_one_is_not_trained_again(tmp_path):
    first = compare(tmp_path, "majority_vote")
    assert "majority_vote-101: starts" in first
    metrics = tmp_path / "runs" / "majority_vote-101" / "metrics.jsonl"
    before = metrics.read_bytes()

    second = compare(tmp_path, "majority_vote,co_rewarding_iii")
    assert "1/2 finished before: majority_vote-101" in second
    assert "2/2 done: co_rewarding_iii-101" in second
    assert metrics.read_bytes() == before

    assert {file.name for file in tmp_path.iterdir()} == {*FILES, "runs"}
    found = json.loads((tmp_path / "results.json").read_text())
    co, vote = found["runs"]
    # One base and one evaluation seed: both start from the same figures.
    assert vote["figures"]["original start"] == co["figures"]["original start"]
    assert 0.2 < vote["figures"]["original start"] < 0.8
    assert (tmp_path / "runs" / "co_rewarding_iii-101" / "report.html").is_file()
