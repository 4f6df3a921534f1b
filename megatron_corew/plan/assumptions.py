"""What a plan takes from measurements of others, or assumes: every number with its source."""

GEMM_SHARE = 0.5
"""Share of the peak that matrix products reach by themselves. With communication and bubbles on top
dense models come out at the 41 to 48 % of Megatron-LM's README (BF16, H100)."""
FP8_GEMM_SHARE = 0.45
"""The same for FP8. Megatron-Bridge reports 744 of 1,979 TFLOP/s for Llama3-8B on eight H100, 38 %
with everything that stays in BF16 (performance summary, 25.11)."""
EXPERT_GEMM_SHARE = 0.35
"""The same for experts, whose products are narrow. Megatron-Bridge reports 203 to 208 TFLOP/s
(21 %) for Qwen3-30B-A3B on 16 H100, everything counted (performance summary, 26.02 to 26.06)."""
ATTENTION_SHARE = 0.45
"""Share of the BF16 peak that fused attention reaches, forward and backward. FlashAttention-3,
arXiv:2407.08608: 550 to 740 of 989 TFLOP/s forward; FlashAttention-2 about 350 to 400."""
MEMORY_SHARE = 0.6
"""Share of the memory bandwidth that decoding reaches, over all of a step. Assumed."""
COPY_SHARE = 0.8
"""Share of the memory bandwidth that optimizer, teacher and norms reach. Assumed."""
LINK_SHARE = 0.7
"""Share of the link's or network's bandwidth that collective operations reach. Assumed."""
ALL_REDUCE_LATENCY_S = 20e-6
"""Seconds of one small all-reduce inside a node. Assumed."""
PUSH_BYTES_PER_S = 10e9
"""Bytes per second of a weight push through the host's shared memory: a plain memory copy, which
was measured at about 10 GB/s on a server CPU. Both on one host; slower over a network."""
OVERHEAD_S = 2.0
"""Seconds of a step outside GPUs (answers, records, HTTP). Assumed."""

PROCESS_BYTES = 2.5e9
"""Memory of a trainer's process that no tensor has: CUDA context, NCCL and cuBLAS workspaces.
Assumed."""
SERVER_BYTES = 3.0e9
"""Memory of a vLLM worker besides weights and cache: context, activations, CUDA graphs. Assumed."""
FRAGMENT_SHARE = 0.1
"""Memory lost to fragmentation, as a share of what comes and goes (activations, buffers).
Assumed."""
SPARE_SHARE = 0.02
"""Share of a GPU's memory that a plan leaves free. Assumed."""
MIN_SEQUENCES = 8
"""Longest sequences that a server's cache must hold at least; below that a plan does not fit."""
MAX_SERVER_SHARE = 0.9
"""Largest servers.gpu_memory_share that is proposed, vLLM's own default."""

PUBLISHED_OVER_PLANNED = (1.3, 2.7)
"""Published seconds of a whole step over planned ones, at the published layout. NeMo-RL 0.4, GRPO
on policy, BF16, DGX H100 (performance summary), 2,048 sequences: Llama-3.1-8B on 16 GPUs, 1,060
tokens, 97.7 s, 1.6 times the plan; Qwen3-32B on 32, 3,206 tokens, 393 s, 1.3 times; Qwen3-30B-A3B
on 32, 3,154 tokens, 225 s, 2.6 times. Phases are not published, so no share above is corrected."""

NOT_MODELLED = (
    "uneven lengths inside a data-parallel group and between servers",
    "evaluations, checkpoints, start-up, restarts",
    "overlap of communication with computation (all of it is counted as waiting)",
    "imbalance between experts, messages between pipeline stages, context parallelism's exchanges",
    "kernel launches, waiting of the processor, the slowness of precision.fp8=emulate",
    "storage, network topology and other users of it",
)
"""Said with every plan."""
