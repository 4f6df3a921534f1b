"""The layouts, batches and splits whose results must all be the same."""

import torch

from megatron_corew.types import RolloutBatch, TrainBatch
from tests.distributed.parts import made_up_batch, train_batch

# Processes -> name -> ``parallel`` knobs, and ``offload`` of the optimizer.
LAYOUTS: dict[int, dict[str, dict[str, object]]] = {
    1: {
        "alone": {},
        "selective": {"recompute": "selective"},
        "full": {"recompute": "full"},
        "offloaded": {"offload": True},
    },
    2: {
        "tp2": {"tensor": 2},
        "tp2_sp": {"tensor": 2, "sequence": True},
        "pp2": {"pipeline": 2},
        "pp2_interleaved": {"pipeline": 2, "virtual_pipeline": 2},
        "dp2": {"data": 2},
        "dp2_distributed": {"data": 2, "distributed_optimizer": True},
        "dp2_offloaded": {"data": 2, "distributed_optimizer": True, "offload": True},
        "cp2": {"context": 2},
    },
    4: {
        "tp2_pp2": {"tensor": 2, "pipeline": 2, "recompute": "full"},
        "cp2_tp2_sp": {"context": 2, "tensor": 2, "sequence": True},
    },
}

SPLITS: dict[str, dict[str, object]] = {
    "one_by_one": {"micro_batch_rollouts": 1},
    "threes": {"micro_batch_rollouts": 3},
    "all_at_once": {"micro_batch_rollouts": 99},
    "packed_25": {"tokens_per_micro_batch": 25},
    "packed_all": {"tokens_per_micro_batch": 999},
}

# Splits of the batches that are there for a reason of their own; four processes on two cores
# are slow, and see no others.
FEW_SPLITS = ("threes", "packed_25")


def batches() -> dict[str, TrainBatch]:
    """Updates by name; every one is the same wherever it is made."""
    mixed = train_batch(made_up_batch())
    # Rows 2 to 4 have no label: they are scored, and weigh nothing.
    kept_R1 = torch.tensor([1, 1, 0, 0, 0, 1, 1, 1])[:, None]
    weights_RT = mixed.rollouts.mask_RT * kept_R1
    unlabelled = _with_weights(mixed, weights_RT / weights_RT.sum())
    one_token = train_batch(_first_tokens(made_up_batch(5, seed=8)))
    return {
        "mixed": mixed,
        "unlabelled": unlabelled,
        # Fewer rows than data-parallel ranks.
        "empty_micro_batch": select(mixed, [3]),
        "one_token": one_token,
    }


def select(batch: TrainBatch, rows: list[int]) -> TrainBatch:
    """Some rows of an update, in the order given; weights stay."""
    rollouts = batch.rollouts
    assert batch.ref_logprobs_RT is not None
    return TrainBatch(
        rollouts=RolloutBatch(
            prompt_ids=tuple(rollouts.prompt_ids[row] for row in rows),
            response_ids_RT=rollouts.response_ids_RT[rows],
            mask_RT=rollouts.mask_RT[rows],
            view_R=rollouts.view_R[rows],
            rollout_logprobs_RT=rollouts.rollout_logprobs_RT[rows],
        ),
        advantages_R=batch.advantages_R[rows],
        old_logprobs_RT=None,
        ref_logprobs_RT=batch.ref_logprobs_RT[rows],
        weights_RT=batch.weights_RT[rows],
    )


def _with_weights(batch: TrainBatch, weights_RT: torch.Tensor) -> TrainBatch:
    return TrainBatch(
        rollouts=batch.rollouts,
        advantages_R=batch.advantages_R,
        old_logprobs_RT=None,
        ref_logprobs_RT=batch.ref_logprobs_RT,
        weights_RT=weights_RT,
    )


def _first_tokens(rollouts: RolloutBatch) -> RolloutBatch:
    return RolloutBatch(
        prompt_ids=rollouts.prompt_ids,
        response_ids_RT=rollouts.response_ids_RT[:, :1],
        mask_RT=rollouts.mask_RT[:, :1],
        view_R=rollouts.view_R,
        rollout_logprobs_RT=rollouts.rollout_logprobs_RT[:, :1],
    )
