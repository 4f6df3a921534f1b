"""The loop with fakes: the order of events in a step, and that it stays on one screen."""

import inspect
from contextlib import contextmanager

import pytest
import torch

from megatron_corew import loop
from megatron_corew.config import Config
from megatron_corew.gathering import Gatherer
from megatron_corew.methods import METHODS
from megatron_corew.types import (
    Prompt,
    Question,
    Rollout,
    RolloutGroup,
    TokenScores,
    ViewLabels,
    Vote,
)


class Fakes:
    """Stands in for every part of a run; writes down what the loop asked of it."""

    def __init__(self, config: Config) -> None:
        self.config, self.events, self.updates = config, [], 0
        self.ends_after, self.rates = None, []

    # questions
    def batch_at(self, step):
        return tuple(self._question(f"{step}-{n}") for n in range(2))

    def _question(self, name):
        prompts = {
            view: Prompt(question_id=name, view=view, text="", token_ids=(1, 2))
            for view in ("original", "rephrased")
        }
        return Question(id=name, prompts=prompts, answer="4")

    # policy and teacher
    def score(self, batch):
        self.events.append("score")
        zeros = torch.zeros(batch.mask_RT.shape)
        certainty = torch.arange(len(zeros))[:, None] * batch.mask_RT.float()
        return TokenScores(logprobs_RT=zeros, entropy_RT=zeros, self_certainty_RT=certainty)

    def step(self, batch, *, learning_rate):
        self.events.append("step")
        self.rates.append(learning_rate)
        self.batches = [*getattr(self, "batches", []), batch]
        return {"policy/loss": 0.0}

    def hf_stream(self):
        return iter(())

    def update(self, weight):
        self.events.append(f"ema {weight:g}")
        self.updates += 1

    @contextmanager
    def installed(self):
        self.events.append("install")
        yield
        self.events.append("restore")

    # answers and observer
    def label(self, questions, groups, teacher_groups):
        self.events.append("label")
        vote = Vote(answers=("4", "3"), clusters=(0, 1), label="4", share=0.5, tie=False)
        views = dict.fromkeys(group.prompt.view for group in groups)
        return {
            view: ViewLabels(
                votes=(vote, vote),
                teacher_votes=None,
                labels=("4", None),
                rewards=((1.0, 0.0), (0.0, 0.0)),
                correct=None,
                label_correct=None,
            )
            for view in views
        }

    @contextmanager
    def phase(self, name):
        yield

    def before_training(self):
        self.events.append("before training")

    def after_step(self, step, **_):
        self.events.append(f"after {step}")
        return step != self.ends_after


class FakeSampler:
    """Two rollouts per prompt, of one and two tokens."""

    def __init__(self, name, events):
        self.name, self.events = name, events

    version = None

    def push(self, stream, version):
        self.events.append(f"push {self.name} {version}")
        self.version = version

    def sample(self, prompts, *, samples, seed):
        self.events.append(f"{self.name} answers {len(prompts)}")
        rollouts = tuple(
            Rollout(
                token_ids=(5,) * n,
                logprobs=(-1.0,) * n,
                text="",
                finish_reason="stop",
                weights_version=0,
            )
            for n in (1, 2)
        )
        return [RolloutGroup(prompt=prompt, rollouts=rollouts) for prompt in prompts]


def config_for(method: str, **sections) -> Config:
    return Config.model_validate(
        {
            "method": method,
            "run": {"name": "test", "steps": 1},
            "model": {"path": "lab"},
            "data": {"train": "lab"},
            "rollout": {"prompts_per_step": 2, "samples_per_prompt": 2},
        }
        | sections
    )


def run(config: Config, *, ends_after: int | None = None, lr_scale: float = 1.0) -> Fakes:
    fakes = Fakes(config)
    fakes.ends_after = ends_after
    teacher = fakes if config.keeps_teacher else None
    sampler = FakeSampler("policy", fakes.events)
    gatherer = Gatherer(
        config=config,
        questions=fakes,
        policy=fakes,
        teacher=teacher,
        sampler=sampler,
        teacher_sampler=FakeSampler("teacher", fakes.events),
        label=fakes.label,
        observer=fakes,
    )
    loop.train(gatherer, first_step=1, lr_scale=lr_scale)
    return fakes


def test_co_rewarding_iii_asks_policy_then_teacher_then_trains_then_pushes():
    assert run(config_for("co_rewarding_iii")).events == [
        "push policy 0",
        "before training",
        "policy answers 4",
        "ema 0.01",
        "install",
        "push teacher 1",
        "restore",
        "teacher answers 4",
        "label",
        "install",
        "score",
        "restore",
        "step",
        "push policy 1",
        "after 1",
    ]


def test_a_method_without_teacher_labels_only_scores_the_frozen_reference():
    assert run(config_for("majority_vote")).events == [
        "push policy 0",
        "before training",
        "policy answers 2",
        "ema 0",
        "label",
        "install",
        "score",
        "restore",
        "step",
        "push policy 1",
        "after 1",
    ]


def test_a_frozen_teacher_never_moves():
    assert "ema 0" in run(config_for("frozen_teacher")).events


def test_without_kl_and_teacher_nothing_is_installed():
    events = run(config_for("co_rewarding_i", loss={"kl_coef": 0.0})).events
    assert "install" not in events
    assert "score" not in events


def test_several_updates_per_step_score_the_old_log_probs_once():
    fakes = run(config_for("majority_vote", loss={"kl_coef": 0.0, "updates_per_step": 2}))
    assert fakes.events.count("score") == 1
    assert fakes.events.count("step") == 2
    assert all(batch.old_logprobs_RT is not None for batch in fakes.batches)


def test_unlabelled_groups_have_no_weight_in_the_loss():
    (batch,) = run(config_for("co_rewarding_i")).batches
    # Rows: (view, question, sample); the second question of each view has no label.
    trained = (batch.weights_RT > 0).any(dim=1)
    assert trained.tolist() == [True, True, False, False] * 2
    # Three tokens of the first question share a weight of 1 in each view.
    assert batch.weights_RT.sum().item() == pytest.approx(2.0)


def test_kept_unlabelled_groups_weigh_but_have_no_advantage():
    config = config_for("co_rewarding_i", answers={"unlabelled": "keep"})
    (batch,) = run(config).batches
    assert (batch.weights_RT > 0).any(dim=1).all()
    assert batch.advantages_R.tolist()[2:4] == [0.0, 0.0]


def test_self_certainty_rewards_come_from_the_policy_itself():
    (batch,) = run(config_for("self_certainty")).batches
    # Scores grow with the row, so the second of each pair is the better one: +-1/sqrt(2).
    expected = [-(0.5**0.5), 0.5**0.5] * 2
    assert batch.advantages_R.tolist() == pytest.approx(expected, abs=1e-4)


def test_the_observer_ends_the_attempt():
    config = config_for("majority_vote", run={"name": "test", "steps": 5})
    events = run(config, ends_after=2).events
    assert events[-1] == "after 2"
    assert events.count("step") == 2


def test_the_scale_multiplies_every_learning_rate():
    config = config_for("majority_vote", run={"name": "test", "steps": 5})
    plain, scaled = run(config).rates, run(config, lr_scale=0.25).rates
    assert scaled == pytest.approx([0.25 * rate for rate in plain])
    assert len(set(plain)) > 1


@pytest.mark.parametrize("method", METHODS)
def test_every_preset_runs_a_step(method):
    assert run(config_for(method)).events[-1] == "after 1"


def test_the_training_function_fits_on_one_screen():
    assert len(inspect.getsource(loop.train).splitlines()) <= 60
