"""The GPUs that a plan can be made for: facts from their makers' data sheets."""

from dataclasses import dataclass

_MIB = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One kind of GPU in a node of ``per_node``."""

    name: str
    memory: float
    """Bytes that the driver reports as total."""
    bandwidth: float
    """Bytes per second of its memory, read and written together."""
    bf16: float
    """Dense bfloat16 FLOP/s at the peak."""
    fp8: float | None
    """Dense FP8 FLOP/s at the peak; None: no FP8."""
    link: float
    """Bytes per second and direction to another GPU of the node."""
    network: float
    """Bytes per second and direction to another node, per GPU."""
    bus: float
    """Bytes per second and direction to the host's memory."""
    per_node: int = 8


GPUS = {
    gpu.name: gpu
    for gpu in (
        # NVIDIA H100 and H200 Tensor Core GPU data sheets (SXM5; NVLink 900 GB/s and PCIe 5.0
        # 128 GB/s both ways); DGX H100: one 400 Gb/s adapter per GPU. Memory as nvidia-smi shows
        # it.
        Gpu(
            name="h100-80gb",
            memory=81_559 * _MIB,
            bandwidth=3.35e12,
            bf16=989e12,
            fp8=1_979e12,
            link=450e9,
            network=50e9,
            bus=64e9,
        ),
        Gpu(
            name="h200-141gb",
            memory=143_771 * _MIB,
            bandwidth=4.8e12,
            bf16=989e12,
            fp8=1_979e12,
            link=450e9,
            network=50e9,
            bus=64e9,
        ),
        # NVIDIA A100 data sheet (SXM4 80GB; NVLink 600 GB/s and PCIe 4.0 64 GB/s both ways); DGX
        # A100: 200 Gb/s per GPU.
        Gpu(
            name="a100-80gb",
            memory=81_920 * _MIB,
            bandwidth=2.039e12,
            bf16=312e12,
            fp8=None,
            link=300e9,
            network=25e9,
            bus=32e9,
        ),
        # NVIDIA L40S data sheet: no NVLink, PCIe 4.0 x16 (64 GB/s both ways). The network is that
        # of a common server: one 400 Gb/s adapter for eight GPUs.
        Gpu(
            name="l40s",
            memory=46_068 * _MIB,
            bandwidth=0.864e12,
            bf16=362e12,
            fp8=733e12,
            link=32e9,
            network=6e9,
            bus=32e9,
        ),
    )
}


def gpu_named(name: str) -> Gpu:
    """The GPU of that name.

    Raises:
        ValueError: no such GPU in the table.
    """
    if name not in GPUS:
        raise ValueError(f"--gpu: need one of {', '.join(GPUS)}; got {name!r}.")
    return GPUS[name]
