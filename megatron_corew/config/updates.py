"""How the weights change: the loss, the optimizer, the teacher."""

from typing import Annotated, Literal

from pydantic import Field

from megatron_corew.config.sections import Count, NotNegative, Positive, Section, Share


class LossConfig(Section):
    """The surrogate, its KL term, and how token losses are averaged."""

    clip_low: Share = 0.2
    """Ratios below 1 - clip_low are clipped. Paper: 0.2."""
    clip_high: NotNegative = 0.2
    """Ratios above 1 + clip_high are clipped. Paper: 0.2."""
    dual_clip: Annotated[float, Field(gt=1.0)] | None = None
    """Upper bound of the ratio for negative advantages; None: off. Official: 3."""
    kl_coef: NotNegative | None = None
    """Weight of the KL term; None: the method's own (see methods.py)."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """Per-token estimator of the KL to the reference. Paper: k3."""
    kl_clamp: Positive | None = 10.0
    """The estimate is clamped to +-kl_clamp; None: off. Official: 10."""
    aggregation: Literal["token_mean", "seq_mean", "micro_batch_token_mean", "dr_grpo"] = (
        "token_mean"
    )
    """Global token mean; mean of sequence means (paper eq. 4); token mean inside each official
    micro-batch; or sum over tokens by (sequences x rollout.max_response_tokens)."""
    official_micro_batch: Count = 8
    """Rollouts per view in a micro-batch of ``micro_batch_token_mean``. Official: 8 (III: 4)."""
    divide_by_std: bool = True
    """Advantages divided by the group's standard deviation; False: Dr.GRPO."""
    updates_per_step: Count = 1
    """Optimizer updates on the rollouts of one step. Paper: 1."""
    tis_cap: Positive | None = None
    """Truncated importance sampling: cap on the trainer/sampler ratio; None: off."""


class OptimizerConfig(Section):
    """AdamW and its learning rate."""

    lr: Positive = 3e-6
    """Peak learning rate. Paper: 3e-6."""
    betas: tuple[Share, Share] = (0.9, 0.999)
    """Adam's decay rates. Paper: 0.9, 0.999."""
    eps: Positive = 1e-8
    """Adam's epsilon. Paper: 1e-8."""
    weight_decay: NotNegative = 0.01
    """Decoupled weight decay. Official code: 0.01."""
    clip_grad: Positive = 1.0
    """Largest gradient norm. Official code: 1."""
    warmup_share: Share = 0.1
    """Share of the updates with a rising learning rate. Paper: 0.1."""
    min_lr_share: Share = 0.0
    """Learning rate at the end, as a share of the peak. Official code: 0."""
    warmup_from_zero: bool = False
    """True: the first update has learning rate 0, as in the official code."""
    max_skipped_updates: Count = 3
    """Updates with a non-finite loss or gradient that may be skipped before the run stops."""
    offload: bool = False
    """Keep Adam's moments, and the float32 main parameters of a bfloat16 model, in host memory.
    Same numbers; every update moves them over the bus and back."""


class TeacherConfig(Section):
    """The EMA teacher's schedule and storage."""

    schedule: Literal["cosine", "constant"] = "cosine"
    """Course of the policy's weight: cosine from weight_start to weight_end, or weight_start."""
    weight_start: Share = 0.01
    """Policy weight mixed into the teacher at the first update (decay 0.99). Paper: 0.01."""
    weight_end: Share = 1e-4
    """Policy weight at the last update. Paper: 1e-4 (decay 0.9999); official script: 1e-5."""
    update_every: Count = 1
    """Steps between two teacher updates."""
    residual: Literal["float32", "bfloat16"] = "float32"
    """Type of the rounding residual beside the float32 teacher."""
    offload: bool = False
    """Keep the teacher, or the frozen reference, in host memory. Same numbers; every update moves
    it over the bus and back, every installation once."""
