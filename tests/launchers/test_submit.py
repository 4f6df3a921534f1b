"""A job submitted to stand-ins for Slurm's commands really trains.

The stand-ins run the generated scripts on this machine: three "nodes", two of them with one
trainer process each (tensor parallel across the nodes), one with a vLLM server.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from megatron_corew.observe.metrics import read_metrics
from megatron_corew.rollout.server import free_port

ROOT = Path(__file__).parents[2]
STUBS = Path(__file__).parent / "stubs"
LAUNCHER_PYTHON = ROOT / ".venv-launcher" / "bin" / "python"
RUN = [
    str(ROOT / "configs" / "runs" / "demo.yaml"),
    "run.steps=2",
    "rollout.prompts_per_step=4",
    "evaluate.questions=8",
    *("--nodes", "2", "--policy-nodes", "1"),
]


def cluster_file(folder: Path) -> Path:
    """A cluster whose shared folders are in ``folder``."""
    (folder / "buckets").mkdir()
    facts = {
        "scheduler": "slurm",
        "partition": "test",
        "workdir": str(folder),
        "python": sys.executable,
        "cache": str(folder / "cache"),
        "bucket_folder": str(folder / "buckets"),
        "gpus_per_node": 0,
        "first_port": free_port("127.0.0.1") // 10 * 10,
        "variables": {"PYTHONPATH": str(ROOT)},
    }
    path = folder / "cluster.yaml"
    path.write_text(yaml.safe_dump(facts))
    return path


def environment(folder: Path) -> dict[str, str]:
    return os.environ | {
        "PATH": f"{STUBS}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "STUB_DIR": str(folder),
        "STUB_NODES": "3",
        "NEMORUN_HOME": str(folder / "nemo"),
    }


def call(folder: Path, *command: str) -> str:
    done = subprocess.run(
        command, cwd=ROOT, env=environment(folder), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def job_code(folder: Path) -> int:
    """Wait for the job and return its exit code."""
    deadline = time.monotonic() + 300
    while not (folder / "job.rc").exists():
        assert time.monotonic() < deadline, "the job did not end"
        time.sleep(0.2)
    return int((folder / "job.rc").read_text())


def check_trained(folder: Path) -> None:
    logs = "\n".join(path.read_text() for path in (folder / "runs/demo/logs").rglob("*.log"))
    assert job_code(folder) == 0, (folder / "job.log").read_text() + logs
    records = read_metrics(folder / "runs" / "demo")
    assert [record["step"] for record in records] == [0, 1, 2]
    assert all(record["gap/mean"] <= 1e-5 for record in records[1:])
    # Both nodes ran a part of the trainer, and the server asked for the token.
    job = next((folder / "runs/demo/logs").glob("job-4242-0"))
    assert {path.name for path in job.glob("trainer-node*.log")} == {
        "trainer-node0.log",
        "trainer-node1.log",
    }
    assert list(job.glob("policy-node0-*.log"))
    token = (folder / "runs/demo/launch/token").read_text()
    assert token not in logs + (folder / "job.log").read_text()


@pytest.mark.slow
@pytest.mark.vllm
def test_the_plain_script_trains_through_sbatch_and_srun(tmp_path):
    cluster = cluster_file(tmp_path)
    call(tmp_path, sys.executable, "-m", "launchers.sbatch", *RUN, "--cluster", str(cluster))
    call(tmp_path, "sbatch", str(tmp_path / "runs/demo/launch/job.sh"))
    check_trained(tmp_path)
    calls = (tmp_path / "calls.log").read_text()
    assert calls.count("--kill-on-bad-exit=1") == 2
    assert "scontrol show hostnames all" in calls


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.skipif(not LAUNCHER_PYTHON.exists(), reason="needs `make launcher`")
def test_nemo_run_submits_a_job_that_trains(tmp_path):
    cluster = cluster_file(tmp_path)
    command = [str(LAUNCHER_PYTHON), "-m", "launchers.slurm", *RUN, "--cluster", str(cluster)]
    call(tmp_path, *command)
    check_trained(tmp_path)
    calls = (tmp_path / "calls.log").read_text()
    assert "sbatch --requeue --parsable" in calls
    assert "--relative=2" in calls
