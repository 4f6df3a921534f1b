"""The scripts of a job: what they export, how they start and end, what Slurm is told."""

import os
import re
import signal
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from launchers import slurm_flags
from launchers.bundle import make_bundle
from launchers.placement import Wish, place
from launchers.variables import TABLE, environment
from megatron_corew.config_file import load_config
from tests.launchers.facts import cluster_of, run_of

ROOT = Path(__file__).parents[2]
STUBS = Path(__file__).parent / "stubs"


def bundle_of(cluster=None, wish=None, **run):
    cluster = cluster or cluster_of(bucket_folder="/shared/buckets")
    config = run_of(**run or {"parallel": {"tensor": 8}})
    placement = place(config, cluster, wish or Wish(policy_nodes=1, teacher_nodes=1))
    return make_bundle(config, cluster, placement)


@pytest.mark.parametrize("gpus", [0, 8])
@pytest.mark.parametrize("scheduler", ["slurm", "none"])
def test_every_script_is_valid_bash(gpus, scheduler):
    cluster = cluster_of(gpus_per_node=gpus, scheduler=scheduler, setup=["module load cuda"])
    bundle = bundle_of(cluster, Wish(teacher_servers=1), parallel={"tensor": 2})
    assert set(bundle.scripts) == {
        *("prologue.sh", "trainer.sh", "policy.sh", "teacher.sh", "job.sh")
    }
    for text in bundle.scripts.values():
        done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr


def test_no_script_needs_a_command_of_the_environment_on_the_path():
    for name, text in bundle_of().scripts.items():
        used = re.findall(r"^(?:exec )?(\S+) -m (\S+)", text, re.MULTILINE)
        assert {python for python, _ in used} <= {"/opt/venv/bin/python"}, name
        assert not re.search(r"^\W*(exec )?(torchrun|corew|vllm|nemorun) ", text, re.MULTILINE)


def test_the_table_of_variables_is_the_one_in_the_docs():
    lines = (ROOT / "docs" / "launch.md").read_text().splitlines()
    for row in TABLE:
        expected = f"| `{row.name}` | `{row.value}` | {row.who} | {row.when} | {row.why} |"
        assert expected in lines
    assert len([line for line in lines if line.startswith("| `") and line.count("|") == 6]) == len(
        TABLE
    )


def test_variables_follow_the_process_the_fabric_and_the_cluster():
    run = run_of(parallel={"threads": 3})
    cpu = environment(run, cluster_of(gpus_per_node=0), "trainer")
    assert cpu["OMP_NUM_THREADS"] == "3"
    assert not any(name.startswith(("NCCL", "CUDA", "UCX")) for name in cpu)
    ib = cluster_of(fabric="infiniband", interface="ib0", variables={"NCCL_DEBUG": "INFO"})
    trainer, server = environment(run, ib, "trainer"), environment(run, ib, "server")
    assert trainer["NCCL_SOCKET_IFNAME"] == "ib0"
    assert trainer["NCCL_DEBUG"] == "INFO"
    assert "NCCL_IB_DISABLE" not in trainer
    assert trainer["HF_HOME"] == "/shared/cache/huggingface"
    # The trainer's allocator and kernel order are nothing for vLLM.
    assert "PYTORCH_CUDA_ALLOC_CONF" in trainer
    assert not {"PYTORCH_CUDA_ALLOC_CONF", "CUDA_DEVICE_MAX_CONNECTIONS"} & server.keys()


