"""Which runs a comparison is made of, and how it goes on where it stopped."""

from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from megatron_corew import preflight
from megatron_corew.cli import app
from megatron_corew.config_file import load_config, save_config
from megatron_corew.lab.compare import job
from megatron_corew.lab.compare.job import train_command
from megatron_corew.lab.compare.plan import BASES, FIRST_SEED, SETTING, plan
from megatron_corew.lab.compare.progress import CompareProgress
from megatron_corew.lab.compare.schedule import carry_out
from megatron_corew.methods import METHODS

TWO = ("majority_vote", "self_certainty")


def stand(cell, step, *, config=None):
    """Leave behind what a run leaves that saved a checkpoint at ``step``."""
    cell.folder.checkpoints.mkdir(parents=True, exist_ok=True)
    save_config(config or cell.config, cell.folder.config_file)
    (cell.folder.checkpoints / "latest").write_text(str(step))


class FakeRun:
    """Trains for ``looks`` polls, then stands at its last step, or fails."""

    def __init__(self, cell, world, *, looks=2, code=0):
        self.cell, self.world, self.looks, self.code = cell, world, looks, code
        self.ended = False

    def poll(self):
        if self.looks == 0 and not self.ended:
            self.ended = True
            self.world.alive.remove(self.cell.name)
            if self.code == 0:
                stand(self.cell, self.cell.config.run.steps)
        self.looks -= 1
        return self.code if self.ended else None

    def terminate(self):
        self.world.terminated.append(self.cell.name)
        self.ended = True

    def wait(self):
        return self.code


class World:
    """Starts fake runs and remembers what it is told."""

    def __init__(self, failing=()):
        self.failing, self.alive, self.most_alive = failing, [], 0
        self.terminated, self.events = [], []

    def start(self, cell):
        self.alive.append(cell.name)
        self.most_alive = max(self.most_alive, len(self.alive))
        return FakeRun(cell, self, code=1 if cell.name in self.failing else 0)

    def skipped(self, cell):
        self.events.append(("skipped", cell.name))

    def started(self, cell):
        self.events.append(("started", cell.name))

    def running(self, cells):
        assert [cell.name for cell in cells] == self.alive

    def ended(self, cell, code):
        self.events.append((f"ended {code}", cell.name))

    def carry_out(self, cells, jobs=1, pause=lambda seconds: None):
        return carry_out(cells, jobs=jobs, start=self.start, watcher=self, pause=pause)


def cells_of(out, methods=TWO, seeds=2, **changes):
    return plan(methods, base="echo", seeds=seeds, out=out, **changes)


def test_every_method_has_every_seed_and_a_seed_is_done_before_the_next(tmp_path):
    cells = cells_of(tmp_path)
    assert [cell.name for cell in cells] == [
        "majority_vote-101",
        "self_certainty-101",
        "majority_vote-102",
        "self_certainty-102",
    ]
    assert [cell.config.run.seed for cell in cells] == [101, 101, 102, 102]
    assert cells[0].folder.path == tmp_path / "runs" / "majority_vote-101"


def test_methods_stand_in_one_order_however_they_are_named(tmp_path):
    backwards = cells_of(tmp_path, methods=tuple(METHODS)[::-1], seeds=1)
    assert [cell.method for cell in backwards] == list(METHODS)


def test_methods_differ_in_nothing_but_their_name(tmp_path):
    cells = cells_of(tmp_path, methods=tuple(METHODS), seeds=1)
    knobs = [cell.config.model_dump() for cell in cells]
    for one in knobs:
        del one["method"], one["run"]["name"]
    assert all(one == knobs[0] for one in knobs)
    # The paper's weights and references come with the method; nothing overrides them.
    assert {cell.config.kl_coef for cell in cells} == {0.005, 0.001}
    assert cells[0].config.loss.kl_coef is None


@pytest.mark.parametrize("base", BASES)
def test_a_base_is_a_policy_of_this_package(base, tmp_path):
    (cell,) = plan(["majority_vote"], base=base, seeds=1, out=tmp_path)
    assert preflight.model_folder(cell.config).name == base


def test_the_command_of_a_run_gives_the_planned_configuration(tmp_path):
    cell = cells_of(tmp_path, steps=7)[0]
    command = train_command(cell)
    at = command.index("train")
    assert load_config(Path(command[at + 1]), command[at + 2 :]) == cell.config
    assert cell.config.run.steps == 7


