"""How trainer processes come into being: torchrun's command, srun's variables, one per folder."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from megatron_corew import cli, launch
from megatron_corew.config import Config
from megatron_corew.config_file import save_config
from megatron_corew.runs import RunFolder

ROOT = Path(__file__).parents[2]


def config_for(tmp_path, **parallel) -> Config:
    return Config.model_validate(
        {
            "method": "co_rewarding_i",
            "run": {"name": "test", "root": str(tmp_path), "steps": 2},
            "model": {"path": "lab"},
            "data": {"train": "lab"},
            "parallel": parallel,
        }
    )


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        # Set first, so that what the code under test sets is taken back at the end.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name, value in {
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "3",
        "SLURM_NTASKS": "8",
        "SLURM_LOCALID": "1",
    }.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def test_a_task_of_srun_takes_its_rank_from_slurm(slurm):
    slurm.setenv("MASTER_ADDR", "node1")
    slurm.setenv("MASTER_PORT", "29500")
    launch.join_slurm()
    assert launch.is_worker()
    found = [launch.os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")]
    assert found == ["3", "8", "1"]


def test_a_task_of_srun_without_a_meeting_point_is_refused(slurm):
    with pytest.raises(ValueError, match="MASTER_ADDR"):
        launch.join_slurm()


def test_an_allocation_alone_makes_no_worker(slurm):
    slurm.delenv("SLURM_STEP_ID")
    launch.join_slurm()
    assert not launch.is_worker()


def test_torchrun_starts_one_process_per_part_of_the_layout(tmp_path):
    config = config_for(tmp_path, tensor=2, pipeline=2, data=2)
    command = launch.torchrun_command(config, RunFolder.of(config))
    assert command[command.index("--nproc-per-node") + 1] == "8"
    # Rank 0 keeps the terminal, the other seven write to files.
    redirects = command[command.index("--redirects") + 1].split(",")
    assert redirects == [f"{rank}:3" for rank in range(1, 8)]


SLEEPER = """
import os, pathlib, time
from megatron_corew import run

def sleep(config):
    pathlib.Path(config.run.root, os.environ["RANK"]).write_text(str(os.getpid()))
    try:
        time.sleep(600)
    except KeyboardInterrupt:
        raise RuntimeError("connection closed by a rank that ended first") from None

run.run = sleep
run.main()
"""
STARTER = """
import sys
from pathlib import Path
from megatron_corew import launch
from megatron_corew.config_file import load_config
from megatron_corew.runs import RunFolder

folder, sleeper = Path(sys.argv[1]), sys.argv[2]
config = load_config(folder / "config.yaml")
command = launch.torchrun_command(config, RunFolder(folder))
launch.torchrun_command = lambda *_: [*command[:-3], sleeper, command[-1]]
sys.exit(launch.start_processes(config, RunFolder(folder)))
"""


@pytest.mark.parametrize(
    ("sent", "code", "early"),
    [(signal.SIGINT, 130, True), (signal.SIGINT, 130, False), (signal.SIGTERM, 143, False)],
)
def test_a_signal_ends_all_processes_with_its_code_and_without_a_traceback(
    tmp_path, sent, code, early
):
    config = config_for(tmp_path, tensor=2)
    save_config(config, tmp_path / "config.yaml")
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    command = [sys.executable, "-c", STARTER, str(tmp_path), str(tmp_path / "sleeper.py")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command, env=environment, start_new_session=True, stderr=subprocess.PIPE, text=True
    )
    pids = [tmp_path / "0", tmp_path / "1"]
    # The folder of logs is made just before torchrun starts.
    wanted = [tmp_path / "logs" / "trainer"] if early else pids
    deadline = time.monotonic() + 120
    while not all(path.exists() for path in wanted):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    # A terminal interrupts its whole process group; others tell the command alone.
    (os.killpg if sent == signal.SIGINT else os.kill)(process.pid, sent)
    _, error = process.communicate(timeout=120)
    assert (process.returncode, error) == (code, "")
    for path in filter(Path.exists, pids):
        with pytest.raises(ProcessLookupError):
            os.kill(int(path.read_text()), 0)


DEAF = """
import pathlib, signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
pathlib.Path(sys.argv[1]).touch()
time.sleep(600)
"""
DEAF_STARTER = """
import sys
from pathlib import Path
from megatron_corew import launch
from megatron_corew.config_file import load_config
from megatron_corew.runs import RunFolder

folder = Path(sys.argv[1])
launch._INSIST_S = 1
launch.torchrun_command = lambda *_: [sys.executable, str(folder / "deaf.py"), folder / "there"]
sys.exit(launch.start_processes(load_config(folder / "config.yaml"), RunFolder(folder)))
"""


def test_an_interrupt_that_torchrun_has_lost_ends_it_later_all_the_same(tmp_path):
    save_config(config_for(tmp_path), tmp_path / "config.yaml")
    (tmp_path / "deaf.py").write_text(DEAF)
    command = [sys.executable, "-c", DEAF_STARTER, str(tmp_path)]
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    while not (tmp_path / "there").exists():
        assert process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=60) == 130


def test_an_interrupted_command_says_so_in_one_line_and_how_to_go_on(tmp_path, monkeypatch):
    config = config_for(tmp_path)
    save_config(config, tmp_path / "run.yaml")
    monkeypatch.setattr(cli.launch, "start_processes", lambda *_: 130)
    monkeypatch.setattr(cli.preflight, "check", lambda _: [])
    done = CliRunner().invoke(cli.app, ["train", str(tmp_path / "run.yaml")])
    assert done.exit_code == 130
    assert done.stderr == "interrupted: the same command starts again.\n"


def test_two_processes_never_train_in_one_folder(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with folder.locked(), pytest.raises(RuntimeError, match=r"run\.name"), folder.locked():
        pass
    with folder.locked():
        pass


def test_a_folder_goes_on_only_with_the_configuration_that_made_its_checkpoint(tmp_path):
    config = config_for(tmp_path)
    folder = RunFolder.of(config)
    with folder.locked():
        folder.prepare(config)
    other = config.model_copy(
        update={"optimizer": config.optimizer.model_copy(update={"lr": 1e-4})}
    )
    folder.prepare(other)  # no checkpoint yet: nothing to contradict
    folder.prepare(config)
    folder.checkpoints.mkdir()
    (folder.checkpoints / "latest").write_text("2")
    with pytest.raises(ValueError, match=r"optimizer\.lr"):
        folder.prepare(other)
    wider = config.model_copy(update={"parallel": config.parallel.model_copy(update={"tensor": 2})})
    folder.prepare(wider)
