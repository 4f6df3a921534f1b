"""Judges the machine: GPUs, memory, limits, clock, ports."""

from megatron_corew.doctor.facts import Facts
from megatron_corew.doctor.finding import Finding, bad, off, ok, warn

LEAST_SHARED_MB = 128
LEAST_DISK_GB = 5.0
LEAST_OPEN_FILES = 1024
LEAST_MEMORY_GB = 7.0
MOST_SKEW_S = 2.0
FP8_CAPABILITY = (8, 9)
CUDA_SET = "install the CUDA set: docs/docker.md"


def check_gpus(facts: Facts) -> Finding:
    """The devices that torch sees; a driver without visible devices is an error."""
    if facts.gpus:
        first = facts.gpus[0]
        return ok("GPUs", f"{len(facts.gpus)} x {first.name}, {first.memory_gb:.0f} GB")
    if not facts.has_nvidia_driver:
        return off("GPUs", "none: runs on CPU", "")
    if facts.visible_devices == "":
        return bad("GPUs", "CUDA_VISIBLE_DEVICES is empty", "unset CUDA_VISIBLE_DEVICES")
    if facts.cuda is None:
        return bad("GPUs", "a driver, but a CPU build of torch", CUDA_SET)
    return bad("GPUs", "a driver, but torch sees no device", "nvidia-smi; docker run --gpus all")


def check_nccl(facts: Facts) -> Finding:
    """GPUs need NCCL."""
    if not facts.gpus:
        return off("NCCL", "not needed on CPU: gloo", "")
    if facts.nccl is None:
        return bad("NCCL", "missing in this torch", CUDA_SET)
    return ok("NCCL", facts.nccl)


def check_fp8(facts: Facts) -> Finding:
    """FP8 needs Transformer Engine and a GPU that has it."""
    if facts.gpus and min(gpu.capability for gpu in facts.gpus) < FP8_CAPABILITY:
        return off("FP8", f"{facts.gpus[0].name} has none", "")
    if not facts.gpus or "transformer-engine-torch" not in facts.versions:
        return off("FP8", "needs a GPU and Transformer Engine", "")
    return ok("FP8", "possible")


def check_shared_memory(facts: Facts) -> Finding:
    """Weight pushes need two buckets; with a run, its own need is checked too."""
    seen = f"{facts.shared_memory_mb} MB free"
    if facts.shared_memory_mb < LEAST_SHARED_MB:
        return bad(
            "shared memory",
            f"{seen}, need {LEAST_SHARED_MB}",
            "docker run --ipc=host (or --shm-size=16g), or another servers.bucket_folder",
        )
    return ok("shared memory", seen)


def check_disk(facts: Facts) -> Finding:
    """Checkpoints need room."""
    seen = f"{facts.disk_gb:.0f} GB free for runs"
    if facts.disk_gb < LEAST_DISK_GB:
        return warn("disk", seen, "free some, or set run.root to another disk")
    return ok("disk", seen)


def check_open_files(facts: Facts) -> Finding:
    """Data sets, sockets and workers hold many files."""
    if 0 <= facts.open_files < LEAST_OPEN_FILES:
        return bad("open files", f"limit {facts.open_files}", f"ulimit -n {LEAST_OPEN_FILES * 64}")
    return ok("open files", f"limit {facts.open_files}")


def check_locked_memory(facts: Facts) -> Finding:
    """InfiniBand pins memory."""
    if facts.gpus and facts.locked_memory != -1:
        seen = f"limit {facts.locked_memory // 1024} KB: InfiniBand may fail"
        return warn("locked memory", seen, "ulimit -l unlimited, docker run --ulimit memlock=-1")
    return ok("locked memory", "enough")


def check_clock(facts: Facts) -> Finding:
    """The file server's clock agrees: locks, logs and caches compare times."""
    seen = f"{facts.clock_skew_s:+.1f} s between this machine and the runs' file system"
    if abs(facts.clock_skew_s) > MOST_SKEW_S:
        return warn("clock", seen, "start a time service (chrony, systemd-timesyncd)")
    return ok("clock", seen)


def check_memory(facts: Facts) -> Finding:
    """Even the demo holds a trainer and a server."""
    seen = f"{facts.cores} cores, {facts.memory_gb:.0f} GB"
    if facts.memory_gb < LEAST_MEMORY_GB:
        return warn("cores and memory", seen, f"need about {LEAST_MEMORY_GB:g} GB for the demo")
    return ok("cores and memory", seen)


def check_ports(facts: Facts) -> Finding:
    """Servers and the trainer's meeting point can listen."""
    for error in (facts.loopback_error, facts.master_port_error):
        if error is not None:
            return bad("ports", error, "end the process that listens there, or change MASTER_PORT")
    return ok("ports", "loopback can be bound")
