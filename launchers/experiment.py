"""One NeMo-Run experiment: shown, or written and run."""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from io import StringIO

import nemo_run as run
from nemo_run.core.frontend.console.api import CONSOLE

from launchers.cluster import check_here
from launchers.options import Launch

PIPE_COLUMNS = 2000
FILLING = re.compile(r"[ ─]{60,}")
Task = tuple[str, run.Script, run.Executor]


def start(launch: Launch, tasks: Sequence[Task], *, dry_run: bool, detach: bool) -> str:
    """Show or run tasks that start and end together.

    Args:
        launch: its launch folder is written before anything starts.
        tasks: name, script and executor of each; several are the steps of one job.
        dry_run: only print what NeMo-Run would submit.
        detach: return once the job is submitted.

    Returns:
        A summary of one or two lines.

    Raises:
        RuntimeError: the job failed, or could not be submitted.
    """
    title = f"corew-{launch.bundle.config.run.name}"
    scripts, executors = [task for _, task, _ in tasks], [one for *_, one in tasks]
    with _whole_lines(dry_run), run.Experiment(title, log_level="WARN") as experiment:
        if len(tasks) == 1:
            experiment.add(scripts[0], executor=executors[0], name=tasks[0][0])
        else:
            experiment.add(scripts, executor=executors, name="job")
        if dry_run:
            experiment.dryrun(delete_exp_dir=True)
            return f"dry run: would write {launch.bundle.folder} and start {title}"
        launch.bundle.write()
        experiment.run(detach=detach, tail_logs=not detach)
    job, logs = experiment.jobs[0], launch.bundle.folder.parent / "logs"
    if detach:
        # Slurm's accounting may not know a job yet that its queue has taken.
        if not job.launched:
            raise RuntimeError(
                f"{title}: need a submitted job, got none; sbatch's words are above."
            )
        return f"{title}: submitted; logs will be in {logs}"
    # Leaving the experiment waits for its job, and only then is the state final.
    if job.state.name != "SUCCEEDED":
        raise RuntimeError(f"{title}: need SUCCEEDED, got {job.state.name}. Logs are in {logs}.")
    return f"{title}: {job.state.name}; logs are in {logs}"


def run_here(launch: Launch, executor: run.Executor, *, needs: str, dry_run: bool) -> str:
    """Show or run the whole job script as one task of this machine, and wait for it.

    One task: NeMo-Run's schedulers leave the servers running when the trainer has ended well.

    Args:
        launch: what to run.
        executor: how.
        needs: the command that must be here.
        dry_run: only print it.

    Returns:
        A summary of one or two lines.

    Raises:
        ValueError: this machine does not fit the cluster file.
        RuntimeError: the job failed.
    """
    if not dry_run:
        check_here(launch.cluster, (needs,))
    task = run.Script(inline=launch.bundle.command("job.sh"))
    return start(launch, [("job", task, executor)], dry_run=dry_run, detach=False)


@contextmanager
def _whole_lines(dry_run: bool) -> Iterator[None]:
    """In a pipe, scripts as they are: NeMo-Run folds long lines and fills up short ones."""
    if not dry_run or sys.stdout.isatty():
        yield
        return
    # Consoles made from here on, and NeMo-Run's own, which is older than this call.
    os.environ["COLUMNS"] = str(PIPE_COLUMNS)
    CONSOLE.width = PIPE_COLUMNS
    shown = StringIO()
    try:
        with redirect_stdout(shown):
            yield
    finally:
        # Also what a failure had shown before it.
        for line in shown.getvalue().splitlines():
            sys.stdout.write(f"{FILLING.sub('  ', line).rstrip()}\n")
