"""Counts the bytes that a forward pass keeps for its backward pass.

All counts are per token of the trainer's own graph: what each autograd node saves, a tensor that
several of them share counted once. Held against real forward passes in
``tests/distributed/test_plan.py``.

Names: h hidden size, q and k widths of the query and key heads here, f inner size here, e bytes of
an element.
"""

from dataclasses import dataclass
from typing import Literal

from checkpoint_tools.weight_map.architecture import Architecture, Mixture
from megatron_corew.config import ParallelConfig

Recompute = Literal["none", "selective", "full"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerBytes:
    """What one layer keeps, in bytes."""

    inputs: float
    """The layer's input: all that full recomputation keeps."""
    attention: float
    """Norms, attention, and the inputs of their linear layers."""
    feed_forward: float
    """Behind the second norm."""

    def kept(self, recompute: Recompute) -> float:
        """From the forward to the backward pass."""
        if recompute == "full":
            return self.inputs
        if recompute == "selective":
            return self.attention
        return self.attention + self.feed_forward

    def made_again(self, recompute: Recompute) -> float:
        """For one layer at a time, in the backward pass."""
        return self.attention + self.feed_forward - self.kept(recompute)


def layer_bytes(
    architecture: Architecture,
    parallel: ParallelConfig,
    *,
    tokens: int,
    width: int,
    element: int,
    fused_norms: bool = True,
) -> LayerBytes:
    """What one layer keeps for a micro-batch.

    Args:
        architecture: the model.
        parallel: the layout; ``tokens`` are cut by sequence parallelism here.
        tokens: of the micro-batch on this context-parallel rank, padding included.
        width: of its rows; the rotation's sines are kept once per column.
        element: bytes of an element of the parameters' type.
        fused_norms: kernels that keep their input only (CUDA); False: as torch composes norms on a
            CPU, with float32 copies of input and result.
    """
    h, e = architecture.hidden_size, element
    q = architecture.num_heads * architecture.head_size // parallel.tensor
    k = architecture.num_kv_heads * architecture.head_size // parallel.tensor
    cut = parallel.tensor if parallel.sequence else 1
    # Two norms and the two linear inputs behind them.
    around = (2 * _norm(h, e, fused_norms) + 2 * e * h) / cut
    # Fused queries/keys/values, rotated queries and keys, the attention's output and its sums.
    attention = e * ((q + 2 * k) + q + k + q) + 4 * q / architecture.head_size
    if architecture.qk_norm:
        # The queries' contiguous copy is the norm's input; the keys' input is a view.
        copies = 4 * k if e < 4 else 0
        attention += e * q if fused_norms else 8 * q + 4 * k + copies
    sines = 4 * e * architecture.head_size * width
    mixture = architecture.mixture
    if mixture is None:
        # Gate with up, activated gate, up with its offset, product.
        feed_forward = 5.0 * e * architecture.ffn_size / parallel.tensor
    else:
        feed_forward = _experts(mixture, parallel, h, e) / cut
    return LayerBytes(
        inputs=e * h / cut * tokens,
        attention=(around + attention) * tokens + sines,
        feed_forward=feed_forward * tokens,
    )


def _norm(width: int, element: int, fused: bool) -> float:
    return element * width if fused else 8.0 * width


def _experts(mixture: Mixture, parallel: ParallelConfig, h: int, e: int) -> float:
    """Per token: routing, and the picked tokens' input and six inner sizes (one for the weight).

    With experts cut by tensor parallelism every rank of the group sees the whole group's tokens.
    """
    inner = mixture.expert_ffn_size / parallel.expert_tensor
    picked = mixture.experts_per_token * parallel.expert_tensor
    return picked * (e * h + 6 * e * inner) + 9 * mixture.num_experts


def layers_in_flight(
    layers: int, *, pipeline: int, stage: int, pieces: int, micro_batches: int
) -> float:
    """Layers of this stage times micro-batches whose activations exist at the same time.

    Args:
        layers: on this stage.
        pipeline: stages.
        stage: counted from 0.
        pieces: of the model on this stage (interleaving); 1: the plain 1F1B schedule.
        micro_batches: of an update.

    Source: arXiv:2104.04473, section 2.2; warm-up as in Megatron-Core's schedules.
    """
    if pieces == 1:
        return layers * min(pipeline - stage, micro_batches)
    warm_up = 2 * (pipeline - stage - 1) + (pieces - 1) * pipeline
    return layers / pieces * min(warm_up + 1, micro_batches * pieces)
