"""The policy: scores sampled tokens, takes optimizer steps, gives its weights away.

All methods are collective: every rank calls them, with the same batch.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from checkpoint_tools.sources import Source
from megatron_corew.algo.objective import Objective, token_objective
from megatron_corew.config import Config
from megatron_corew.mcore import platform, weights
from megatron_corew.mcore.balance import sequence_cost
from megatron_corew.mcore.chunks import Chunks, DataParallelChunks, build_chunks
from megatron_corew.mcore.fp8_state import kept_histories
from megatron_corew.mcore.logprobs import token_scores, vocabulary_shard
from megatron_corew.mcore.micro_batches import MicroBatch, plan_micro_batches
from megatron_corew.mcore.model import DTYPES
from megatron_corew.mcore.offload import offload, standing_in
from megatron_corew.mcore.parallel import Layout
from megatron_corew.mcore.statistics import StepSums, collect_scores
from megatron_corew.types import RolloutBatch, TokenScores, TrainBatch

platform.redirect_torch()

from megatron.core import parallel_state  # noqa: E402
from megatron.core.distributed import finalize_model_grads  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.packed_seq_params import PackedSeqParams  # noqa: E402
from megatron.core.pipeline_parallel import get_forward_backward_func  # noqa: E402


class Policy:
    """The trained model on this rank, with Megatron's data parallelism and optimizer.

    Args:
        config: the run.
        source: the Hugging Face folder or converted checkpoint to start from.
        layout: where this rank stands.

    Raises:
        ValueError: the folder does not fit the layout, or misses tensors.
    """

    def __init__(self, config: Config, source: Source, layout: Layout) -> None:
        self.architecture, self.layout = source.architecture, layout
        self.dtype = DTYPES[config.model.dtype]
        self.temperature = config.rollout.temperature
        self.objective = Objective(
            clip_low=config.loss.clip_low,
            clip_high=config.loss.clip_high,
            dual_clip=config.loss.dual_clip,
            kl_coef=config.kl_coef,
            kl_estimator=config.loss.kl_estimator,
            kl_clamp=config.loss.kl_clamp,
            tis_cap=config.loss.tis_cap,
        )
        self._precision = config.precision
        self._parallel, self._max_skipped = config.parallel, config.optimizer.max_skipped_updates
        self._cost = sequence_cost(self.architecture)
        self.skipped_updates = 0
        self.module = build_chunks(self.architecture, config, layout)
        weights.load(self.module, source, layout)
        self._tensor_group = parallel_state.get_tensor_model_parallel_group()
        self.ddp, self.optimizer = _with_optimizer(self.module, config)
        self._host_adams = offload(self.optimizer) if config.optimizer.offload else []

    def score(self, batch: RolloutBatch) -> TokenScores:
        """Log-probs, entropy and self-certainty of every response token under today's weights.

        Leaves gradients, optimizer, RNG and FP8 histories as they are.
        """
        plan = self._plan(batch)

        def use(micro: MicroBatch, hidden_SBD: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
            scores_3N = torch.stack(self._token_scores(micro, hidden_SBD))
            return scores_3N.sum(), _ONE, {"place": micro.place_N, "scores": scores_3N}

        with torch.no_grad(), kept_histories(self.module, self._precision):
            results = self._forward_backward(plan, use, forward_only=True)
        return collect_scores(results, batch, self.layout)

    def step(self, batch: TrainBatch, *, learning_rate: float) -> dict[str, float]:
        """One optimizer update on the weighted sum of the batch's token losses.

        Args:
            batch: the same on every rank.
            learning_rate: of this update.

        Returns:
            Metrics, the same on every rank: ``policy/*`` and ``gap/*``.

        Raises:
            RuntimeError: more updates in a row than ``optimizer.max_skipped_updates`` had a
                non-finite loss or gradient (each was skipped and counted).
        """
        self.ddp.zero_grad_buffer()
        self.optimizer.zero_grad()
        plan = self._plan(batch.rollouts)
        results = self._forward_backward(plan, partial(self._loss, batch), forward_only=False)
        sums = StepSums.over_all_ranks([r["sums"] for r in results], self.layout)
        with standing_in(self._host_adams):
            self.optimizer.prepare_grads()
            grad_norm = float(self.optimizer.get_grad_norm())
            finite = math.isfinite(sums.loss) and math.isfinite(grad_norm)
            self._count_skipped(finite, sums.loss, grad_norm)
            # Without a trained token Adam would still move by its momentum and the decay.
            if finite and sums.tokens:
                for group in self.optimizer.param_groups:
                    group["lr"] = learning_rate
                self.optimizer.step()
        return sums.metrics() | {
            "policy/grad_norm": grad_norm,
            "policy/lr": learning_rate,
            "policy/skipped_update": float(not finite),
            "policy/empty_update": float(not sums.tokens),
        }

    def hf_stream(self) -> Iterator[tuple[str, Tensor | None]]:
        """(Hugging Face name, whole tensor) one by one; the tensor is None except on rank 0.

        Collective: every rank must walk the stream to its end.
        """
        return weights.stream(self.module, self.architecture, self.layout)

    def _plan(self, batch: RolloutBatch) -> list[MicroBatch]:
        return plan_micro_batches(
            batch,
            self.layout,
            self._parallel,
            self._cost,
            platform.device(),
            token_multiple=self._precision.token_multiple,
        )

    def _forward_backward(
        self,
        plan: list[MicroBatch],
        use: Callable[[MicroBatch, Tensor], tuple[Tensor, Tensor, dict[str, Any]]],
        *,
        forward_only: bool,
    ) -> list[dict[str, Any]]:
        def forward_step(
            micro_batches: Iterator[MicroBatch], model: torch.nn.Module
        ) -> tuple[Tensor, Callable[[Tensor], Any]]:
            micro = next(micro_batches)
            hidden = model(
                micro.token_ids_BS,
                micro.position_ids_BS,
                None,
                packed_seq_params=_packed_sequences(micro),
            )
            return hidden, partial(use, micro)

        self.module.train(not forward_only)
        return get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=[iter(plan) for _ in self.ddp],
            model=list(self.ddp),
            num_microbatches=len(plan),
            # Only used by the interleaved schedule, whose micro-batches are equally long.
            seq_length=plan[0].token_ids_BS.shape[1] * self.layout.context_size,
            micro_batch_size=plan[0].token_ids_BS.shape[0],
            forward_only=forward_only,
        )

    def _token_scores(self, micro: MicroBatch, hidden_SBD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        weight_WD = self.module.output_weight()
        hidden_SBD = weights.gather_sequence(hidden_SBD, self.layout)
        return token_scores(
            hidden_SBD.flatten(0, 1)[micro.predictor_N].to(weight_WD.dtype),
            weight_WD,
            micro.targets_N,
            vocabulary_shard(
                weight_WD.shape[0],
                self.architecture.vocab_size,
                self.layout.tensor_rank,
                self._tensor_group if self.layout.tensor_size > 1 else None,
            ),
            temperature=self.temperature,
            chunk=self._parallel.logit_chunk_tokens,
        )

    def _loss(
        self, batch: TrainBatch, micro: MicroBatch, hidden_SBD: Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Any]]:
        places_N = micro.place_N.to(batch.weights_RT.device)

        def pick(values_RT: Tensor) -> Tensor:
            return values_RT.flatten()[places_N].to(hidden_SBD.device)

        def pick_known(values_RT: Tensor | None) -> Tensor | None:
            return None if values_RT is None else pick(values_RT)

        logprobs_N, entropy_N, _ = self._token_scores(micro, hidden_SBD)
        row_N = places_N // batch.rollouts.mask_RT.shape[1]
        rollout_logprobs_N = pick(batch.rollouts.rollout_logprobs_RT)
        weights_N = pick(batch.weights_RT)
        losses = token_objective(
            self.objective,
            logprobs_N,
            old_logprobs=pick_known(batch.old_logprobs_RT),
            ref_logprobs=pick_known(batch.ref_logprobs_RT),
            rollout_logprobs=rollout_logprobs_N,
            advantages=batch.advantages_R[row_N].to(hidden_SBD.device),
        )
        loss = (losses.total * weights_N).sum()
        sums = StepSums.of_micro_batch(
            loss, losses, entropy_N, logprobs_N, rollout_logprobs_N, weights_N
        )
        # An empty micro-batch must reach the graph too: no rank may miss the backward pass.
        return loss + hidden_SBD.sum() * 0.0, _ONE, {"sums": sums}

    def _count_skipped(self, finite: bool, loss: float, grad_norm: float) -> None:
        self.skipped_updates = 0 if finite else self.skipped_updates + 1
        if self.skipped_updates > self._max_skipped:
            raise RuntimeError(
                f"policy: {self.skipped_updates} updates in a row had a non-finite loss ({loss}) "
                f"or gradient norm ({grad_norm}). Lower optimizer.lr, or look at the data; "
                "optimizer.max_skipped_updates sets how many may be skipped."
            )


def _packed_sequences(micro: MicroBatch) -> PackedSeqParams | None:
    if micro.starts_Z is None:
        return None
    return PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=micro.starts_Z,
        cu_seqlens_kv=micro.starts_Z,
        max_seqlen_q=micro.longest,
        max_seqlen_kv=micro.longest,
    )


_ONE = torch.tensor(1, dtype=torch.int)


def _finalize_without_division(
    model: list[torch.nn.Module], _num_tokens: Tensor | None = None, **kwargs: Any
) -> None:
    # Token weights already hold the global divisor.
    finalize_model_grads(model, None, **kwargs)


def _with_optimizer(chunks: Chunks, config: Config) -> tuple[DataParallelChunks, Any]:
    dtype, knobs = DTYPES[config.model.dtype], config.optimizer
    distributed = config.parallel.distributed_optimizer
    ddp = DataParallelChunks(
        chunks, distributed_optimizer=distributed, bf16=dtype == torch.bfloat16
    )
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            lr=knobs.lr,
            adam_beta1=knobs.betas[0],
            adam_beta2=knobs.betas[1],
            adam_eps=knobs.eps,
            weight_decay=knobs.weight_decay,
            clip_grad=knobs.clip_grad,
            bf16=dtype == torch.bfloat16,
            params_dtype=dtype,
            use_distributed_optimizer=distributed,
        ),
        list(ddp),
        # Decay on all parameters, as in the official code; Megatron's default would tag norms and
        # biases for a scheduler that is not used here.
        config_overrides={},
    )
    for chunk in chunks:
        chunk.config.finalize_model_grads_func = _finalize_without_division
        chunk.config.grad_scale_func = optimizer.scale_loss
    return ddp, optimizer
