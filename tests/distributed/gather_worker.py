"""A step with refill on several ranks, judged on rank 0 only. Argument: out.json"""

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch.distributed as dist

from megatron_corew.ranks import is_driver
from megatron_corew.run import _label_on_driver
from tests.cpu.test_gathering import PoolSampler, World, refilling, train
from tests.cpu.test_labelling import RawJudge


class DriversJudge(RawJudge):
    """The judge's processes exist on rank 0 only."""

    def votes(self, groups):
        assert is_driver(), "judged on a rank without a judge"
        return super().votes(groups)


class TextSampler(PoolSampler):
    """The first round's answers agree, those of the second further round do not."""

    def sample(self, prompts, *, samples, seed):
        groups = super().sample(prompts, samples=samples, seed=seed)
        return [
            replace(group, rollouts=(group.rollouts[0], replace(group.rollouts[1], text="5")))
            if ".2" in group.prompt.question_id
            else group
            for group in groups
        ]


def main() -> None:
    """Measure and write."""
    dist.init_process_group("gloo")
    config = refilling("co_rewarding_iii", 3)
    world = World(config, signal=None)
    world.label = partial(_label_on_driver, DriversJudge(), config)
    train(world, sampler_type=TextSampler)
    gathered = world.steps[1]
    seen = {
        "events": world.events,
        "rounds": gathered.rounds,
        "trained": [gathered.groups[place].prompt.question_id for place in gathered.trained],
    }
    everywhere: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(everywhere, seen)
    if is_driver():
        Path(sys.argv[1]).write_text(json.dumps(everywhere))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
