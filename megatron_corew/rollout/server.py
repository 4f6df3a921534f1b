"""One vLLM server as a child of the trainer: its flags, its start, its log, its end."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import httpx

from megatron_corew.config import ServersConfig
from megatron_corew.rollout import child_of
from megatron_corew.rollout.client import ServerClient
from megatron_corew.rollout.token import MIDDLEWARE, TOKEN_FILE_VARIABLE, token_of

SCHEDULER = "megatron_corew.rollout.batch_gate.BatchGate"
WORKER_EXTENSION = "megatron_corew.rollout.shm_engine.WorkerExtension"
TRANSFER = "corew_shm"
LOG_TAIL_LINES = 20
STOP_TIMEOUT_S = 10.0
GROUP_TIMEOUT_S = 3.0
STEP_TOKENS = 8192
"""Prompt tokens of one engine step on CPU: bounds its memory, holds 256 prompts of 32 tokens."""


def server_command(
    model: str,
    servers: ServersConfig,
    *,
    port: int,
    dtype: str,
    max_model_len: int,
    seed: int,
    on_gpu: bool,
) -> list[str]:
    """The command line of a server.

    Args:
        model: Hugging Face folder.
        servers: host, sizes and threads.
        port: free port of the host.
        dtype: ``float32`` or ``bfloat16``; weights are pushed in this type.
        max_model_len: prompt and response together, in tokens.
        seed: of the server; responses have seeds of their own.
        on_gpu: False for a CPU server.

    Returns:
        Arguments for ``subprocess``.
    """
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", model, "--host", servers.host, "--port", str(port)]
    command += ["--dtype", dtype, "--max-model-len", str(max_model_len), "--seed", str(seed)]
    command += ["--max-num-seqs", str(servers.max_sequences)]
    if not any(Path(model).glob("*.safetensors")):
        # The policy starts from a Megatron checkpoint: the first push brings the weights.
        command += ["--load-format", "dummy"]
    command += ["--tensor-parallel-size", str(servers.tensor_parallel)]
    # The log-probs of the distribution that was sampled from, and nothing between the request
    # and that distribution: a model folder may carry a generation_config with top_k or top_p.
    command += ["--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"]
    command += ["--worker-extension-cls", WORKER_EXTENSION]
    command += ["--weight-transfer-config", json.dumps({"backend": TRANSFER})]
    command += ["--scheduler-cls", SCHEDULER, "--no-async-scheduling", "--enable-prefix-caching"]
    command += ["--disable-log-stats", "--disable-uvicorn-access-log"]
    if servers.token_file is not None:
        command += ["--middleware", MIDDLEWARE]
    if on_gpu:
        return [*command, "--gpu-memory-utilization", str(servers.gpu_memory_share)]
    # vLLM 0.32 cannot rewind a CPU random generator, which it does when a seeded request has
    # its prompt split over two steps: that ends the engine. So prompts are never split.
    step_tokens = max(STEP_TOKENS, max_model_len, servers.max_sequences)
    command += ["--no-enable-chunked-prefill", "--max-num-batched-tokens", str(step_tokens)]
    command += ["--enforce-eager", "--block-size", "32"]
    return [*command, "--kv-cache-memory-bytes", str(int(servers.kv_cache_gb * 1e9))]


def server_environment(
    servers: ServersConfig, inherited: Mapping[str, str], *, on_gpu: bool
) -> dict[str, str]:
    """The environment of a server: ours, plus what vLLM only takes from there."""
    package_root = str(Path(__file__).resolve().parents[2])
    paths = [package_root, *filter(None, inherited.get("PYTHONPATH", "").split(os.pathsep))]
    environment = {
        **inherited,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    if servers.token_file is not None:
        environment[TOKEN_FILE_VARIABLE] = servers.token_file
    # A server is no rank of the trainer's process group.
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_PORT"):
        environment.pop(name, None)
    if on_gpu:
        return environment
    environment |= {
        "OMP_NUM_THREADS": str(servers.threads),
        # Spinning threads would take the trainer's cores while the server has nothing to do.
        "OMP_WAIT_POLICY": "PASSIVE",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        # The few functions that vLLM compiles in eager mode save nothing on CPU and cost
        # seconds at the first request.
        "TORCHDYNAMO_DISABLE": "1",
    }
    if servers.tensor_parallel == 1:
        # The worker inside the engine's process: one start-up less, and no polling between two.
        environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    return environment


def free_port(host: str) -> int:
    """A port of ``host`` that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


