"""A server is started with the flags that the numbers rely on, and ends with its trainer."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from megatron_corew.config import ServersConfig
from megatron_corew.rollout import child_of
from megatron_corew.rollout.server import server_command, server_environment

SIZES = {"port": 8000, "dtype": "float32", "max_model_len": 9000, "seed": 3}


def flags(servers: ServersConfig, *, on_gpu: bool = False) -> dict[str, str]:
    command = server_command("model", servers, on_gpu=on_gpu, **SIZES)
    return dict(zip(command, [*command[1:], ""], strict=True))


def test_log_probs_are_those_of_the_sampled_distribution_and_no_file_changes_the_sampling():
    got = flags(ServersConfig())
    assert got["--logprobs-mode"] == "processed_logprobs"
    assert got["--generation-config"] == "vllm"


def test_a_cpu_server_never_splits_a_prompt_and_takes_a_step_that_holds_the_longest():
    got = flags(ServersConfig())
    assert "--no-enable-chunked-prefill" in got
    assert int(got["--max-num-batched-tokens"]) >= SIZES["max_model_len"]
    assert got["--kv-cache-memory-bytes"] == "1000000000"
    assert "--gpu-memory-utilization" not in got


def test_a_gpu_server_gets_its_share_of_memory_and_no_cpu_flags():
    got = flags(ServersConfig(gpu_memory_share=0.7, tensor_parallel=4), on_gpu=True)
    assert got["--gpu-memory-utilization"] == "0.7"
    assert got["--tensor-parallel-size"] == "4"
    assert "--enforce-eager" not in got


def test_the_environment_keeps_the_callers_and_leaves_out_the_trainers_rank():
    given = {"HOME": "/home/me", "RANK": "0", "WORLD_SIZE": "2", "PYTHONPATH": "mine"}
    got = server_environment(ServersConfig(threads=2), given, on_gpu=False)
    assert got["HOME"] == "/home/me"
    assert got["OMP_NUM_THREADS"] == "2"
    assert got["VLLM_SERVER_DEV_MODE"] == "1"
    assert "RANK" not in got
    assert "WORLD_SIZE" not in got
    root, rest = got["PYTHONPATH"].split(os.pathsep)
    assert (Path(root) / "megatron_corew").is_dir()
    assert rest == "mine"


PARENT = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-IS", sys.argv[1], str(os.getpid()), "sleep", "60"])
print(child.pid, flush=True)
child.wait()
"""


@pytest.mark.timeout(60)
def test_a_child_ends_when_its_parent_is_killed():
    command = [sys.executable, "-c", PARENT, child_of.__file__]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    name = Path(f"/proc/{child}/comm")
    assert _becomes(lambda: name.read_text().strip() == "sleep")
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert _becomes(lambda: not name.exists() or _is_zombie(child))


@pytest.mark.timeout(60)
def test_a_child_whose_parent_is_already_gone_does_not_start():
    done = subprocess.run(
        [sys.executable, "-IS", child_of.__file__, "1", "echo", "started"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "started" not in done.stdout
    assert "the parent ended" in done.stderr


def _is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"


def _becomes(fact: object, timeout_s: float = 20.0) -> bool:
    assert callable(fact)
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if fact():
            return True
        time.sleep(0.02)
    return False
