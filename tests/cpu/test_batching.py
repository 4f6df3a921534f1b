"""From rollouts to padded tensors to micro-batches: places, masks, predictors."""

import pytest
import torch

from megatron_corew.algo.updates import make_updates
from megatron_corew.config import ParallelConfig
from megatron_corew.data.batching import collate
from megatron_corew.mcore.balance import SequenceCost
from megatron_corew.mcore.micro_batches import MicroBatch, plan_micro_batches
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
        "context_rank": 0,
        "context_size": 1,
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


def plan(
    batch, where: Layout | None = None, *, token_multiple: int = 1, **knobs: int
) -> list[MicroBatch]:
    cost = SequenceCost(linear=1.0, quadratic=0.1)
    knobs_of_run, device = ParallelConfig(**knobs), torch.device("cpu")
    return plan_micro_batches(
        batch, where or layout(), knobs_of_run, cost, device, token_multiple=token_multiple
    )


def packed_lengths(micro: MicroBatch) -> list[int]:
    return micro.starts_Z.diff().tolist()


KNOBS = [{"micro_batch_rollouts": 8}, {"tokens_per_micro_batch": 100}]


@pytest.mark.parametrize("knobs", KNOBS, ids=["padded", "packed"])
def test_every_response_token_is_predicted_from_the_position_before_it(knobs):
    batch = collate(GROUPS)
    (micro,) = plan(batch, **knobs)
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


def test_packed_sequences_lie_behind_each_other_and_each_counts_from_zero():
    # Lengths 5, 3, 5, 5, longest first: rows 0, 2, 3, 1.
    (micro,) = plan(collate(GROUPS), tokens_per_micro_batch=18)
    assert micro.token_ids_BS.tolist() == [
        [*(1, 2, 5, 6, 9), *(1, 2, 3, 0, 9), *(1, 2, 3, 8, 8), *(1, 2, 7)]
    ]
    assert micro.position_ids_BS.tolist() == [[*range(5), *range(5), *range(5), *range(3)]]
    assert micro.starts_Z.tolist() == [0, 5, 10, 15, 18]
    assert micro.starts_Z.dtype == torch.int32
    assert micro.longest == 5
    assert micro.predictor_N.tolist() == [1, 2, 3, 7, 8, 12, 13, 16]
    assert micro.place_N.tolist() == [0, 1, 2, 6, 7, 9, 10, 3]


def test_a_budget_of_ten_tokens_makes_two_micro_batches():
    assert [
        packed_lengths(micro) for micro in plan(collate(GROUPS), tokens_per_micro_batch=10)
    ] == [
        [5, 5],
        [5, 3],
    ]


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("knobs", [{"micro_batch_rollouts": 1}, {"tokens_per_micro_batch": 7}])
def test_data_parallel_ranks_get_every_row_once_and_equally_many_micro_batches(size, knobs):
    batch = collate(GROUPS)
    plans = [plan(batch, layout(data_rank=r, data_size=size), **knobs) for r in range(size)]
    assert len({len(one) for one in plans}) == 1
    places = sorted(p for one in plans for micro in one for p in micro.place_N.tolist())
    assert places == batch.mask_RT.flatten().nonzero().flatten().tolist()


def test_the_rank_with_the_longest_sequence_gets_the_shortest_too():
    groups = [group("original", (1,), *(tuple(range(2, 2 + n)) for n in (1, 9, 5, 6)))]
    plans = [
        plan(
            collate(groups),
            layout(data_rank=rank, data_size=2),
            micro_batch_rollouts=1,
        )
        for rank in range(2)
    ]
    widths = [[micro.token_ids_BS.shape[1] for micro in one] for one in plans]
    assert widths == [[10, 2], [7, 6]]


def test_an_empty_micro_batch_is_a_row_of_padding_without_a_response_token():
    lonely = collate([group("original", (1, 2), (5, 6))])
    where = layout(data_rank=1, data_size=2, tensor_size=4, sequence_parallel=True)
    (micro,) = plan(lonely, where, tokens_per_micro_batch=10)
    assert micro.token_ids_BS.tolist() == [[0, 0, 0, 0]]
    assert packed_lengths(micro) == [4]
    assert micro.predictor_N.shape == micro.targets_N.shape == micro.place_N.shape == (0,)


