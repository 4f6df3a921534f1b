"""What a step's rollouts, votes and rewards look like in numbers.

Shares are in [0, 1], entropies in nats. Comparisons with the ground truth appear only where the
data have answers. Groups without a label count in ``label/unlabelled_share`` alone: rewards and the
accuracy of labels are means over the others.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev

from megatron_corew.types import Gathered, Rollout, RolloutGroup, View, ViewLabels, Vote


def step_metrics(
    groups: Sequence[RolloutGroup],
    labels: Mapping[View, ViewLabels],
    rewards: Sequence[Sequence[float]],
) -> dict[str, float]:
    """All metrics of a step that need no model.

    Args:
        groups: all of the policy's rollouts, view by view.
        labels: of every trained view.
        rewards: one row per group.
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    labelled = [label is not None for view in labels.values() for label in view.labels or ()]
    return (
        _reward_metrics(rewards, labelled or [True] * len(rewards))
        | _response_metrics(rollouts)
        | _label_metrics(labels)
    )


def refill_metrics(gathered: Gathered) -> dict[str, float]:
    """What it took to replace groups without signal.

    Returns:
        ``refill/rounds`` after the first one, ``refill/groups_asked`` over all rounds and views,
        ``refill/signal_share`` of those, ``refill/groups_trained`` in the loss.
    """
    kept = gathered.kept_P.tolist()
    return {
        "refill/rounds": float(max(gathered.rounds)),
        "refill/groups_asked": float(len(kept)),
        "refill/signal_share": fmean(kept),
        "refill/groups_trained": float(sum(kept[place] for place in gathered.trained)),
    }


def mean_metrics(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of every metric over the updates of a step.

    The gap to the sampler is that of the first update: after it the policy has moved on.
    """
    means = {name: fmean(part[name] for part in parts) for name in parts[0]}
    return means | {name: v for name, v in parts[0].items() if name.startswith("gap/")}


def agreement_within(clusters: Sequence[int | None]) -> float:
    """Chance that two different responses of a group have the same answer.

    It is what the two halves of the group are expected to agree, whichever way it is split, and
    unlike the share of the largest vote group it does not grow when there are fewer samples.

    Args:
        clusters: vote group of each of at least two responses; None, no answer, agrees with
            nothing.

    Returns:
        In [0, 1].
    """
    size, counts = len(clusters), Counter(c for c in clusters if c is not None)
    return sum(n * (n - 1) for n in counts.values()) / (size * (size - 1))


def answer_spread(votes: Sequence[Sequence[Vote]]) -> float:
    """How far the answers to different questions are different answers.

    The distinct answers of all questions over the sum of each question's own. Learning makes a
    question's own answers fewer and leaves the ratio alone or raises it; one answer to all of
    them lowers it. Within a view: the other wording of a question has the same answer by right.

    Args:
        votes: of every view.

    Returns:
        1 when no two questions of a view share an answer, towards 0 when they share all; NaN when
        nobody answered.
    """
    own = [[set(vote.answers) - {None} for vote in of_view] for of_view in votes]
    together = sum(len(set().union(*of_view)) for of_view in own)
    apart = sum(len(answers) for of_view in own for answers in of_view)
    return together / apart if apart else math.nan


def _reward_metrics(
    rewards: Sequence[Sequence[float]], labelled: Sequence[bool]
) -> dict[str, float]:
    rewarded = [row for row, has_label in zip(rewards, labelled, strict=True) if has_label]
    return {
        "reward/mean": fmean(fmean(row) for row in rewarded) if rewarded else 0.0,
        "reward/std": fmean(pstdev(row) for row in rewarded) if rewarded else 0.0,
        "reward/zero_std_share": fmean(len(set(row)) == 1 for row in rewards),
    }


def _response_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    lengths = [len(rollout.token_ids) for rollout in rollouts]
    return {
        "response/length_mean": fmean(lengths),
        "response/length_max": float(max(lengths)),
        "response/truncated_share": fmean(r.finish_reason == "length" for r in rollouts),
    }


def _label_metrics(labels: Mapping[View, ViewLabels]) -> dict[str, float]:
    views = list(labels.values())
    votes = [vote for view in views for vote in view.votes]
    answers = [answer for vote in votes for answer in vote.answers]
    found = Counter(answer for answer in answers if answer is not None)
    metrics = {
        "label/vote_share": fmean(vote.share for vote in votes),
        "label/vote_entropy": fmean(_entropy(vote) for vote in votes),
        "label/tie_share": fmean(vote.tie for vote in votes),
        "agreement/within": fmean(agreement_within(vote.clusters) for vote in votes),
        "answers/none_share": fmean(answer is None for answer in answers),
        "answers/distinct_share": len(found) / len(answers),
        "answers/top_share": max(found.values(), default=0) / len(answers),
        "answers/spread": answer_spread([view.votes for view in views]),
    }
    given = [label for view in views for label in view.labels or ()]
    taught = [vote for view in views for vote in view.teacher_votes or ()]
    if taught:
        metrics["label/teacher_vote_share"] = fmean(vote.share for vote in taught)
        metrics["label/teacher_vote_entropy"] = fmean(_entropy(vote) for vote in taught)
    means = {
        "label/unlabelled_share": [float(label is None) for label in given],
        "label/teacher_policy_agreement": [x for v in views for x in v.teacher_agrees or ()],
        "reward/accuracy": [x for view in views for row in view.correct or () for x in row],
        "label/accuracy": _of_labelled(given, [x for v in views for x in v.label_correct or ()]),
        "label/policy_accuracy": _of_labelled(
            [vote.label for vote in votes], [x for v in views for x in v.vote_correct or ()]
        ),
    }
    return metrics | {name: fmean(values) for name, values in means.items() if values}


def _of_labelled(labels: Sequence[str | None], values: Sequence[float]) -> list[float]:
    """The values of those groups that have a label; empty where there are no values."""
    if not values:
        return []
    return [x for label, x in zip(labels, values, strict=True) if label is not None]


def _entropy(vote: Vote) -> float:
    """Of the distribution of the answers given, in nats; 0 when all agree."""
    counts = Counter(cluster for cluster in vote.clusters if cluster is not None)
    total = counts.total()
    return sum(-n / total * math.log(n / total) for n in counts.values())
