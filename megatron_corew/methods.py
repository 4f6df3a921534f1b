"""The methods as data: which views are trained, who labels them, what the KL term points to.

Source: Co-rewarding, arXiv:2508.00410, sec. 3 and table 3; baselines as in its appendix.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from megatron_corew.types import View

Labeller = Literal["policy", "teacher", "ground_truth", "self_certainty", "entropy"]


class Method(BaseModel):
    """One row of the table of methods."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    views: tuple[View, ...]
    """The views whose rollouts are trained."""
    labeller: Labeller
    """Who says what is right. The last two give a score instead of a label."""
    crossed: bool = False
    """True: the label of a view is taken from the other view."""
    kl_reference: Literal["frozen", "teacher"] = "frozen"
    """What the KL term pulls towards."""
    kl_coef: float = 0.005
    """Weight of the KL term."""
    teacher_moves: bool = True
    """False: the teacher stays the base model (EMA weight 0)."""

    @property
    def needs_teacher(self) -> bool:
        """Whether the run keeps a teacher at all."""
        return self.labeller == "teacher" or self.kl_reference == "teacher"

    @property
    def needs_labels(self) -> bool:
        """Whether rewards come from a label (and not from a score of the policy itself)."""
        return self.labeller in ("policy", "teacher", "ground_truth")

    @property
    def needs_rephrasings(self) -> bool:
        """Whether the data must have a second view."""
        return "rephrased" in self.views


BOTH: tuple[View, ...] = ("original", "rephrased")

METHODS: dict[str, Method] = {
    "co_rewarding_i": Method(views=BOTH, labeller="policy", crossed=True),
    "co_rewarding_ii": Method(
        views=("original",), labeller="teacher", kl_reference="teacher", kl_coef=0.001
    ),
    "co_rewarding_iii": Method(
        views=BOTH, labeller="teacher", crossed=True, kl_reference="teacher", kl_coef=0.001
    ),
    "majority_vote": Method(views=("original",), labeller="policy"),
    "majority_vote_rephrased": Method(views=("rephrased",), labeller="policy"),
    "frozen_teacher": Method(
        views=("original",),
        labeller="teacher",
        kl_reference="teacher",
        kl_coef=0.001,
        teacher_moves=False,
    ),
    "ground_truth": Method(views=("original",), labeller="ground_truth"),
    "self_certainty": Method(views=("original",), labeller="self_certainty"),
    "entropy": Method(views=("original",), labeller="entropy"),
}
