"""Rounds of questions: when a step asks again, whom, with which weights, and what is trained."""

from dataclasses import dataclass, field

import pytest
import torch

from megatron_corew import loop
from megatron_corew.config import Config
from megatron_corew.data.prompts import QuestionStream
from megatron_corew.gathering import Gatherer, trained_places
from megatron_corew.methods import METHODS
from megatron_corew.seeds import call_seed
from megatron_corew.types import Rollout, RolloutGroup, ViewLabels, Vote
from tests.cpu.test_loop import Fakes, config_for

SIGNAL, NONE = (1.0, 0.0), (1.0, 1.0)


@dataclass
class Pool:
    """Servers that hold the weights of one role."""

    holds: tuple[str, int] | None = None


class World(Fakes):
    """Two questions per round, named by step and round; ``signal`` says who teaches anything."""

    def __init__(self, config: Config, signal, *, rounds_of_data: int = 9) -> None:
        super().__init__(config)
        self.signal, self.rounds_of_data = signal, rounds_of_data
        self.batches, self.steps, self.calls = [], {}, []

    def batch_at(self, step):
        return tuple(self._question(f"{step}.0{n}") for n in "ab")

    def further_at(self, step, round_number):
        if round_number > self.rounds_of_data:
            return ()
        return tuple(self._question(f"{step}.{round_number}{n}") for n in "ab")

    def label(self, questions, groups, teacher_groups):
        self.events.append("label " + " ".join(question.id for question in questions))
        vote = Vote(answers=("4", "3"), clusters=(0, 1), label="4", share=0.5, tie=False)
        views = {}
        for view in dict.fromkeys(group.prompt.view for group in groups):
            names = [g.prompt.question_id for g in groups if g.prompt.view == view]
            assert names == [question.id for question in questions]
            views[view] = ViewLabels(
                votes=(vote,) * len(names),
                teacher_votes=(vote,) * len(names) if teacher_groups else None,
                labels=tuple(f"{view} {name}" for name in names),
                rewards=tuple(SIGNAL if self.signal(view, name) else NONE for name in names),
                correct=None,
                label_correct=None,
            )
        return views

    def after_step(self, step, *, gathered, **_):
        self.events.append(f"after {step}")
        self.steps[step] = gathered
        return True


@dataclass
class PoolSampler:
    """Refuses to answer with other weights than its own, like the real one."""

    name: str
    world: World
    pool: Pool = field(default_factory=Pool)

    @property
    def version(self):
        holds = self.pool.holds
        return holds[1] if holds is not None and holds[0] == self.name else None

    def push(self, stream, version):
        self.world.events.append(f"push {self.name} {version}")
        self.pool.holds = (self.name, version)

    def sample(self, prompts, *, samples, seed):
        assert self.version is not None, f"{self.name} asks a server that holds {self.pool.holds}"
        names = tuple(f"{prompt.view[0]} {prompt.question_id}" for prompt in prompts)
        self.world.events.append(f"{self.name} answers")
        self.world.calls.append((self.name, names, seed, self.version))
        rollout = Rollout(
            token_ids=(5,),
            logprobs=(-1.0,),
            text="",
            finish_reason="stop",
            weights_version=self.version,
        )
        return [RolloutGroup(prompt=prompt, rollouts=(rollout,) * samples) for prompt in prompts]


def refilling(method: str, rounds: int = 3, **sections) -> Config:
    shaping = {"drop_equal_rewards": True, "refill_rounds": rounds}
    return config_for(method, **{"shaping": shaping} | sections)


def run(
    config: Config, signal, *, first_step: int = 1, shared: bool = True, rounds_of_data: int = 9
) -> World:
    return train(
        World(config, signal, rounds_of_data=rounds_of_data), first_step=first_step, shared=shared
    )


def train(
    world: World, *, first_step: int = 1, shared: bool = True, sampler_type=PoolSampler
) -> World:
    pool = Pool()
    teacher = world if world.config.keeps_teacher else None
    sampler = sampler_type("policy", world, pool)
    gatherer = Gatherer(
        config=world.config,
        questions=world,
        policy=world,
        teacher=teacher,
        sampler=sampler,
        teacher_sampler=sampler_type("teacher", world, pool if shared else Pool()),
        label=world.label,
        observer=world,
    )
    loop.train(gatherer, first_step=first_step, lr_scale=1.0)
    return world


def names(gathered, places=None) -> list[str]:
    groups = gathered.groups if places is None else [gathered.groups[at] for at in places]
    return [f"{group.prompt.view[0]} {group.prompt.question_id}" for group in groups]


def weighted_rows(batch) -> list[bool]:
    return (batch.weights_RT > 0).any(dim=1).tolist()


def test_a_step_whose_groups_all_carry_signal_asks_once():
    world = run(refilling("majority_vote"), lambda view, name: True)
    gathered = world.steps[1]
    assert names(gathered) == ["o 1.0a", "o 1.0b"]
    assert gathered.trained == (0, 1)
    assert gathered.rounds == (0, 0)


