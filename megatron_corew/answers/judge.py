"""The one entrance to answers: votes, and rewards for agreement and for correctness.

``math`` equivalence reads answers as in ``boxes`` and ``keys`` and asks math-verify about what
stays open. ``raw`` is the released code: strings as they stand in votes and agreement, the
normalised strings of ``official`` in correctness, where an empty truth is a truth too.

An answer that cannot be read is a value: it votes for nothing and gets reward 0. A fault of our
own raises. Time-outs and deaths of math-verify are in ``statistics``.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from types import TracebackType
from typing import Literal, Self

from megatron_corew.answers.extract import Extractor, candidates
from megatron_corew.answers.keys import canonical_key, decides
from megatron_corew.answers.meaning import Key
from megatron_corew.answers.official import official_answer, officially_equal
from megatron_corew.answers.verifier import Verifier
from megatron_corew.answers.voting import Components, TieRule, vote
from megatron_corew.types import Vote

Pair = tuple[Key, Key]
# Kinds that may be math-verify's to compare; the others are decided by their keys.
_ASKED = frozenset(("expression", "set", "sequence", "matrix", "named"))


class AnswerJudge:
    """Votes and rewards over groups of responses; may be shared by threads."""

    def __init__(
        self,
        *,
        equivalence: Literal["math", "raw"],
        tie: TieRule,
        min_share: float,
        verify_timeout_s: float,
        verify_workers: int,
        verify_memory_mb: int,
        extractors: Sequence[Extractor],
    ) -> None:
        """Prepare a judge; cheap, no process starts before math-verify is needed.

        Args:
            equivalence: ``math`` or ``raw``, see the module.
            tie: label of a tied vote, see ``voting.vote``.
            min_share: smallest share of a group's responses that makes a label.
            verify_timeout_s: seconds that slow math-verify comparisons may cost in all.
            verify_workers: math-verify processes.
            verify_memory_mb: memory that one of them may take.
            extractors: where ``math`` looks for an answer, see ``extract``.

        Raises:
            ValueError: a setting out of its range.
        """
        if equivalence not in ("math", "raw"):
            raise ValueError(
                f"AnswerJudge: need math or raw, got {equivalence!r}. Set answers.equivalence."
            )
        if verify_timeout_s <= 0 or verify_workers < 1 or verify_memory_mb < 1:
            raise ValueError(
                "AnswerJudge: need a time-out and memory above 0 and at least 1 worker, got "
                f"{verify_timeout_s}, {verify_memory_mb} and {verify_workers}. Set "
                "answers.verify_timeout_s, answers.verify_memory_mb and answers.verify_workers."
            )
        self._is_raw = equivalence == "raw"
        self._tie: TieRule = tie
        self._min_share = min_share
        self._extractors = tuple(extractors)
        self._verifier = Verifier(
            timeout_s=verify_timeout_s, num_workers=verify_workers, memory_mb=verify_memory_mb
        )

    def votes(self, groups: Sequence[Sequence[str]]) -> list[Vote]:
        """Let every group of responses elect a label.

        Args:
            groups: response texts, one list per prompt.

        Returns:
            One vote per group.
        """
        answers = [[self._answer(text) for text in group] for group in groups]
        return [
            vote(group, ids, tie=self._tie, min_share=self._min_share)
            for group, ids in zip(answers, self._clusters(answers), strict=True)
        ]

    def agreement(
        self, groups: Sequence[Sequence[str]], labels: Sequence[str | None]
    ) -> list[list[float]]:
        """Reward agreement with a pseudo-label.

        An answer agrees when it would vote together with the label in its own group.

        Args:
            groups: response texts, one list per prompt.
            labels: one per group, from any vote; None, or a text without an answer in it, gives
                a group of zeros.

        Returns:
            1.0 or 0.0 for every response.

        Raises:
            ValueError: not one label per group.
        """
        self._check_lengths(groups, labels, "labels")
        answers = [[self._answer(text) for text in group] for group in groups]
        # The label comes first: it is the gold side of every comparison.
        joint = [[label, *group] for label, group in zip(labels, answers, strict=True)]
        return [
            [float(own is not None and own == label) for own in group]
            for label, *group in self._clusters(joint)
        ]

    def correctness(
        self, groups: Sequence[Sequence[str]], truths: Sequence[str | int | None]
    ) -> list[list[float]]:
        """Reward equality with the ground truth.

        Args:
            groups: response texts, one list per prompt.
            truths: one per group: plain answer text or a whole number; None gives zeros.

        Returns:
            1.0 or 0.0 for every response.

        Raises:
            ValueError: not one truth per group.
        """
        self._check_lengths(groups, truths, "truths")
        texts = [None if truth is None else str(truth) for truth in truths]
        if self._is_raw:
            return [
                [float(_is_officially_right(text, truth)) for text in group]
                for group, truth in zip(groups, texts, strict=True)
            ]
        answers = [[self._answer(text) for text in group] for group in groups]
        return self._math_correctness(answers, texts)

    def support(self, groups: Sequence[Sequence[str]], votes: Sequence[Vote]) -> list[list[float]]:
        """Measure how many voters stand behind the answer of each response.

        Args:
            groups: response texts, one list per prompt.
            votes: one per group, from any vote.

        Returns:
            For every response the share, in [0, 1], of all voters with the same answer.

        Raises:
            ValueError: not one vote per group.
        """
        self._check_lengths(groups, votes, "votes")
        answers = [[self._answer(text) for text in group] for group in groups]
        joint = [[*vote.answers, *group] for vote, group in zip(votes, answers, strict=True)]
        shares = []
        for ids, vote_ in zip(self._clusters(joint), votes, strict=True):
            voters, own = ids[: len(vote_.answers)], ids[len(vote_.answers) :]
            counts = Counter(each for each in voters if each is not None)
            shares.append([counts[each] / len(voters) if voters else 0.0 for each in own])
        return shares

    def same(self, answers: Sequence[str | None], others: Sequence[str | None]) -> list[float]:
        """Compare plain answers, not responses, as votes do.

        Args:
            answers: such as labels; None equals nothing.
            others: one per answer.

        Returns:
            1.0 or 0.0 for every pair.

        Raises:
            ValueError: not one other per answer.
        """
        self._check_lengths(answers, others, "others")
        pairs = self._clusters([list(pair) for pair in zip(answers, others, strict=True)])
        return [float(a is not None and a == b) for a, b in pairs]

    def are_right(
        self, answers: Sequence[str | None], truths: Sequence[str | int | None]
    ) -> list[float]:
        """Compare plain answers with the truth, as ``correctness`` compares responses.

        Args:
            answers: such as labels; None is not right.
            truths: one per answer.

        Returns:
            1.0 or 0.0 for every answer.

        Raises:
            ValueError: not one truth per answer.
        """
        self._check_lengths(answers, truths, "truths")
        texts = [None if truth is None else str(truth) for truth in truths]
        if self._is_raw:
            pairs = zip(answers, texts, strict=True)
            return [
                float(None not in (a, b) and officially_equal(str(a), str(b))) for a, b in pairs
            ]
        return [row[0] for row in self._math_correctness([[a] for a in answers], texts)]

    def statistics(self) -> dict[str, float]:
        """Return counts of math-verify since the last call.

        Returns:
            ``comparisons`` (answers from memory not counted), ``timeouts``, ``worker_deaths``.
        """
        return self._verifier.statistics()

    def close(self) -> None:
        """End the math-verify processes."""
        self._verifier.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _answer(self, text: str) -> str | None:
        if self._is_raw:
            return official_answer(text) or None
        found = candidates(text, self._extractors)
        return next((answer for answer in found if canonical_key(answer) is not None), None)

    def _clusters(
        self, answers: Sequence[Sequence[str | None]]
    ) -> Sequence[Sequence[Hashable | None]]:
        """What each answer of each group stands for; equal values vote together."""
        if self._is_raw:
            # A blank answer is shown but does not vote, as in the released code.
            return [[a if a is not None and a.strip() else None for a in row] for row in answers]
        return self._math_clusters(answers)

    def _math_clusters(self, answers: Sequence[Sequence[str | None]]) -> list[list[Key | None]]:
        """What each answer of each group stands for: the representative of its component."""
        keys = [[_key(answer) for answer in group] for group in answers]
        joined = [Components((key for key in group if key is not None), decides) for group in keys]
        while questions := [(part, *pair) for part in joined for pair in part.questions()]:
            verdicts = self._verifier.equal([(a.text, b.text) for _, a, b in questions])
            for (part, a, b), verdict in zip(questions, verdicts, strict=True):
                if verdict:
                    part.join(a, b)
        broken = self._unreadable(keys)
        return [
            [None if key is None or key in broken else part.root(key) for key in group]
            for part, group in zip(joined, keys, strict=True)
        ]

    def _unreadable(self, keys: Sequence[Sequence[Key | None]]) -> set[Key]:
        """Those that math-verify broke on: they count as no answer."""
        texts = {key: key.text for group in keys for key in group if key and key.kind in _ASKED}
        broken = self._verifier.unreadable(texts.values())
        return {key for key, text in texts.items() if text in broken} if broken else set()

    def _math_correctness(
        self, answers: Sequence[Sequence[str | None]], truths: Sequence[str | None]
    ) -> list[list[float]]:
        golds = [_key(truth) for truth in truths]
        keys = [[_key(answer) for answer in group] for group in answers]
        known = self._verdicts(
            [
                (gold, key)
                for gold, group in zip(golds, keys, strict=True)
                for key in group
                if gold is not None and key is not None
            ]
        )
        return [
            [float(gold is not None and key is not None and known[gold, key]) for key in group]
            for gold, group in zip(golds, keys, strict=True)
        ]

    def _verdicts(self, pairs: Sequence[Pair]) -> dict[Pair, bool]:
        """Decide every pair: by its keys if possible, else by math-verify, all in one call."""
        known = {pair: decides(*pair) for pair in dict.fromkeys(pairs)}
        undecided = [pair for pair, verdict in known.items() if verdict is None]
        verified = self._verifier.equal([(a.text, b.text) for a, b in undecided])
        asked = dict(zip(undecided, verified, strict=True))
        return {pair: asked[pair] if known[pair] is None else bool(known[pair]) for pair in known}

    @staticmethod
    def _check_lengths(groups: Sequence[object], others: Sequence[object], what: str) -> None:
        if len(groups) != len(others):
            raise ValueError(
                f"AnswerJudge: need one of the {what} per group ({len(groups)}), got "
                f"{len(others)}. Pass them in the order of the groups."
            )


def _key(answer: str | None) -> Key | None:
    return None if answer is None else canonical_key(answer)


def _is_officially_right(text: str, truth: str | None) -> bool:
    answer = official_answer(text)
    return answer is not None and truth is not None and officially_equal(answer, truth)