def test_a_file_to_extend_is_the_shipped_setting():
    root = Path(__file__).parents[2]
    assert load_config(root / "configs" / "lab" / "compare.yaml") == load_config(SETTING)


def test_finished_runs_are_skipped_and_half_ones_start_again(tmp_path):
    cells = cells_of(tmp_path)
    stand(cells[0], 80)
    stand(cells[1], 40)
    world = World()
    assert world.carry_out(cells) == []
    assert world.events[0] == ("skipped", "majority_vote-101")
    started = [name for event, name in world.events if event == "started"]
    assert started == ["self_certainty-101", "majority_vote-102", "self_certainty-102"]
    again = World()
    again.carry_out(cells)
    assert Counter(event for event, _ in again.events) == {"skipped": 4}


@pytest.mark.parametrize(("jobs", "most"), [(1, 1), (3, 3), (9, 4)])
def test_as_many_runs_go_on_at_a_time_as_there_are_jobs(tmp_path, jobs, most):
    world = World()
    world.carry_out(cells_of(tmp_path), jobs=jobs)
    assert world.most_alive == most


def test_a_run_that_fails_does_not_stop_the_others_and_is_tried_again(tmp_path):
    cells = cells_of(tmp_path)
    world = World(failing=["majority_vote-101"])
    assert world.carry_out(cells) == [cells[0]]
    assert ("ended 1", "majority_vote-101") in world.events
    assert World().carry_out(cells) == []


def test_an_interrupt_ends_the_runs_that_go_on(tmp_path):
    def interrupt(seconds):
        raise KeyboardInterrupt

    world = World()
    with pytest.raises(KeyboardInterrupt):
        world.carry_out(cells_of(tmp_path), jobs=2, pause=interrupt)
    assert world.terminated == ["majority_vote-101", "self_certainty-101"]


def test_a_run_made_with_another_setting_is_refused_by_its_first_difference(tmp_path):
    cell = cells_of(tmp_path)[0]
    stand(cell, 80)
    with pytest.raises(ValueError, match=r"run\.steps=5, got one made with 80.*--out"):
        cells_of(tmp_path, steps=5)
    # More jobs or another place change nothing that is measured.
    elsewhere = cell.config.model_copy(update={"servers": {"threads": 2}})
    stand(cell, 80, config=load_config(SETTING, [*cell.overrides, "servers.threads=2"]))
    assert elsewhere != cell.config
    assert cells_of(tmp_path)


def test_plain_lines_say_what_every_run_did(tmp_path):
    cells = cells_of(tmp_path)
    stand(cells[0], 80)
    stand(cells[1], 40)
    console = Console(record=True, width=200, force_terminal=False)
    with CompareProgress(console, 4, sum_up=lambda cell: cell.name) as progress:
        world = World(failing=["majority_vote-102"])
        carry_out(cells, jobs=1, start=world.start, watcher=progress, pause=lambda seconds: None)
    lines = console.export_text().splitlines()
    assert lines[0] == "1/4 finished before: majority_vote-101"
    assert "self_certainty-101: goes on after step 40" in lines
    assert "2/4 done: self_certainty-101" in lines
    assert any("majority_vote-102: failed with code 1; see" in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--base", "loud"), "--base: need one of echo, clean, shared, got 'loud'"),
        (("--methods", "grpo"), "--methods: need names out of ground_truth"),
        (("--methods", "majority_vote,majority_vote"), "each once, got 'majority_vote'"),
    ],
)
def test_bad_choices_end_with_one_line_before_anything_is_written(
    tmp_path, arguments, message, monkeypatch
):
    # What is let through must fail here, not train for an hour.
    monkeypatch.setattr(job, "start_training", lambda cell: pytest.fail(f"started {cell.name}"))
    out = tmp_path / "out"
    done = CliRunner().invoke(app, ["lab", "compare", "--out", str(out), *arguments])
    assert done.exit_code == 1
    assert message.split(" out of")[0] in done.output
    assert not out.exists()


def test_fresh_seeds_are_none_that_the_setting_was_chosen_on(tmp_path):
    assert FIRST_SEED > 4
    assert {cell.seed for cell in cells_of(tmp_path, seeds=3)} == {101, 102, 103}
