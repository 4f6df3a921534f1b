"""The script for a GPU machine, as far as a machine without one can run it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu import parity

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    command = ["bash", str(ROOT / "tests" / "gpu" / "run.sh"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def test_the_dry_run_prints_one_json_with_every_part():
    done = run("--dry-run")
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["complete"]
    assert found["dry_run"]
    # bfloat16 keeps 8 bits: a few thousandths of the logits' spread.
    assert 1e-4 < found["logits"]["mean_relative_error"] < 0.02
    assert found["step"]["tokens"] == 4 * (32 + 32)
    assert found["offload"]["tensors"] > 50
    assert found["offload"]["differ_again"] == found["offload"]["differ"] == 0
    for part in ("step", "ema", "scores"):
        assert found[part]["seconds"] > 0


def test_the_recorded_logits_are_those_of_transformers_and_of_the_policy():
    reference, ours = parity.golden_logits(), parity.our_logits("float32")
    assert reference.std() > 0.1
    assert float((reference - parity.hugging_face_logits()).abs().max()) < 5e-5
    assert float((reference - ours).abs().max()) < 5e-5


@pytest.mark.parametrize("arguments", [[], ["a", "b"]])
def test_wrong_arguments_end_with_the_usage(arguments):
    done = run(*arguments)
    assert done.returncode == 2
    assert "usage" in done.stderr


def test_a_folder_without_wheels_is_refused(tmp_path):
    done = run(str(tmp_path))
    assert done.returncode == 1
    assert "need wheels in" in done.stderr
