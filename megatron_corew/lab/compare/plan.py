"""Which runs a comparison is made of."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from megatron_corew.config import Config
from megatron_corew.config_file import differences, load_config
from megatron_corew.methods import METHODS
from megatron_corew.runs import RunFolder

SETTING = Path(__file__).parent / "setting.yaml"
"""The pre-registered configuration."""
BASES = {
    "echo": "the short cut (the first number shown) is another one in each view",
    "clean": "hardly any short cuts, many slips",
    "shared": "the short cut (the largest number) is the same in both views",
}
"""The policies that a comparison may start from, and what their corpus holds."""
FIRST_SEED = 101
"""Seeds count up from here: the runs that the setting was chosen on had 0 to 4."""

# What may differ between two runs that measure the same.
_FREE = ("run.root", "servers", "parallel", "checkpoint", "observe")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One run of a comparison."""

    method: str
    seed: int
    overrides: tuple[str, ...]
    """What the run changes in the setting."""
    config: Config
    """The setting with the overrides."""

    @property
    def name(self) -> str:
        """Name of the run and of its folder."""
        return self.config.run.name

    @property
    def folder(self) -> RunFolder:
        """Where the run writes."""
        return RunFolder.of(self.config)

    @property
    def is_finished(self) -> bool:
        """Whether the checkpoint of the last step stands."""
        return self.folder.latest_step() == self.config.run.steps


def plan(
    methods: Sequence[str], *, base: str, seeds: int, out: Path, steps: int | None = None
) -> list[Cell]:
    """List the runs of a comparison, all methods of one seed before the next seed.

    Args:
        methods: Names of presets, in any order.
        base: One of ``BASES``.
        seeds: Runs per method.
        out: Folder of the comparison; the runs lie in ``runs`` below it.
        steps: Training steps; None: as pre-registered.

    Returns:
        The runs, in the order in which they start.

    Raises:
        ValueError: An unknown base or method, one named twice, or a run in ``out`` that was made
            with another setting.
    """
    if base not in BASES:
        raise ValueError(f"--base: need one of {', '.join(BASES)}, got {base!r}.")
    for method in methods:
        if method not in METHODS or methods.count(method) > 1:
            raise ValueError(
                f"--methods: need names out of {', '.join(METHODS)}, each once, got {method!r}."
            )
    numbers = range(FIRST_SEED, FIRST_SEED + seeds)
    # In one order, so that a method has one colour; those without labels stand last.
    ordered = [method for method in METHODS if method in methods]
    cells = [_cell(method, base, seed, out, steps) for seed in numbers for method in ordered]
    for cell in cells:
        _refuse_another_setting(cell)
    return cells


def _cell(method: str, base: str, seed: int, out: Path, steps: int | None) -> Cell:
    overrides = [
        f"method={method}",
        f"model.path=lab-{base}",
        f"run.name={method}-{seed}",
        f"run.root={out / 'runs'}",
        f"run.seed={seed}",
    ]
    if steps is not None:
        overrides.append(f"run.steps={steps}")
    config = load_config(SETTING, overrides)
    return Cell(method=method, seed=seed, overrides=tuple(overrides), config=config)


def _refuse_another_setting(cell: Cell) -> None:
    """A table must not mix runs of two settings."""
    folder = cell.folder
    if folder.latest_step() is None:
        return
    changed = differences(load_config(folder.config_file), cell.config, ignoring=_FREE)
    if changed:
        key, before, now = changed[0]
        raise ValueError(
            f"{folder.path}: need a run with {key}={now!r}, got one made with {before!r}. Choose "
            "another --out, or remove the folder."
        )