class VllmServer:
    """A vLLM server and its worker processes, from start to end.

    The server ends with the process that started it, even when that is killed: the thread that
    calls ``start`` must live as long as the server should.
    """

    def __init__(
        self,
        model: str,
        servers: ServersConfig,
        *,
        dtype: str,
        max_model_len: int,
        seed: int,
        log_path: Path,
        on_gpu: bool = False,
    ) -> None:
        self._servers = servers
        self._log_path = log_path
        self._on_gpu = on_gpu
        self._process: subprocess.Popen[bytes] | None = None
        port = free_port(servers.host)
        self.address = f"http://{servers.host}:{port}"
        self._command = server_command(
            model,
            servers,
            port=port,
            dtype=dtype,
            max_model_len=max_model_len,
            seed=seed,
            on_gpu=on_gpu,
        )

    def start(self) -> None:
        """Start the server and return at once; ``wait_until_healthy`` is the other half."""
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        guard = [sys.executable, "-IS", child_of.__file__, str(os.getpid())]
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                guard + self._command,
                env=server_environment(self._servers, os.environ, on_gpu=self._on_gpu),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_until_healthy(self) -> None:
        """Return when the server answers.

        Raises:
            RuntimeError: it ended, or did not answer within ``servers.start_timeout_s``; it is
                stopped then, and the message has the end of its log.
        """
        timeout_s = self._servers.start_timeout_s
        deadline = time.monotonic() + timeout_s
        while True:
            if (code := self.exit_code()) is not None:
                self.stop()
                raise RuntimeError(
                    f"server {self.address}: need it healthy, got exit code {code} during its "
                    f"start. Its log {self._log_path} ends with:\n{self.log_tail()}"
                )
            if time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(
                    f"server {self.address}: need it healthy within {timeout_s:g} s. Raise "
                    f"servers.start_timeout_s. Its log {self._log_path} ends with:\n"
                    f"{self.log_tail()}"
                )
            with suppress(httpx.TransportError):
                if httpx.get(f"{self.address}/health", timeout=5.0).status_code == 200:
                    return
            time.sleep(0.1)

    def client(self) -> ServerClient:
        """A client of this server whose errors carry the end of the log when it has died."""
        return ServerClient(
            self.address,
            timeout_s=self._servers.request_timeout_s,
            token=token_of(self._servers),
            post_mortem=self.post_mortem,
        )

    def exit_code(self) -> int | None:
        """The exit code, or None while the server runs."""
        return None if self._process is None else self._process.poll()

    def post_mortem(self) -> str:
        """What there is to say of a dead server; empty while it runs."""
        code = self.exit_code()
        if code is None:
            return ""
        return f"exit code {code}; its log {self._log_path} ends with:\n{self.log_tail()}"

    def log_tail(self) -> str:
        """The last lines of the server's log."""
        text = self._log_path.read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-LOG_TAIL_LINES:])

    def stop(self) -> None:
        """End the server and all its processes: politely first, then by force."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
        process.wait()
        # Workers can outlive the server that they belong to, and clean up after themselves.
        with suppress(ProcessLookupError):
            deadline = time.monotonic() + GROUP_TIMEOUT_S
            while time.monotonic() < deadline:
                os.killpg(process.pid, 0)
                time.sleep(0.05)
            os.killpg(process.pid, signal.SIGKILL)
