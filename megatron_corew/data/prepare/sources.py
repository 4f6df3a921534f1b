"""The data sets that `corew prepare` knows by name, and the columns that files come with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from megatron_corew.data.sources import Row, has_column

AnswerForm = Literal["plain", "boxed", "hashes"]
"""How a column states the answer: alone, in the last box of a solution, or after ``####``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Names of the columns, dotted for nested fields."""

    prompt: str
    answer: str | None = None
    answer_form: AnswerForm = "plain"
    id: str | None = None
    """None: the row number."""
    rephrased: str | None = None
    """Column of the rephrasing in the same file."""


PREPARED = Layout(prompt="messages", answer="answer", id="id", rephrased="rephrased_messages")
"""What `corew prepare` writes."""

# From the special to the general: the first whose columns are all there is taken.
LAYOUTS: tuple[Layout, ...] = (
    PREPARED,
    # The released files of the paper, in verl's form.
    Layout(prompt="prompt", answer="reward_model.ground_truth", id="extra_info.index"),
    # open-r1/DAPO-Math-17k-Processed: the solution is the short answer.
    Layout(prompt="prompt", answer="solution", id="extra_info.index"),
    # HuggingFaceH4/MATH-500.
    Layout(prompt="problem", answer="answer", id="unique_id"),
    # AI-MO/aimo-validation-amc, HuggingFaceH4/aime_2024, math-ai/aime25.
    Layout(prompt="problem", answer="answer", id="id"),
    # knoveleng/open-rs.
    Layout(prompt="problem", answer="answer"),
    # DigitalLearningGmbH/MATH-lighteval.
    Layout(prompt="problem", answer="solution", answer_form="boxed"),
    # openai/gsm8k; any other question with a short answer is read right by it too.
    Layout(prompt="question", answer="answer", answer_form="hashes"),
    Layout(prompt="prompt", answer="answer"),
    Layout(prompt="prompt"),
    Layout(prompt="question"),
    Layout(prompt="problem"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """A data set of the paper on the Hugging Face hub."""

    hub: str
    split: str
    subset: str | None = None
    against: tuple[str, ...] = ()
    """Recipes of the evaluation sets that it must not contain."""


# The paper's evaluation sets for mathematics (appendix C.3; AIME: version 3), MATH-500 in its
# test split.
_EVALUATION = ("math-test", "gsm8k", "amc", "aime24", "aime25")

RECIPES: Mapping[str, Recipe] = {
    # Training sets: paper, section 4.1.
    "math": Recipe(hub="DigitalLearningGmbH/MATH-lighteval", split="train", against=_EVALUATION),
    "dapo": Recipe(
        hub="open-r1/DAPO-Math-17k-Processed", subset="en", split="train", against=_EVALUATION
    ),
    "open-rs": Recipe(hub="knoveleng/open-rs", split="train", against=_EVALUATION),
    # Evaluation sets.
    "math-test": Recipe(hub="DigitalLearningGmbH/MATH-lighteval", split="test"),
    "math500": Recipe(hub="HuggingFaceH4/MATH-500", split="test"),
    "gsm8k": Recipe(hub="openai/gsm8k", subset="main", split="test"),
    "amc": Recipe(hub="AI-MO/aimo-validation-amc", split="train"),
    "aime24": Recipe(hub="HuggingFaceH4/aime_2024", split="train"),
    "aime25": Recipe(hub="math-ai/aime25", split="test"),
}


def detect_layout(rows: Sequence[Row], source: str) -> Layout:
    """Choose the layout whose columns the rows have.

    Args:
        rows: at least one.
        source: where they are from, for the message.

    Returns:
        The first fitting entry of ``LAYOUTS``.

    Raises:
        ValueError: no column of a question among those known.
    """
    for layout in LAYOUTS:
        needed = (layout.prompt, layout.answer, layout.id, layout.rephrased)
        if all(has_column(rows, column) for column in needed if column is not None):
            return layout
    known = ", ".join(dict.fromkeys(layout.prompt for layout in LAYOUTS))
    got = ", ".join(rows[0])
    raise ValueError(
        f"{source}: need a column of questions ({known}), got {got}. Name it with --prompt-column."
    )
