"""A rollback in a run that replaces groups without signal: the steps taken back ask alike again."""

from types import SimpleNamespace
from zlib import crc32

from megatron_corew import loop
from megatron_corew.data.prompts import QuestionStream
from megatron_corew.gathering import Gatherer
from megatron_corew.observe.jsonl import read_lines
from megatron_corew.observe.metrics import read_events, read_metrics
from megatron_corew.observer import Observer
from megatron_corew.runs import RunFolder, checkpoint_folder
from tests.cpu.test_gathering import Pool, PoolSampler, World, refilling

MONITOR = {
    "on_collapse": "rollback",
    "window": 2,
    "patience": 1,
    "probe_every": 0,
    "lr_factor": 0.5,
    "max_rollbacks": 1,
}


class Trained(World):
    """A policy that drifts away at the full rate; its weights decide which groups carry signal."""

    def __init__(self, config) -> None:
        super().__init__(config, self.has_signal)
        self.version, self.starts = 0, []
        data = [self._question(f"{n}") for n in range(12)]
        self.stream = QuestionStream(data, prompts_per_step=2, seed=config.run.seed)

    def has_signal(self, view, name):
        return crc32(f"{view} {name} {self.version}".encode()) % 3 == 0

    def batch_at(self, step):
        self.starts.append(len(self.calls))
        return self.stream.batch_at(step)

    def further_at(self, step, round_number):
        return self.stream.further_at(step, round_number)

    def step(self, batch, *, learning_rate):
        self.version += 1
        full = learning_rate == self.config.optimizer.lr
        return super().step(batch, learning_rate=learning_rate) | {
            "policy/kl": 1.0 if full and self.version > 6 else 0.0
        }


def train(world: Trained, folder: RunFolder) -> None:
    """As ``run.run`` does it, with the world's version and teacher for all that a checkpoint is."""

    def load(step):
        world.version, world.updates = step, step

    sampler = PoolSampler("policy", world, pool := Pool())
    judge = SimpleNamespace(statistics=dict)
    with Observer(
        world.config,
        folder,
        training_sampler=sampler,
        evaluation_sampler=sampler,
        judge=judge,
        held_out=(),
        save=lambda step: save(folder, step),
        first_step=1,
    ) as observer:
        gatherer = Gatherer(
            config=world.config,
            questions=world,
            policy=world,
            teacher=world,
            sampler=sampler,
            teacher_sampler=PoolSampler("teacher", world, pool),
            label=world.label,
            observer=observer,
        )
        loop.train(gatherer, first_step=1, lr_scale=1.0)
        while (verdict := observer.verdict).action == "rollback":
            load(verdict.to_step)
            loop.train(gatherer, first_step=verdict.to_step + 1, lr_scale=verdict.lr_scale)


def save(folder: RunFolder, step: int) -> None:
    checkpoint_folder(folder.checkpoints, step).mkdir(parents=True)
    (folder.checkpoints / "latest").write_text(str(step))


def asked(folder: RunFolder, attempt: int, steps: range) -> dict[int, list[tuple[object, ...]]]:
    """Step -> who was asked in which round, and which weights of policy and teacher answered."""
    fields = ("question_id", "view", "round", "weights_version", "teacher_version", "in_loss")
    found: dict[int, list[tuple[object, ...]]] = {step: [] for step in steps}
    for line in read_lines(folder.path / "rollouts.jsonl"):
        if line["attempt"] == attempt and line["step"] in found:
            found[line["step"]].append(tuple(line[field] for field in fields))
    return found


def test_a_rollback_asks_the_same_questions_in_the_same_rounds_again(tmp_path):
    folder = RunFolder(tmp_path)
    config = refilling(
        "co_rewarding_iii",
        run={"name": "test", "steps": 10, "seed": 3},
        optimizer={"lr": 1e-3, "warmup_share": 0.0, "min_lr_share": 1.0},
        checkpoint={"every": 2, "keep": 3},
        monitor=MONITOR,
    )
    world = Trained(config)
    train(world, folder)
    turned = [e for e in read_events(tmp_path) if e["event"] == "rollback"]
    # The KL rises in step 7 and the mean over steps 6 and 7 passes the limit.
    assert [(event["step"], event["to"]) for event in turned] == [(7, 4)]
    taken_back = range(5, 8)
    before, again = (asked(folder, attempt, taken_back) for attempt in (1, 2))
    assert again == before
    rounds = [max(number for _, _, number, *_ in before[step]) for step in taken_back]
    assert max(rounds) > min(rounds) > 0, "the steps should differ in their rounds"
    assert world.rates == [1e-3] * 7 + [5e-4] * 6
    # With the same seeds: steps 5 to 7 are the fifth to seventh, then the eighth to tenth to begin.
    first, second = (slice(*world.starts[at : at + 4 : 3]) for at in (4, 7))
    assert world.calls[second] == world.calls[first] != []
    records = read_metrics(tmp_path)
    assert [(r["step"], r["attempt"]) for r in records] == [
        (step, 1 if step <= 4 else 2) for step in range(1, 11)
    ]
    assert [r["refill/rounds"] for r in records[4:7]] == rounds
