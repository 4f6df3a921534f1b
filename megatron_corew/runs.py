"""The folder of a run: what lies where, and whether a configuration may go on in it."""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from megatron_corew.config import Config
from megatron_corew.config_file import differences, load_config, save_config

# Knobs that change how a run is computed or watched, never what it is meant to compute.
_FREE_ON_RESUME = (
    "run.root",
    "servers",
    "parallel",
    "precision",
    "checkpoint",
    "evaluate",
    "observe",
    "monitor",
)


def checkpoint_folder(checkpoints: Path, step: int) -> Path:
    """Where the checkpoint of a step stands."""
    return checkpoints / f"step-{step:06d}"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths inside ``<run.root>/<run.name>``."""

    path: Path

    @classmethod
    def of(cls, config: Config) -> "RunFolder":
        """The folder of a configuration's run."""
        return cls(Path(config.run.root) / config.run.name)

    @property
    def config_file(self) -> Path:
        """The resolved configuration."""
        return self.path / "config.yaml"

    @property
    def fast_paths_file(self) -> Path:
        """Which optional fast paths the last start found."""
        return self.path / "fast_paths.json"

    @property
    def checkpoints(self) -> Path:
        """One folder per checkpoint, and ``latest``."""
        return self.path / "checkpoints"

    @property
    def logs(self) -> Path:
        """Logs of the servers and of the trainer's processes."""
        return self.path / "logs"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from training in this folder.

        Raises:
            RuntimeError: one does already.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise RuntimeError(
                    f"{self.path}: another process trains in this folder. Wait for it, end it, or "
                    "choose another run.name."
                ) from error
            yield

    def prepare(self, config: Config) -> None:
        """Store the configuration in the folder.

        Raises:
            ValueError: the folder holds a checkpoint of a run that computes something else.
        """
        if self.config_file.exists() and self.latest_step() is not None:
            self._refuse_another_run(config)
        save_config(config, self.config_file)

    def latest_step(self) -> int | None:
        """Step of the newest complete checkpoint, or None."""
        pointer = self.checkpoints / "latest"
        return int(pointer.read_text()) if pointer.exists() else None

    def steps(self) -> list[int]:
        """Steps of all complete checkpoints, oldest first."""
        return sorted(int(f.name.removeprefix("step-")) for f in self.checkpoints.glob("step-*"))

    def rewind(self, step: int) -> None:
        """Make an older checkpoint the newest one.

        Args:
            step: of a complete checkpoint; those of later steps are removed.
        """
        pointer = self.checkpoints / ".latest.partial"
        pointer.write_text(str(step))
        pointer.replace(self.checkpoints / "latest")
        for later in (saved for saved in self.steps() if saved > step):
            shutil.rmtree(checkpoint_folder(self.checkpoints, later))

    def _refuse_another_run(self, config: Config) -> None:
        before = load_config(self.config_file)
        changed = differences(before, config, ignoring=_FREE_ON_RESUME)
        if changed:
            key, old, new = changed[0]
            more = f" and {len(changed) - 1} more keys" if len(changed) > 1 else ""
            raise ValueError(
                f"{key}: the run in {self.path} has a checkpoint made with {old!r}, got {new!r}"
                f"{more}. Go on with {key}={old}, or start another run with run.name=..."
            )
