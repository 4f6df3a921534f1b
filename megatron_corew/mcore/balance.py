"""Spreads sequences of mixed lengths over micro-batches of equal cost.

Pure functions: every rank computes the same plan from the same lengths.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from checkpoint_tools.weight_map.architecture import Architecture


@dataclass(frozen=True, kw_only=True, slots=True)
class SequenceCost:
    """FLOPs of a forward pass over one sequence, as a function of its length."""

    linear: float
    """FLOPs per token in matrix products with weights."""
    quadratic: float
    """FLOPs per squared length in causal attention."""

    def of(self, length: int) -> float:
        """FLOPs of ``length`` tokens."""
        return length * (self.linear + self.quadratic * length)


def sequence_cost(architecture: Architecture) -> SequenceCost:
    """The cost of a model's layers; the output layer is left out, it sees response tokens only.

    Source: 2 FLOPs per weight and token; causal attention does half of 4 x length^2 x width.
    """
    heads, groups = architecture.num_heads, architecture.num_kv_heads
    attention = architecture.hidden_size * architecture.head_size * 2 * (heads + groups)
    mixture = architecture.mixture
    # Of a mixture a token passes the chosen experts, and the router that chooses them.
    inner = (
        architecture.ffn_size
        if mixture is None
        else mixture.experts_per_token * mixture.expert_ffn_size
    )
    router = 0 if mixture is None else architecture.hidden_size * mixture.num_experts
    feed_forward = 3 * architecture.hidden_size * inner + router
    width = heads * architecture.head_size
    return SequenceCost(
        linear=2.0 * architecture.num_layers * (attention + feed_forward),
        quadratic=2.0 * architecture.num_layers * width,
    )


def pack(
    lengths: Sequence[int], cost: SequenceCost, *, capacity: int, multiple: int
) -> list[list[int]]:
    """Put sequences into few bins of at most ``capacity`` tokens and about equal cost.

    Args:
        lengths: tokens of each sequence.
        cost: what is balanced.
        capacity: largest sum of lengths in a bin, in tokens.
        multiple: the number of bins is a multiple of it; some may stay empty.

    Returns:
        Positions in ``lengths``, per bin.

    Raises:
        ValueError: one sequence is longer than a bin.

    Source: longest processing time first, Graham 1969, with a bound on each bin.
    """
    if max(lengths, default=0) > capacity:
        raise ValueError(
            f"packing: need at most {capacity} tokens per sequence, got {max(lengths)}. "
            "Raise parallel.tokens_per_micro_batch."
        )
    count = -(-max(sum(lengths), 1) // (capacity * multiple)) * multiple
    while (bins := _longest_first(lengths, cost, capacity, count)) is None:
        count += multiple
    return bins


def _longest_first(
    lengths: Sequence[int], cost: SequenceCost, capacity: int, count: int
) -> list[list[int]] | None:
    """``count`` bins, or None when a sequence finds no room."""
    bins: list[list[int]] = [[] for _ in range(count)]
    tokens, costs = [0] * count, [0.0] * count
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        room = [number for number in range(count) if tokens[number] + lengths[index] <= capacity]
        if not room:
            return None
        cheapest = min(room, key=lambda number: costs[number])
        bins[cheapest].append(index)
        tokens[cheapest] += lengths[index]
        costs[cheapest] += cost.of(lengths[index])
    return bins


def deal(costs: Sequence[float], *, ranks: int) -> list[list[int]]:
    """Give every rank equally many items with about the same sum of costs.

    Args:
        costs: of each item; their number is a multiple of ``ranks``.
        ranks: who gets them.

    Returns:
        Positions in ``costs``, per rank.
    """
    share = len(costs) // ranks
    hands: list[list[int]] = [[] for _ in range(ranks)]
    sums = [0.0] * ranks
    for index in sorted(range(len(costs)), key=lambda index: (-costs[index], index)):
        open_ranks = [rank for rank in range(ranks) if len(hands[rank]) < share]
        poorest = min(open_ranks, key=lambda rank: sums[rank])
        hands[poorest].append(index)
        sums[poorest] += costs[index]
    return hands
