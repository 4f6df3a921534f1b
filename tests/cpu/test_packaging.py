"""An installed wheel has all that the commands need, without the repository."""

import re
import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

from megatron_corew import preflight
from megatron_corew.config_file import differences, load_config

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def name_of(requirement: str) -> str:
    return re.split(r"[<>=\[ ;]", requirement, maxsplit=1)[0]


def test_every_file_of_the_package_that_is_no_module_is_package_data():
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["megatron_corew"]
    package = ROOT / "megatron_corew"
    files = [
        str(path.relative_to(package))
        for path in package.rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc", ".tmp")
    ]
    assert "lab/demo.yaml" in files
    left_out = [name for name in files if not any(fnmatch(name, one) for one in patterns)]
    assert not left_out


def test_the_demo_of_the_package_is_the_one_in_the_configs():
    shipped = load_config(ROOT / "configs" / "runs" / "demo.yaml")
    assert differences(load_config(preflight.DEMO), shipped) == []


def test_every_dependency_of_the_project_is_locked_for_both_sets():
    names = {name_of(line).lower().replace("_", "-") for line in PROJECT["project"]["dependencies"]}
    for lock in ("cpu", "cuda"):
        lines = (ROOT / "requirements" / f"{lock}.lock").read_text().lower().replace("_", "-")
        locked = {line.partition("==")[0] for line in lines.splitlines()}
        assert names <= locked, f"{names - locked} missing in requirements/{lock}.lock"


def test_ci_runs_the_checks_of_the_project_and_lints_the_image():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    commands = [step.get("run", "") for step in steps]
    assert {".ci/run", ".ci/release", "make launcher"} <= set(commands)
    assert any("hadolint" in step.get("uses", "") for step in steps)
    assert any(command.startswith("docker compose") for command in commands)
    # YAML 1.1 reads the key `on` as true.
    assert {"push", "pull_request", "schedule"} <= set(workflow[True])


@pytest.mark.parametrize("script", [".ci/run", ".ci/release", "docker/smoke", "docker/healthcheck"])
def test_scripts_are_executable_and_parse(script):
    path = ROOT / script
    assert path.stat().st_mode & 0o111
    assert subprocess.run(["bash", "-n", str(path)]).returncode == 0
