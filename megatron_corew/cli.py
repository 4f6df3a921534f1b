"""`corew`: the commands, each a few lines over the parts that do the work."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from megatron_corew import launch, preflight
from megatron_corew.config import Config
from megatron_corew.config_file import load_config
from megatron_corew.methods import METHODS
from megatron_corew.runs import RunFolder

app = typer.Typer(
    help="Train language models to reason without labels: Co-rewarding on Megatron-Core and vLLM.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
_console = Console(highlight=False, markup=False, soft_wrap=True)
_errors = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Users' and the world's errors end the command with one line and exit code 1."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        _errors.print(f"error: {error}", style="red")
        raise typer.Exit(1) from error


@app.command(epilog="Example: corew train configs/runs/demo.yaml method=majority_vote run.steps=20")
def train(
    config_file: Annotated[Path, typer.Argument(help="YAML file of the run.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Knobs to change, as section.key=value.")
    ] = None,
) -> None:
    """Train a run, or resume it from its last checkpoint.

    Starts the trainer's processes and a vLLM server on this machine. Under torchrun or srun it
    is one of the processes itself.
    """
    with _one_line_errors():
        config = load_config(config_file, overrides or [])
        launch.join_slurm()
        folder = RunFolder.of(config)
        if launch.is_worker():
            _work(config, folder)
        else:
            _start(config, folder)


def _start(config: Config, folder: RunFolder) -> None:
    for note in preflight.check(config):
        _console.print(note)
    with folder.locked():
        folder.prepare(config)
        done = folder.latest_step() or 0
        if done == config.run.steps:
            _console.print(f"{folder.path} is finished: all {done} steps are done.")
        else:
            _train(config, folder, done)
    _sum_up(folder)
    _say_if_stopped(folder)


def _train(config: Config, folder: RunFolder, done: int) -> None:
    if done:
        _console.print(f"resuming {folder.path} after step {done}")
    _console.print(
        f"trainer processes to start: {config.parallel.processes}; logs are in {folder.logs}"
    )
    _console.print("the first step follows when the vLLM server has started")
    code = launch.start_processes(config, folder)
    if code != 0:
        saved = folder.latest_step()
        start = "starts again" if saved is None else f"resumes after step {saved}"
        raise RuntimeError(
            f"the trainer ended with code {code}; logs are in {folder.logs}. The same command "
            f"{start}."
        )


def _work(config: Config, folder: RunFolder) -> None:
    """Be one of the processes that torchrun or srun started."""
    from megatron_corew.run import run

    driver = os.environ["RANK"] == "0"
    # Every rank looks: a rank that found a fault alone would leave the others waiting for it.
    notes = preflight.check(config)
    for note in notes if driver else ():
        _console.print(note)
    with folder.locked() if driver else nullcontext():
        run(config)
    if driver:
        _sum_up(folder)
        _say_if_stopped(folder)


def _say_if_stopped(folder: RunFolder) -> None:
    from megatron_corew.guard import stop_message

    message = stop_message(folder)
    if message is not None:
        raise RuntimeError(message)


def _sum_up(folder: RunFolder) -> None:
    from megatron_corew.observe.metrics import read_metrics
    from megatron_corew.observe.report import write_report
    from megatron_corew.observe.summary import summary_text

    write_report([folder.path])
    _console.print()
    _console.print(summary_text(read_metrics(folder.path), folder=folder.path))


@app.command(epilog="Example: corew export runs/mine exported/mine --step 40")
def export(
    run_folder: Annotated[Path, typer.Argument(help="Folder of the run.")],
    out: Annotated[Path, typer.Argument(help="Hugging Face folder to write.")],
    step: Annotated[int | None, typer.Option(help="Checkpoint; the newest by default.")] = None,
    teacher: Annotated[bool, typer.Option(help="The teacher's weights.")] = False,
    overwrite: Annotated[bool, typer.Option(help="Replace OUT if it exists.")] = False,
) -> None:
    """Write a checkpoint as a Hugging Face folder that transformers and vLLM load."""
    with _one_line_errors():
        from megatron_corew.export import export_checkpoint

        written = export_checkpoint(
            RunFolder(run_folder), out, step=step, teacher=teacher, overwrite=overwrite
        )
        _console.print(written)


@app.command(epilog="Example: corew report runs/demo runs/other -o compared.html")
def report(
    run_folders: Annotated[list[Path], typer.Argument(help="Folder of each run.")],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="Page to write; report.html in the run by default."),
    ] = None,
) -> None:
    """Write the report of a run, finished or not, or a page that compares several.

    The page needs no other file and no network. The summary of a single run is printed too.
    """
    with _one_line_errors():
        from megatron_corew.observe.report import write_report

        folders = [_existing(folder) for folder in run_folders]
        if out is None and len(folders) > 1:
            raise ValueError("--out: need a file for the page of several runs, got none.")
        if out is None:
            _sum_up(folders[0])
        else:
            _console.print(str(write_report([folder.path for folder in folders], out)))


@app.command(epilog="Example: corew watch runs/demo")
def watch(
    run_folders: Annotated[list[Path], typer.Argument(help="Folder of each run.")],
    host: Annotated[str, typer.Option(help="Interface to bind to.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.", min=0, max=65535)] = 8765,
) -> None:
    """Serve the report of runs that train, renewed with every step, until interrupted.

    Only this machine can see it. Another HOST shows prompts and responses to everybody who can
    reach it.
    """
    with _one_line_errors():
        from megatron_corew.observe.watch import ReportServer

        folders = [_existing(folder).path for folder in run_folders]
        try:
            server = ReportServer(folders, host=host, port=port)
        except OSError as error:
            raise RuntimeError(
                f"--port: need a free port on {host}, got {port} ({error.strerror}). "
                "Take another one, or 0."
            ) from error
        _console.print(f"{server.address}  (end with Ctrl-C)")
        with server, suppress(KeyboardInterrupt):
            server.serve_forever()


@app.command(epilog="Example: corew monitor runs/demo monitor.max_kl=0.2")
def monitor(
    run_folders: Annotated[
        list[str], typer.Argument(help="Folders of runs, then knobs as monitor.key=value.")
    ],
    margin: Annotated[float, typer.Option(help="Loss of accuracy that counts as a fall.")] = 0.1,
) -> None:
    """Show what the collapse monitor says of recorded runs, and whether it was right.

    Uses the thresholds of each run's own configuration. A run that has true answers has
    fallen when its accuracy ends more than MARGIN below its start or its best.
    """
    with _one_line_errors():
        from megatron_corew.observe.hindsight import look_back
        from megatron_corew.observe.metrics import read_metrics

        overrides = [text for text in run_folders if "=" in text]
        for name in (text for text in run_folders if "=" not in text):
            folder = _existing(Path(name))
            knobs = load_config(folder.config_file, overrides).monitor
            seen = look_back(read_metrics(folder.path), knobs, margin=margin)
            lead = "" if seen.lead is None else f", {seen.lead} steps before the fall"
            fell = "" if seen.fell_at is None else f", fell at step {seen.fell_at}"
            _console.print(
                f"{folder.path.name}: {seen.outcome}{lead}; accuracy {seen.start:.3f} -> "
                f"{seen.end:.3f}, best {seen.best:.3f}{fell}"
            )
            for alarm in seen.alarms:
                _console.print(f"  step {alarm.step:>5}  {alarm.signal}: {alarm.sentence}")


def _existing(folder: Path) -> RunFolder:
    if not folder.is_dir():
        raise ValueError(f"RUN_FOLDER: need the folder of a run, got {folder}.")
    return RunFolder(folder)


@app.command()
def methods() -> None:
    """List the method presets."""
    for name, method in METHODS.items():
        views = " and ".join(method.views)
        label = f"{method.labeller}, other view" if method.crossed else method.labeller
        _console.print(
            f"{name:<25} trains {views:<23} label: {label:<21} "
            f"KL to the {method.kl_reference} reference, {method.kl_coef}"
        )


def main() -> None:
    """Entry point of the console script."""
    sys.exit(app())


if __name__ == "__main__":
    main()