def test_groups_without_signal_are_replaced_by_the_first_further_ones_with_signal():
    # 0b has none; of the further ones 1a has none and 1b is the first with signal.
    world = run(refilling("majority_vote"), lambda view, name: name in {"1.0a", "1.1b", "1.2a"})
    gathered = world.steps[1]
    assert names(gathered) == ["o 1.0a", "o 1.0b", "o 1.1a", "o 1.1b"]
    assert gathered.rounds == (0, 0, 1, 1)
    assert names(gathered, gathered.trained) == ["o 1.0a", "o 1.1b"]
    assert gathered.rewards_PG.tolist() == [[1, 0], [1, 1], [1, 1], [1, 0]]
    assert gathered.labels["original"].labels == tuple(
        f"original 1.{name}" for name in ("0a", "0b", "1a", "1b")
    )
    (batch,) = world.batches
    assert weighted_rows(batch) == [True] * 4
    # Four one-token rollouts share a weight of 1; the winners stand 1/sqrt(2) above the mean.
    assert batch.weights_RT.flatten().tolist() == [0.25] * 4
    high = 0.5**0.5
    assert batch.advantages_R.tolist() == pytest.approx([high, -high] * 2, abs=1e-5)


def test_more_signal_than_wanted_is_left_out():
    world = run(refilling("majority_vote"), lambda view, name: name != "1.0b")
    gathered = world.steps[1]
    assert names(gathered, gathered.trained) == ["o 1.0a", "o 1.1a"]
    assert gathered.kept_P.tolist() == [True, False, True, True]
    assert len(world.batches[0].rollouts.prompt_ids) == 4


@pytest.mark.parametrize(("rounds", "of_data", "asked"), [(2, 9, 6), (3, 9, 8), (3, 1, 4)])
def test_the_last_round_or_the_end_of_the_data_leaves_a_smaller_batch(rounds, of_data, asked):
    world = run(
        refilling("majority_vote", rounds),
        lambda view, name: name == "1.0b",
        rounds_of_data=of_data,
    )
    gathered = world.steps[1]
    assert len(gathered.groups) == asked
    (batch,) = world.batches
    # Two rollouts count; the divisor is theirs alone.
    assert weighted_rows(batch) == [False, False, True, True]
    assert batch.weights_RT.flatten().tolist() == [0, 0, 0.5, 0.5]


def test_refilling_in_vain_trains_what_dropping_alone_would():
    def signal(view, name):
        return name == "1.0b"

    dropping = config_for("co_rewarding_i", shaping={"drop_equal_rewards": True})
    (alone,), (refilled,) = (
        run(config, signal).batches for config in (dropping, refilling("co_rewarding_i"))
    )
    assert torch.equal(alone.weights_RT, refilled.weights_RT)
    assert torch.equal(alone.advantages_R, refilled.advantages_R)
    assert torch.equal(alone.rollouts.view_R, refilled.rollouts.view_R)


def test_a_batch_without_any_signal_has_no_weight():
    world = run(refilling("co_rewarding_i", 1), lambda view, name: False)
    assert not any(weighted_rows(world.batches[0]))


def test_each_of_two_views_is_filled_with_its_own_first_groups():
    signal = {("original", "1.0a"), ("original", "1.0b"), ("original", "1.1a")}
    signal |= {("rephrased", "1.0b"), ("rephrased", "1.2a")}
    world = run(refilling("co_rewarding_i"), lambda view, name: (view, name) in signal)
    gathered = world.steps[1]
    # The rephrased view is short until the second further round.
    order = ["1.0a", "1.0b", "1.1a", "1.1b", "1.2a", "1.2b"]
    assert names(gathered) == [f"{view} {name}" for view in "or" for name in order]
    assert gathered.rounds == (0, 0, 1, 1, 2, 2) * 2
    assert [question.id for question in gathered.questions] == order
    assert names(gathered, gathered.trained) == ["o 1.0a", "o 1.0b", "r 1.0b", "r 1.2a"]
    assert gathered.labels["rephrased"].labels == tuple(f"rephrased {name}" for name in order)
    (batch,) = world.batches
    assert batch.rollouts.view_R.tolist() == [0] * 4 + [1] * 4
    assert weighted_rows(batch) == [True] * 8


def test_on_a_shared_server_the_policy_gets_its_turn_back_and_the_ema_moves_once():
    world = run(refilling("co_rewarding_iii", 1), lambda view, name: name.startswith("1.1"))
    assert world.events == [
        "push policy 0",
        "before training",
        "policy answers",
        "ema 0.01",
        "install",
        "push teacher 1",
        "restore",
        "teacher answers",
        "label 1.0a 1.0b",
        "push policy 0",
        "policy answers",
        "install",
        "push teacher 1",
        "restore",
        "teacher answers",
        "label 1.1a 1.1b",
        "install",
        "score",
        "restore",
        "step",
        "push policy 1",
        "after 1",
    ]
    policy = [call for call in world.calls if call[0] == "policy"]
    assert [version for *_, version in policy] == [0, 0]
    gathered = world.steps[1]
    assert len(gathered.taught) == len(gathered.groups) == 8
    assert [group.prompt for group in gathered.taught] == [g.prompt for g in gathered.groups]


