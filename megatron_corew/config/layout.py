"""Where the trainer's numbers lie, and how they are rounded."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from megatron_corew.config.sections import Count, Positive, Section


class ParallelConfig(Section):
    """The layout of the trainer."""

    tensor: Count = 1
    """Tensor-parallel size."""
    pipeline: Count = 1
    """Pipeline-parallel size."""
    virtual_pipeline: Count = 1
    """Pieces of the model per pipeline rank (interleaved schedule): smaller bubbles, more messages.
    Every rank then takes a multiple of ``pipeline`` micro-batches, packed to one width."""
    data: Count = 1
    """Data-parallel size; processes = tensor x pipeline x context x data."""
    context: Count = 1
    """Context-parallel size: ranks that share each sequence. Needs Transformer Engine on a GPU."""
    sequence: bool = False
    """Sequence parallelism inside the tensor-parallel group."""
    expert: Count = 1
    """Expert-parallel size; divides tensor x data, takes no processes of its own."""
    distributed_optimizer: bool = False
    """Shard optimizer and teacher over the data-parallel group."""
    micro_batch_rollouts: Count = 8
    """Rollouts per forward pass and rank, padded to the longest of them. The result does not
    depend on it."""
    tokens_per_micro_batch: Annotated[int, Field(ge=0)] = 0
    """Tokens per forward pass and rank, sequences packed one behind the other without padding;
    0: padded batches of ``micro_batch_rollouts``. The result does not depend on it."""
    recompute: Literal["none", "selective", "full"] = "none"
    """Activations computed again in the backward pass: none; those of the feed-forward parts or
    experts, which are most of them; or whole layers, of which only the input is kept."""
    logit_chunk_tokens: Count = 4096
    """Response tokens whose float32 logits exist at the same time."""
    threads: Count = 1
    """CPU threads of a trainer process (without a GPU)."""
    timeout_s: Positive = 1800.0
    """Seconds a collective operation may wait before the run is ended."""

    @property
    def processes(self) -> int:
        """Number of trainer processes."""
        return self.tensor * self.pipeline * self.context * self.data

    @property
    def expert_tensor(self) -> int:
        """Ranks that share one expert."""
        # Megatron-Core sums whole experts' gradients over the tensor-parallel ranks only under EP.
        return self.tensor if self.expert == 1 else 1

    @model_validator(mode="after")
    def expert_groups_fill_a_pipeline_stage(self) -> Self:
        """No rank is left over."""
        if (ranks := self.tensor * self.data) % self.expert:
            raise ValueError(
                f"parallel.expert: need a divisor of parallel.tensor x parallel.data ({ranks}), "
                f"got {self.expert}."
            )
        return self

    @model_validator(mode="after")
    def sequence_parallel_needs_tensor_parallel(self) -> Self:
        """A setting without effect is an error."""
        if self.sequence and self.tensor == 1:
            raise ValueError(
                "parallel.sequence: needs parallel.tensor > 1, got 1. Set parallel.sequence=false."
            )
        return self

    @model_validator(mode="after")
    def interleaving_needs_a_pipeline_and_packing(self) -> Self:
        """Without a pipeline it has no effect; without packing its one width is mostly padding."""
        if self.virtual_pipeline > 1 and self.pipeline == 1:
            raise ValueError(
                f"parallel.virtual_pipeline: needs parallel.pipeline > 1, got 1 with "
                f"{self.virtual_pipeline} pieces per rank. Set parallel.virtual_pipeline=1."
            )
        if self.virtual_pipeline > 1 and self.tokens_per_micro_batch == 0:
            raise ValueError(
                "parallel.tokens_per_micro_batch: need a budget with parallel.virtual_pipeline "
                f"{self.virtual_pipeline}, got 0. Set it, or parallel.virtual_pipeline=1."
            )
        return self


class PrecisionConfig(Section):
    """Matrix products in FP8."""

    fp8: Literal["off", "blockwise", "tensorwise", "delayed", "emulate"] = "off"
    """Transformer Engine's recipe for the linear layers: ``blockwise`` (the choice for an H100:
    scales per 1 x 128 and 128 x 128 block), ``tensorwise`` or ``delayed`` (one scale per tensor,
    of now or of the steps before). ``emulate``: numbers rounded as by ``blockwise``, in plain
    torch on any device, to study its effect. Weights, optimizer and teacher stay as they are;
    embedding, output layer, router, norms and attention are never FP8."""
    bf16_first_layers: Annotated[int, Field(ge=0)] = 0
    """Transformer layers at the start of the model that are kept out of FP8."""
    bf16_last_layers: Annotated[int, Field(ge=0)] = 0
    """The same at its end."""

    @property
    def transformer_engine(self) -> bool:
        """Whether FP8 is left to Transformer Engine."""
        return self.fp8 not in ("off", "emulate")

    @property
    def keeps_histories(self) -> bool:
        """Whether the recipe looks at the steps before."""
        return self.fp8 == "delayed"

    @property
    def token_multiple(self) -> int:
        """Tokens of a forward pass come in multiples of this; emulation pads by itself."""
        return {"blockwise": 128, "tensorwise": 16, "delayed": 16}.get(self.fp8, 1)

    @model_validator(mode="after")
    def layers_are_kept_out_of_something(self) -> Self:
        """A setting without effect is an error, and so is one that the recipe cannot have."""
        kept = self.bf16_first_layers + self.bf16_last_layers
        if kept and self.fp8 in ("off", "delayed"):
            # Delayed scaling reduces the histories of all layers at once.
            raise ValueError(
                f"precision.bf16_first_layers, bf16_last_layers: need 0 with precision.fp8="
                f"{self.fp8}, got {self.bf16_first_layers} and {self.bf16_last_layers}. Set both "
                "to 0, or choose precision.fp8=blockwise."
            )
        return self
