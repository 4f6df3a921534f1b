"""From rollouts to padded tensors to micro-batches: places, masks, predictors."""

import pytest
import torch

from megatron_corew.algo.updates import make_updates
from megatron_corew.data.batching import collate
from megatron_corew.mcore.micro_batches import plan_micro_batches
from megatron_corew.mcore.parallel import Layout
from megatron_corew.types import Prompt, Rollout, RolloutGroup


def rollout(*token_ids: int) -> Rollout:
    return Rollout(
        token_ids=token_ids,
        logprobs=tuple(-float(t) for t in token_ids),
        text="",
        finish_reason="stop",
        weights_version=0,
    )


def group(view: str, prompt: tuple[int, ...], *responses: tuple[int, ...]) -> RolloutGroup:
    return RolloutGroup(
        prompt=Prompt(question_id="q", view=view, text="", token_ids=prompt),
        rollouts=tuple(rollout(*response) for response in responses),
    )


GROUPS = [
    group("original", (1, 2), (5, 6, 9), (7,)),
    group("rephrased", (1, 2, 3), (0, 9), (8, 8)),
]


def layout(**changes) -> Layout:
    alone = {
        "tensor_rank": 0,
        "tensor_size": 1,
        "pipeline_rank": 0,
        "pipeline_size": 1,
        "data_rank": 0,
        "data_size": 1,
        "sequence_parallel": False,
    }
    return Layout(**(alone | changes))


def test_the_mask_comes_from_lengths_so_a_token_equal_to_the_padding_counts():
    batch = collate(GROUPS)
    assert batch.response_ids_RT.tolist() == [[5, 6, 9], [7, 0, 0], [0, 9, 0], [8, 8, 0]]
    assert batch.mask_RT.int().tolist() == [[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 1, 0]]
    assert batch.view_R.tolist() == [0, 0, 1, 1]
    assert batch.rollout_logprobs_RT[2].tolist() == [0.0, -9.0, 0.0]


def test_a_rollout_without_tokens_is_refused():
    with pytest.raises(ValueError, match="at least one token"):
        collate([group("original", (1,), ())])


def test_every_response_token_is_predicted_from_the_position_before_it():
    batch = collate(GROUPS)
    (micro,) = plan_micro_batches(
        batch, layout(), rows_per_micro_batch=8, device=torch.device("cpu")
    )
    height = micro.token_ids_BS.shape[0]
    flat = micro.token_ids_BS.t().flatten()  # index s * B + b, as the hidden states are laid out
    assert torch.equal(flat[micro.predictor_N + height], micro.targets_N)
    places = {}
    for place, target in zip(micro.place_N.tolist(), micro.targets_N.tolist(), strict=True):
        places[divmod(place, 3)] = target
    expected = {
        (row, column): int(batch.response_ids_RT[row, column])
        for row, column in batch.mask_RT.nonzero().tolist()
    }
    assert places == expected


@pytest.mark.parametrize("size", [1, 2, 3])
def test_data_parallel_ranks_get_every_row_once_and_equally_many_micro_batches(size):
    batch = collate(GROUPS)
    plans = [
        plan_micro_batches(
            batch,
            layout(data_rank=rank, data_size=size),
            rows_per_micro_batch=1,
            device=torch.device("cpu"),
        )
        for rank in range(size)
    ]
    assert len({len(plan) for plan in plans}) == 1
    places = sorted(p for plan in plans for micro in plan for p in micro.place_N.tolist())
    assert places == batch.mask_RT.flatten().nonzero().flatten().tolist()


def test_lengths_are_padded_to_the_tensor_parallel_size_with_sequence_parallelism():
    batch = collate(GROUPS)
    (micro,) = plan_micro_batches(
        batch,
        layout(tensor_size=4, sequence_parallel=True),
        rows_per_micro_batch=8,
        device=torch.device("cpu"),
    )
    assert micro.token_ids_BS.shape[1] == 8


def test_updates_split_by_question_and_keep_both_views():
    groups = [
        group(view, (1,), (n + 1,), (n + 2,)) for view in ("original", "rephrased") for n in (0, 4)
    ]
    batch = collate(groups)
    updates = make_updates(
        batch,
        advantages_R=torch.arange(8.0),
        kept_R=torch.tensor([True] * 6 + [False] * 2),
        old_logprobs_RT=None,
        ref_logprobs_RT=None,
        num_views=2,
        num_updates=2,
        aggregation="token_mean",
        length_constant=4,
        official_micro_batch=1,
    )
    assert [u.advantages_R.tolist() for u in updates] == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert updates[0].weights_RT.flatten().tolist() == [0.5] * 4
    # The second question has no label in the rephrased view: that view's divisor shrinks too.
    assert updates[1].weights_RT.flatten().tolist() == [0.5, 0.5, 0.0, 0.0]
