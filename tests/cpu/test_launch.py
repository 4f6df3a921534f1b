"""How trainer processes come into being: torchrun's command, srun's variables, one per folder."""

import pytest

from megatron_corew import launch
from megatron_corew.config import Config
from megatron_corew.runs import RunFolder


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
