"""The knobs of `corew prepare` that have defaults, each with its unit and source."""

from megatron_corew.config import Count, Section, Share
from megatron_corew.data.prepare.rephrasings import RephrasingFault, RephrasingLimits


class PrepareSettings(Section):
    """What makes a question unusable."""

    quarantine: tuple[RephrasingFault, ...] = (
        "missing",
        "placeholder",
        "identical",
        "diagram lost",
    )
    """Faults of a rephrasing that put the pair into quarantine; others are only reported. Lost
    numbers are not among them: a checker of numbers cannot know that "a triple" says 3."""
    limits: RephrasingLimits = RephrasingLimits()
    ngram: Count = 13
    """Words of an n-gram in the search for evaluation questions. Qwen2.5-Math (2409.12122): 13."""
    overlap: Share = 0.6
    """Share of an evaluation question's n-grams that makes a question contaminated.
    Qwen2.5-Math: 0.6, there of the longest common sequence."""
