"""Builds the judge of answers that a configuration describes."""

from megatron_corew.answers.judge import AnswerJudge
from megatron_corew.config import AnswersConfig


def judge_of(knobs: AnswersConfig) -> AnswerJudge:
    """The judge; it starts no process before it needs one.

    Args:
        knobs: section ``answers``.
    """
    return AnswerJudge(
        equivalence=knobs.equivalence,
        tie=knobs.tie,
        min_share=knobs.min_share,
        verify_timeout_s=knobs.verify_timeout_s,
        verify_workers=knobs.verify_workers,
        verify_memory_mb=knobs.verify_memory_mb,
        extractors=knobs.extractors,
    )