def test_values_with_spaces_and_quotes_arrive_as_they_are(tmp_path):
    value = "a b; $HOME 'c'"
    cluster = cluster_of(workdir=str(tmp_path), gpus_per_node=0, variables={"ODD": value})
    script = bundle_of(cluster, Wish(), parallel={"tensor": 2}).scripts["policy.sh"]
    exports = [line for line in script.splitlines() if line.startswith("export ")]
    probe = "\n".join([*exports, 'printf %s "$ODD"'])
    done = subprocess.run(["bash", "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout == value


def test_slurm_is_told_the_size_the_limits_and_what_to_do_at_the_end():
    cluster = cluster_of(
        account="me",
        partition="h100",
        time_limit="1-00:00:00",
        gpu_request="gres",
        cpus_per_node=96,
        end_signal_s=300,
        bucket_folder="/shared/buckets",
        sbatch_args=["--mail-type=END"],
    )
    flags = {
        line.removeprefix("#SBATCH ")
        for line in bundle_of(cluster).scripts["job.sh"].splitlines()
        if line.startswith("#SBATCH")
    }
    assert flags == {
        "--job-name=corew-test",
        "--nodes=3",
        "--ntasks-per-node=1",
        "--cpus-per-task=96",
        "--account=me",
        "--partition=h100",
        "--time=1-00:00:00",
        "--output=/shared/corew/runs/test/logs/job-%j.log",
        "--open-mode=append",
        "--gres=gpu:8",
        "--signal=B:USR1@300",
        "--exclusive",
        "--requeue",
        "--mail-type=END",
    }


def test_every_step_has_its_nodes_and_ends_with_a_bad_exit():
    steps = [
        line for line in bundle_of().scripts["job.sh"].splitlines() if line.startswith("srun ")
    ]
    assert len(steps) == 3
    assert all("--kill-on-bad-exit=1" in step and "--overlap" in step for step in steps)
    relative = [step.split("--relative=")[1].split()[0] for step in steps]
    assert relative == ["1", "2", "0"]


def test_the_plain_script_needs_no_pyxis_and_takes_the_clusters_arguments():
    cluster = cluster_of(bucket_folder="/shared/buckets", srun_args=["--mpi=none"])
    plain = bundle_of(cluster).scripts["job.sh"]
    assert "--container" not in plain
    assert plain.count("--mpi=none") == 3
    assert "--mpi" not in bundle_of().scripts["job.sh"]
    pyxis = cluster_of(container="image.sqsh", mounts=["/shared:/shared"])
    script = bundle_of(pyxis, Wish(), parallel={"tensor": 8}).scripts["job.sh"]
    assert script.count("--container-image=image.sqsh --container-mounts=/shared:/shared") == 2


def test_servers_listen_to_the_network_only_when_they_must_and_always_ask_for_the_token():
    alone = bundle_of(cluster_of(), Wish(), parallel={"tensor": 4}).config.servers
    spread = bundle_of().config.servers
    assert (alone.host, spread.host) == ("127.0.0.1", "0.0.0.0")
    assert alone.token_file == spread.token_file == "/shared/corew/runs/test/launch/token"
    assert (alone.bucket_folder, spread.bucket_folder) == ("/dev/shm", "/shared/buckets")


def test_the_launch_folder_is_written_with_a_private_token_that_stays(tmp_path):
    cluster = cluster_of(workdir=str(tmp_path))
    bundle = bundle_of(cluster, Wish(), parallel={"tensor": 4})
    bundle.write()
    token = bundle.token.read_text()
    assert len(token) >= 32
    assert stat.S_IMODE(bundle.token.stat().st_mode) == 0o600
    assert load_config(bundle.folder / "config.yaml") == bundle.config
    assert not any(token in text for text in bundle.scripts.values())
    assert (tmp_path / "runs" / "test" / "logs").is_dir()
    bundle.write()
    assert bundle.token.read_text() == token


FAKE_PYTHON = """#!/bin/bash
echo "$@" >> "$CALLS"
case "$*" in
    *" serve "*) exec sleep "$SERVER_S" ;;
    *" wait "*) exit 0 ;;
    *) [ "$TRAINER_S" = 0 ] || exec sleep "$TRAINER_S"; exit "$TRAINER_CODE" ;;
esac
"""


def run_script(tmp_path: Path, name: str, *, policy: str | None = None, **stand_in: object):
    """Run a script of one machine with a stand-in for Python, and maybe one for the servers."""
    python = tmp_path / "python"
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)
    cluster = cluster_of(
        scheduler="none", gpus_per_node=0, workdir=str(tmp_path), python=str(python)
    )
    bundle = bundle_of(cluster, Wish(), parallel={"tensor": 2}, root="my runs")
    bundle.write()
    if policy is not None:
        (bundle.folder / "policy.sh").write_text(policy)
    variables = {"TRAINER_CODE": 0, "COREW_LOGS": tmp_path, "CALLS": tmp_path / "calls"} | stand_in
    return subprocess.run(
        ["bash", str(bundle.folder / name)],
        env=os.environ | {key: str(value) for key, value in variables.items()},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_job_ends_with_the_trainers_code_and_takes_the_servers_with_it(tmp_path):
    # The servers would sleep longer than the test may take.
    assert run_script(tmp_path, "job.sh", SERVER_S=600, TRAINER_S=0).returncode == 0
    failed = run_script(tmp_path, "job.sh", SERVER_S=600, TRAINER_S=0, TRAINER_CODE=7)
    assert failed.returncode == 7
    assert "ended with code 7" in failed.stdout


def test_a_server_that_ends_well_before_the_trainer_fails_the_job(tmp_path):
    done = run_script(tmp_path, "job.sh", SERVER_S=0, TRAINER_S=600)
    assert done.returncode == 1
    assert "servers ended" in done.stderr
    # NeMo-Run's monitor takes the code of the first task that ends, so the task itself says 1.
    assert run_script(tmp_path, "policy.sh", SERVER_S=0, TRAINER_S=600).returncode == 1
    # A step whose nodes vanish may end with 0 too.
    done = run_script(tmp_path, "job.sh", policy="echo last words; exit 0", TRAINER_S=600)
    assert done.returncode == 1
    assert "last words" in done.stderr


def test_a_job_asks_for_its_secrets_by_name_and_never_shows_them(tmp_path):
    cluster = cluster_of(workdir=str(tmp_path), scheduler="none", secrets=["COREW_TEST_SECRET"])
    bundle = bundle_of(cluster, Wish(), parallel={"tensor": 4})
    bundle.write()

    def start(**secret: str) -> subprocess.CompletedProcess[str]:
        # NeMo-Run's batch scripts print and trace what they do.
        command = ["bash", "-vx", str(bundle.prologue)]
        return subprocess.run(command, env=os.environ | secret, capture_output=True, text=True)

    assert start().returncode == 1
    assert "secrets: need COREW_TEST_SECRET" in start().stderr
    good = start(COREW_TEST_SECRET="the-value")
    assert good.returncode == 0, good.stderr
    assert "the-value" not in good.stdout + good.stderr
    assert not any("the-value" in path.read_text() for path in bundle.folder.iterdir())


@pytest.mark.parametrize(("sent", "requeued"), [(signal.SIGUSR1, True), (signal.SIGTERM, False)])
def test_a_signalled_job_ends_its_steps_and_only_before_the_time_limit_requeues_itself(
    tmp_path, sent, requeued
):
    python = tmp_path / "python"
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)
    cluster = cluster_of(gpus_per_node=0, workdir=str(tmp_path), python=str(python))
    bundle = bundle_of(cluster, Wish(), parallel={"tensor": 2})
    bundle.write()
    environment = {
        "PATH": f"{STUBS}:{os.environ['PATH']}",
        "STUB_DIR": str(tmp_path),
        "STUB_NODES": "1",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "all",
        "CALLS": str(tmp_path / "calls"),
        "SERVER_S": "600",
        "TRAINER_S": "600",
    }
    job = subprocess.Popen(["bash", str(bundle.job)], env=environment, start_new_session=True)
    calls = tmp_path / "calls"
    wait_until(lambda: calls.exists() and "torch.distributed.run" in calls.read_text())
    job.send_signal(sent)
    assert job.wait(60) == 143
    assert ("scontrol requeue 7" in (tmp_path / "calls.log").read_text()) == requeued
    # Nothing of the job's session is left.
    wait_until(lambda: not session_lives(job.pid))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def session_lives(session: int) -> bool:
    done = subprocess.run(["ps", "-o", "pid=", "-s", str(session)], capture_output=True, text=True)
    return bool(done.stdout.strip())


def test_a_job_goes_back_to_the_queue_so_often_and_no_more(tmp_path):
    (tmp_path / "scontrol").write_text('#!/bin/bash\necho "$@"\n')
    (tmp_path / "scontrol").chmod(0o755)
    lines = slurm_flags.requeue_trap(cluster_of(max_requeues=2)) + "\nkill -USR1 $$\necho no\n"

    def requeue(restarts: int) -> subprocess.CompletedProcess[str]:
        path = f"{tmp_path}:{os.environ['PATH']}"
        job = {"PATH": path, "SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": str(restarts)}
        return subprocess.run(["bash", "-c", lines], env=job, capture_output=True, text=True)

    assert requeue(1).stdout == "requeue 7\n"
    assert requeue(2).stdout == ""
    assert requeue(2).returncode == 143
