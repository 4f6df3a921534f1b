"""What NeMo-Run makes of our tasks; each test holds one of its traps. Needs `make launcher`."""

import ast
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-launcher" / "bin" / "python"
CLUSTERS = ROOT / "configs" / "clusters"
DEMO = str(ROOT / "configs" / "runs" / "demo.yaml")
needs_launcher = pytest.mark.skipif(not PYTHON.exists(), reason="needs `make launcher`")


def launch(
    home: Path, launcher: str, *arguments: str, path: str = os.environ["PATH"]
) -> subprocess.CompletedProcess[str]:
    """Call a launcher."""
    return subprocess.run(
        [str(PYTHON), "-m", f"launchers.{launcher}", *arguments],
        cwd=ROOT,
        # A shell that exports the width of its window is no reason to fold.
        env=os.environ | {"NEMORUN_HOME": str(home), "PATH": path, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture(scope="module")
def slurm_script(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The dry run of three nodes with Pyxis."""
    home = tmp_path_factory.mktemp("nemo")
    cluster = str(CLUSTERS / "slurm_pyxis_h100.yaml")
    counts = ("--nodes", "1", "--policy-nodes", "1", "--teacher-nodes", "1")
    done = launch(home, "slurm", DEMO, "--cluster", cluster, *counts, "--dry-run")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def steps(script: str) -> list[str]:
    return [
        line.strip() for line in script.splitlines() if line.strip().startswith("srun --output")
    ]


@needs_launcher
def test_trainer_and_servers_are_steps_of_one_allocation(slurm_script):
    assert "#SBATCH --nodes=3" in slurm_script
    assert "hetjob" not in slurm_script
    found = steps(slurm_script)
    assert [re.findall(r"--relative=(\d)", step) for step in found] == [["0"], ["1"], ["2"]]
    for step in found:
        assert "--nodes=1 --ntasks=1" in step
        assert "--overlap" in step
        assert "--kill-on-bad-exit=1" in step


@needs_launcher
def test_a_dry_run_in_a_pipe_neither_folds_nor_fills_up_lines(slurm_script):
    lines = slurm_script.splitlines()
    assert all(line == line.rstrip() for line in lines)
    assert all(len(line) < 1000 for line in lines)
    assert all(" & pids[" in step for step in steps(slurm_script))


@needs_launcher
def test_no_launcher_wraps_the_tasks_and_torchrun_is_in_the_trainers_script(slurm_script):
    assert not any(
        "torchrun" in step or "torch.distributed" in step for step in steps(slurm_script)
    )
    ours, _, theirs = slurm_script.partition("Entering Experiment")
    assert ours.count("-m torch.distributed.run") == 1
    assert "ft_launcher" not in theirs


@needs_launcher
def test_no_variable_of_ours_is_exported_by_nemo_run(slurm_script):
    theirs = slurm_script.partition("Entering Experiment")[2]
    exported = set(re.findall(r"^\s*export (\w+)=", theirs, re.MULTILINE))
    assert exported == {"PYTHONUNBUFFERED", "SLURM_UNBUFFEREDIO", "TORCHX_MAX_RETRIES"}


@needs_launcher
def test_scripts_have_no_arguments_that_could_lose_their_quotes(slurm_script):
    assert all(
        re.search(r"bash /nemo_run/scripts/job-\d\.sh & pids", s) for s in steps(slurm_script)
    )


@needs_launcher
def test_a_failed_job_is_not_repeated_but_its_time_limit_requeues_it(slurm_script):
    assert "TORCHX_MAX_RETRIES=0" in slurm_script
    assert "#SBATCH --signal=B:USR1@120" in slurm_script
    theirs = slurm_script.partition("Entering Experiment")[2]
    assert "trap requeue USR1" in theirs
    assert "#SBATCH --requeue" in theirs


@needs_launcher
def test_the_clusters_own_arguments_reach_every_step_and_pyxis_only_with_a_container(
    slurm_script, tmp_path
):
    assert all("--mpi=none" in step and "--container-image" in step for step in steps(slurm_script))
    plain = launch(
        tmp_path, "slurm", DEMO, "--cluster", str(CLUSTERS / "slurm_plain.yaml"), "--dry-run"
    )
    assert plain.returncode == 0
    assert steps(plain.stdout)
    assert "--container" not in plain.stdout
    assert "--mpi" not in plain.stdout


@needs_launcher
@pytest.mark.parametrize(
    ("launcher", "cluster", "words"),
    [
        ("local", "local", "job.sh"),
        # The user of the job has no home in the image.
        ("docker", "docker_one_node", "HOME: /data/cache"),
    ],
)
def test_one_machine_runs_the_whole_job_as_one_task(tmp_path, launcher, cluster, words):
    file = str(CLUSTERS / f"{cluster}.yaml")
    done = launch(tmp_path, launcher, DEMO, "--cluster", file, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "trainer ranks 0-1" in done.stdout
    assert "wait -n" in done.stdout
    assert words in done.stdout.partition("Entering Experiment")[2]
    assert not (tmp_path / "runs").exists()


@needs_launcher
@pytest.mark.parametrize(
    ("launcher", "cluster", "message"),
    [
        ("local", "slurm_plain", "scheduler: need none"),
        ("slurm", "local", "scheduler: need slurm"),
        ("docker", "local", "container: need"),
    ],
)
def test_a_cluster_of_another_kind_ends_with_one_line_and_code_1(
    tmp_path, launcher, cluster, message
):
    file = str(CLUSTERS / f"{cluster}.yaml")
    done = launch(tmp_path, launcher, DEMO, "--cluster", file, "--dry-run")
    assert done.returncode == 1
    assert message in done.stderr


@needs_launcher
def test_bad_parameters_end_with_a_code_that_is_not_0(tmp_path):
    file = str(CLUSTERS / "local.yaml")
    assert launch(tmp_path, "local", DEMO, "--cluster", file, "--no-such").returncode == 2
    wrong = launch(tmp_path, "local", DEMO, "run.stepz=1", "--cluster", file, "--dry-run")
    assert wrong.returncode == 1
    assert "run.stepz" in wrong.stderr


def cluster_without_python(folder: Path, scheduler: str) -> Path:
    """A cluster file whose jobs fail at once."""
    facts = {
        "scheduler": scheduler,
        "workdir": str(folder),
        "python": "/bin/false",
        "cache": str(folder),
        "gpus_per_node": 0,
    }
    path = folder / "cluster.yaml"
    path.write_text(yaml.safe_dump(facts))
    return path


@needs_launcher
def test_a_local_job_that_fails_fails_the_launcher(tmp_path):
    cluster = cluster_without_python(tmp_path, "none")
    knob = "run.root=my runs"
    done = launch(tmp_path / "nemo", "local", DEMO, knob, "--cluster", str(cluster))
    assert done.returncode == 1
    assert "FAILED" in done.stderr
    # The job itself ran: the blank in its path was no obstacle.
    assert list((tmp_path / "my runs/demo/logs").glob("job-*"))


@needs_launcher
def test_a_job_that_slurm_does_not_take_fails_the_launcher(tmp_path):
    for name, line in (("sbatch", "echo no such partition >&2; exit 1"), ("scontrol", "true")):
        (tmp_path / name).write_text(f"#!/bin/bash\n{line}\n")
        (tmp_path / name).chmod(0o755)
    cluster = cluster_without_python(tmp_path, "slurm")
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = launch(tmp_path / "nemo", "slurm", DEMO, "--cluster", str(cluster), path=path)
    assert done.returncode != 0
    assert "no such partition" in done.stdout + done.stderr


@needs_launcher
def test_docker_refuses_secrets_because_nemo_run_would_write_them_down(tmp_path):
    facts = yaml.safe_load((CLUSTERS / "docker_one_node.yaml").read_text())
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump(facts | {"secrets": ["HF_TOKEN"]}))
    done = launch(tmp_path, "docker", DEMO, "--cluster", str(file), "--dry-run")
    assert done.returncode == 1
    assert "secrets: need an empty list" in done.stderr


@needs_launcher
def test_the_locked_launcher_imports():
    """NeMo-Run 0.11.1 with the newest leptonai cannot be imported."""
    done = subprocess.run(
        [str(PYTHON), "-c", "import nemo_run, sys; sys.exit('torch' in sys.modules)"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_the_lock_has_the_versions_that_fit_each_other():
    lock = dict(
        line.split("==") for line in (ROOT / "requirements/launcher.lock").read_text().split()
    )
    assert lock["nemo_run"] == "0.11.1"
    assert (0, 26, 6) <= tuple(map(int, lock["leptonai"].split("."))) < (0, 47)
    assert {"pydantic", "omegaconf", "Jinja2", "typer", "rich", "PyYAML"} <= lock.keys()
    assert not {"torch", "vllm", "megatron-core"} & lock.keys()


def test_only_nemo_runs_own_modules_import_it_and_none_takes_a_partial():
    """A Partial would need NeMo-Run and our module inside the container."""
    importers = set()
    for path in (ROOT / "launchers").glob("*.py"):
        names = {
            node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
            for node in ast.walk(ast.parse(path.read_text()))
        }
        assert "Partial" not in names
        if "nemo_run" in path.read_text():
            importers.add(path.stem)
    assert importers == {"docker", "experiment", "local", "slurm"}


@needs_launcher
def test_the_job_lies_where_nemo_run_looks_for_it(tmp_path):
    program = """
import nemo_run as run
from launchers import slurm
from launchers.cluster import load_cluster
from launchers.options import _prepare
from launchers.placement import Wish
from pathlib import Path
import sys
launch = _prepare(Path(sys.argv[1]), [], Path(sys.argv[2]), Wish())
print(slurm._executor(launch, []).tunnel.job_dir)
"""
    cluster = str(CLUSTERS / "slurm_plain.yaml")
    done = subprocess.run(
        [str(PYTHON), "-c", program, DEMO, cluster],
        cwd=ROOT,
        env=os.environ | {"NEMORUN_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == f"{tmp_path}/experiments", done.stderr