def test_servers_of_its_own_keep_the_teacher_for_all_rounds_of_a_step():
    config = refilling("co_rewarding_ii", 2, run={"name": "test", "steps": 2})
    world = run(config, lambda view, name: False, shared=False)
    pushes = [event for event in world.events if event.startswith("push")]
    assert pushes == [
        "push policy 0",
        "push teacher 1",
        "push policy 1",
        "push teacher 2",
        "push policy 2",
    ]
    assert world.events.count("teacher answers") == 6


def test_every_call_of_a_run_has_a_seed_of_its_own_and_the_first_round_keeps_its_own():
    config = refilling("co_rewarding_ii", 2, run={"name": "test", "steps": 2})
    refilled = run(config, lambda view, name: False)
    seeds = [seed for _, _, seed, _ in refilled.calls]
    assert len(set(seeds)) == len(seeds) == 12
    assert seeds[:2] == [call_seed(config.run.seed, 1, role) for role in ("policy", "teacher")]
    plain = run(refilling("co_rewarding_ii", 0, run=config.run.model_dump()), lambda *_: False)
    firsts = [call for call in refilled.calls if ".0" in call[1][0]]
    assert plain.calls == firsts


def test_a_resumed_run_asks_what_the_uninterrupted_one_did():
    config = refilling("co_rewarding_iii", run={"name": "test", "steps": 4})

    def signal(view, name):
        # Steps differ in the number of their rounds.
        step, rest = name.split(".")
        return int(rest[0]) >= int(step) - 1

    whole = run(config, signal)
    assert [max(whole.steps[step].rounds) for step in (1, 2, 3, 4)] == [0, 1, 2, 3]
    for first in (2, 3, 4):
        resumed = run(config, signal, first_step=first)
        left = [call for call in whole.calls if int(call[1][0][2]) >= first]
        # The teacher's count is a checkpoint's matter: compare all but its version.
        assert [call[:3] for call in resumed.calls] == [call[:3] for call in left]
        assert [b.weights_RT.tolist() for b in resumed.batches] == [
            b.weights_RT.tolist() for b in whole.batches[first - 1 :]
        ]


def test_scores_of_the_policy_refill_too():
    class EqualScores(World):
        def score(self, batch):
            scores = super().score(batch)
            # The first round's four responses are equally certain.
            certainty_RT = scores.self_certainty_RT * (self.events.count("score") > 1)
            return type(scores)(
                logprobs_RT=scores.logprobs_RT,
                entropy_RT=scores.entropy_RT,
                self_certainty_RT=certainty_RT,
            )

    config = refilling("self_certainty", loss={"kl_coef": 0.0})
    world = train(EqualScores(config, lambda view, name: False))
    gathered = world.steps[1]
    assert names(gathered, gathered.trained) == ["o 1.1a", "o 1.1b"]
    assert world.events.count("score") == 2


@pytest.mark.parametrize("method", METHODS)
def test_without_refill_every_preset_trains_all_that_it_asks(method):
    world = run(config_for(method), lambda view, name: False)
    gathered = world.steps[1]
    assert gathered.trained == tuple(range(len(gathered.groups)))
    assert set(gathered.rounds) == {0}


def test_the_real_stream_gives_a_step_questions_until_all_data_were_asked():
    class Streamed(World):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            data = [self._question(f"1.{n}") for n in range(5)]
            self.stream = QuestionStream(data, prompts_per_step=2, seed=0)

        def batch_at(self, step):
            return self.stream.batch_at(step)

        def further_at(self, step, round_number):
            return self.stream.further_at(step, round_number)

    world = train(Streamed(refilling("majority_vote", 9), lambda view, name: False))
    gathered = world.steps[1]
    assert gathered.rounds == (0, 0, 1, 1, 2)
    assert sorted(names(gathered)) == [f"o 1.{n}" for n in range(5)]


def test_places_are_the_first_with_signal_then_the_first_without_in_the_order_asked():
    views = ["original"] * 4 + ["rephrased"] * 4
    kept = [False, True, False, True, False, False, False, True]
    assert trained_places(views, kept, wanted=2) == (1, 3, 4, 7)
    assert trained_places(views, kept, wanted=3) == (0, 1, 3, 4, 5, 7)
    assert trained_places(views, kept, wanted=4) == tuple(range(8))


def test_refill_without_dropping_is_refused_with_its_knob():
    with pytest.raises(ValueError, match=r"shaping\.refill_rounds: needs shaping\.drop_equal"):
        config_for("majority_vote", shaping={"refill_rounds": 1})
