"""What a step's rollouts, votes and rewards look like in numbers.

Shares are in [0, 1]. Comparisons with the ground truth appear only where the data have answers.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev

from megatron_corew.types import Rollout, RolloutGroup, View, ViewLabels


def step_metrics(
    groups: Sequence[RolloutGroup],
    labels: Mapping[View, ViewLabels],
    rewards: Sequence[Sequence[float]],
) -> dict[str, float]:
    """All metrics of a step that need no model.

    Args:
        groups: the policy's rollouts, ordered by (view, question).
        labels: of every trained view.
        rewards: one row per group.
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    return _reward_metrics(rewards) | _response_metrics(rollouts) | _label_metrics(labels)


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


def _reward_metrics(rewards: Sequence[Sequence[float]]) -> dict[str, float]:
    return {
        "reward/mean": fmean(fmean(row) for row in rewards),
        "reward/std": fmean(pstdev(row) for row in rewards),
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
        "label/tie_share": fmean(vote.tie for vote in votes),
        "agreement/within": fmean(agreement_within(vote.clusters) for vote in votes),
        "answers/none_share": fmean(answer is None for answer in answers),
        "answers/distinct_share": len(found) / len(answers),
        "answers/top_share": max(found.values(), default=0) / len(answers),
    }
    given = [label for view in views for label in view.labels or ()]
    if given:
        metrics["label/unlabelled_share"] = fmean(label is None for label in given)
    taught = [vote for view in views for vote in view.teacher_votes or ()]
    if taught:
        metrics["label/teacher_vote_share"] = fmean(vote.share for vote in taught)
        metrics["label/teacher_policy_agreement"] = fmean(
            ours.label is not None and ours.label == theirs.label
            for view in views
            for ours, theirs in zip(view.votes, view.teacher_votes or (), strict=True)
        )
    right = [share for view in views for row in view.correct or () for share in row]
    if right:
        metrics["reward/accuracy"] = fmean(right)
    label_right = [share for view in views for share in view.label_correct or ()]
    if label_right:
        metrics["label/accuracy"] = fmean(label_right)
    return metrics