def test_lengths_are_padded_to_the_tensor_parallel_size_with_sequence_parallelism():
    batch, where = collate(GROUPS), layout(tensor_size=4, sequence_parallel=True)
    (padded,) = plan(batch, where, micro_batch_rollouts=8)
    assert padded.token_ids_BS.shape == (4, 8)
    # 18 tokens: the two that fill the row are a sequence that nothing is read from.
    (packed,) = plan(batch, where, tokens_per_micro_batch=18)
    assert packed.token_ids_BS.shape == (1, 20)
    assert packed_lengths(packed) == [5, 5, 5, 3, 2]


def test_interleaved_micro_batches_are_equally_wide_and_fill_the_pipeline():
    where = layout(pipeline_size=2)
    plain = plan(collate(GROUPS), where, tokens_per_micro_batch=10, pipeline=2)
    assert [micro.token_ids_BS.shape[1] for micro in plain] == [10, 8]
    three = plan(collate(GROUPS), where, tokens_per_micro_batch=6, pipeline=2)
    assert [packed_lengths(micro) for micro in three] == [[5], [5], [5], [3]]
    knobs = {"tokens_per_micro_batch": 10, "pipeline": 2, "virtual_pipeline": 2}
    micros = plan(collate(GROUPS), where, **knobs)
    assert [packed_lengths(micro) for micro in micros] == [[5, 5], [5, 3, 2]]
    fours = plan(collate(GROUPS), where, token_multiple=4, **knobs)
    assert [packed_lengths(micro) for micro in fours] == [[5, 5, 2], [5, 3, 4]]
    # One row of 3: the second micro-batch is there for the schedule only.
    lonely = plan(collate([group("original", (1, 2), (7,))]), where, **knobs)
    assert [packed_lengths(micro) for micro in lonely] == [[3], [3]]
    assert lonely[1].targets_N.shape == (0,)


def test_context_parallel_ranks_hold_two_stripes_of_every_sequence():
    # Two ranks cut a sequence into four stripes; a row of 5 is padded to 8, one of 3 to 4.
    batch = collate(GROUPS[:1])
    first, second = (
        plan(batch, layout(context_rank=r, context_size=2), tokens_per_micro_batch=12)
        for r in (0, 1)
    )
    # [1 2 5 6 | 9 . . .] and [1 2 7 .]: rank 0 has the outer stripes, rank 1 the inner ones.
    assert first[0].token_ids_BS.tolist() == [[*(1, 2, 0, 0), *(1, 0)]]
    assert second[0].token_ids_BS.tolist() == [[*(5, 6, 9, 0), *(2, 7)]]
    # Megatron wants the places of the whole row.
    assert first[0].starts_Z.tolist() == second[0].starts_Z.tolist() == [0, 8, 12]
    # Token 5 is predicted at position 1 (rank 0); 6 and 9 at 2 and 3, 7 at 1 of its own (rank 1).
    assert first[0].targets_N.tolist() == [5]
    assert first[0].predictor_N.tolist() == [1]
    assert second[0].targets_N.tolist() == [6, 9, 7]
    assert second[0].predictor_N.tolist() == [0, 1, 4]
    assert second[0].place_N.tolist() == [1, 2, 3]


def test_padded_rows_are_cut_over_context_parallel_ranks_too():
    batch = collate(GROUPS[:1])
    where = layout(context_rank=1, context_size=2, tensor_size=2, sequence_parallel=True)
    (micro,) = plan(batch, where, micro_batch_rollouts=2)
    # Rows 1 and 0, shortest first, padded to 8: columns 2 to 5.
    assert micro.token_ids_BS.tolist() == [[7, 0, 0, 0], [5, 6, 9, 0]]
    assert micro.targets_N.tolist() == [6, 9]
    assert micro.predictor_N.tolist() == [0 * 2 + 1, 1 * 2 + 1]


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


@pytest.mark.parametrize("knobs", KNOBS, ids=["padded", "packed"])
@pytest.mark.parametrize(
    "where",
    [
        {},
        {"tensor_size": 2, "sequence_parallel": True},
        {"tensor_size": 2, "sequence_parallel": True, "context_size": 2},
    ],
    ids=["alone", "tp2_sp", "tp2_sp_cp2"],
)
def test_every_rank_has_a_multiple_of_the_tokens_that_fp8_needs(knobs, where):
    batch = collate(GROUPS)
    ranks = [layout(**where, context_rank=rank) for rank in range(where.get("context_size", 1))]
    plans = [plan(batch, rank, token_multiple=16, **knobs) for rank in ranks]
    for (micro,) in plans:
        assert micro.token_ids_BS.numel() % (16 * where.get("tensor_size", 1)) == 0
    places = sorted(p for (micro,) in plans for p in micro.place_N.tolist())
    assert places == batch.mask_RT.flatten().nonzero().flatten().tolist()
