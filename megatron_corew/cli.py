"""`corew`: the commands, each a few lines over the parts that do the work."""

import functools
import os
import sys
from contextlib import nullcontext, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from checkpoint_tools.command import one_line_errors
from megatron_corew import data_commands, lab_command, launch, preflight, rephrase_command
from megatron_corew.config import Config
from megatron_corew.config_file import load_config
from megatron_corew.methods import METHODS
from megatron_corew.plan.command import EPILOG, plan
from megatron_corew.runs import RunFolder
from megatron_corew.terminal import console

if TYPE_CHECKING:
    from megatron_corew.observe.hindsight import Hindsight

app = typer.Typer(
    help="Train language models to reason without labels: Co-rewarding on Megatron-Core and vLLM.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.add_typer(data_commands.app)
app.add_typer(rephrase_command.app)
app.add_typer(lab_command.app, name="lab")


@app.command(epilog="Example: corew train configs/runs/demo.yaml method=majority_vote run.steps=20")
def train(
    config_file: Annotated[Path, typer.Argument(help="YAML file of the run.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Knobs to change, as section.key=value, or further YAML files."),
    ] = None,
) -> None:
    """Train a run, or resume it from its last checkpoint.

    Starts the trainer's processes and a vLLM server on this machine. Under torchrun or srun it
    is one of the processes itself.
    """
    with one_line_errors():
        config = load_config(config_file, overrides or [])
        launch.join_slurm()
        folder = RunFolder.of(config)
        if launch.is_worker():
            _work(config, folder)
        else:
            _start(config, folder)


@app.command(epilog="Example: corew demo --steps 3")
def demo(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Knobs to change, as section.key=value, or further YAML files."),
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps instead of 40.")] = None,
) -> None:
    """Train the built-in policy with Co-rewarding-III on this machine, in minutes on a CPU."""
    with one_line_errors():
        named = [f"run.name=demo-{datetime.now():%Y%m%d-%H%M%S}"]
        named += [] if steps is None else [f"run.steps={steps}"]
        config = load_config(preflight.DEMO, named + (overrides or []))
        _start(config, RunFolder.of(config))


def _start(config: Config, folder: RunFolder) -> None:
    for note in preflight.check(config):
        console.print(note)
    with folder.locked():
        folder.prepare(config)
        done = folder.latest_step() or 0
        if done == config.run.steps:
            console.print(f"{folder.path} is finished: all {done} steps are done.")
        else:
            _train(config, folder, done)
    _sum_up(folder)
    _say_if_stopped(folder)


def _train(config: Config, folder: RunFolder, done: int) -> None:
    if done:
        console.print(f"resuming {folder.path} after step {done}")
    console.print(
        f"trainer processes to start: {config.parallel.processes}; logs are in {folder.logs}"
    )
    console.print("the first step follows when the vLLM server has started")
    code = launch.start_processes(config, folder)
    saved = folder.latest_step()
    start = "starts again" if saved is None else f"resumes after step {saved}"
    if code in launch.SIGNALLED:
        typer.secho(f"{launch.SIGNALLED[code]}: the same command {start}.", fg="red", err=True)
        raise typer.Exit(code)
    if code != 0:
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
        console.print(note)
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
    console.print()
    console.print(summary_text(read_metrics(folder.path), folder=folder.path))


@app.command(epilog="Example: corew serve configs/runs/demo.yaml --port 8001")
def serve(
    config_file: Annotated[Path, typer.Argument(help="YAML file of the run.")],
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Knobs to change, as section.key=value, or further YAML files."),
    ] = None,
) -> None:
    """Be a vLLM server that a run can be pointed at (servers.policy, servers.teacher)."""
    with one_line_errors():
        import torch

        from megatron_corew.rollout.serve import serve as become_server

        config = load_config(config_file, overrides or [])
        model = str(preflight.model_folder(config))
        become_server(config, model=model, port=port, on_gpu=torch.cuda.is_available())


@app.command(
    epilog="Example: corew wait runs/mine/config.yaml 'servers.policy=[http://node2:8001]'"
)
def wait(
    config_file: Annotated[Path, typer.Argument(help="YAML file of the run.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Knobs to change, as section.key=value, or further YAML files."),
    ] = None,
) -> None:
    """Return when every addressed server of a run answers."""
    with one_line_errors():
        preflight.wait_for_servers(load_config(config_file, overrides or []))


@app.command(epilog="Example: corew export runs/mine exported/mine --step 40")
def export(
    run_folder: Annotated[Path, typer.Argument(help="Folder of the run.")],
    out: Annotated[Path, typer.Argument(help="Hugging Face folder to write.")],
    step: Annotated[int | None, typer.Option(help="Checkpoint; the newest by default.")] = None,
    teacher: Annotated[bool, typer.Option(help="The teacher's weights.")] = False,
    overwrite: Annotated[bool, typer.Option(help="Replace OUT if it exists.")] = False,
) -> None:
    """Write a checkpoint as a Hugging Face folder that transformers and vLLM load."""
    with one_line_errors():
        from megatron_corew.export import export_checkpoint

        written = export_checkpoint(
            RunFolder(run_folder), out, step=step, teacher=teacher, overwrite=overwrite
        )
        console.print(written)


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
    with one_line_errors():
        from megatron_corew.observe.report import write_report

        folders = [_existing(folder) for folder in run_folders]
        if out is None and len(folders) > 1:
            raise ValueError("--out: need a file for the page of several runs, got none.")
        if out is None:
            _sum_up(folders[0])
        else:
            console.print(str(write_report([folder.path for folder in folders], out)))


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
    with one_line_errors():
        from megatron_corew.observe.watch import ReportServer

        folders = [_existing(folder).path for folder in run_folders]
        try:
            server = ReportServer(folders, host=host, port=port)
        except OSError as error:
            raise RuntimeError(
                f"--port: need a free port on {host}, got {port} ({error.strerror}). "
                "Take another one, or 0."
            ) from error
        console.print(f"{server.address}  (end with Ctrl-C)")
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
    fallen when its accuracy ends more than MARGIN below its start or its best. Several runs
    are summed up by method.
    """
    with one_line_errors():
        from megatron_corew.observe.hindsight import look_back
        from megatron_corew.observe.hindsight_table import as_lines, hindsight_rows
        from megatron_corew.observe.metrics import read_metrics

        overrides = [text for text in run_folders if "=" in text]
        all_seen = []
        for name in (text for text in run_folders if "=" not in text):
            folder = _existing(Path(name))
            config = load_config(folder.config_file, overrides)
            seen = look_back(read_metrics(folder.path), config.monitor, margin=margin)
            all_seen.append((config.method, seen))
            _say_what_was_seen(folder.path.name, seen, config.monitor.window)
        if len(all_seen) > 1:
            console.print("\n".join(["", *as_lines(hindsight_rows(all_seen))]))


def _say_what_was_seen(name: str, seen: "Hindsight", window: int) -> None:
    lead = "" if seen.lead is None else f", lead {seen.lead} steps"
    fell = "" if seen.fell_at is None else f", fell at step {seen.fell_at}"
    accuracy = f"accuracy {seen.start:.3f} -> {seen.end:.3f}, best {seen.best:.3f}{fell}"
    if seen.outcome == "unknown":
        few = f"fewer than {window} steps (monitor.window) have true answers"
        accuracy = f"no accuracy: {few}"
    console.print(f"{name}: {seen.outcome}{lead}; {accuracy}")
    for alarm in seen.alarms:
        console.print(f"  step {alarm.step:>5}  {alarm.signal}: {alarm.sentence}")


def _existing(folder: Path) -> RunFolder:
    if not folder.is_dir():
        raise ValueError(f"RUN_FOLDER: need the folder of a run, got {folder}.")
    return RunFolder(folder)


@app.command(epilog="Example: corew doctor configs/runs/demo.yaml --json")
def doctor(
    config_file: Annotated[
        Path | None, typer.Argument(help="YAML file of a run that should start here.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Knobs to change, as section.key=value, or further YAML files."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of findings.")] = False,
) -> None:
    """Say what is installed and on, what a run lacks, and the command that mends it.

    Exits with 1 when something is bad.
    """
    with one_line_errors():
        from megatron_corew.doctor.command import diagnose

        config = load_config(config_file, overrides or []) if config_file else None
        can_run = diagnose(config, as_json=as_json)
    if not can_run:
        raise typer.Exit(1)


@app.command(name="plan", epilog=EPILOG)
@functools.wraps(plan)
def _plan(*args: Any, **kwargs: Any) -> None:
    with one_line_errors():
        fits = plan(*args, **kwargs)
    if not fits:
        raise typer.Exit(1)


@app.command()
def methods() -> None:
    """List the method presets."""
    for name, method in METHODS.items():
        views = " and ".join(method.views)
        label = f"{method.labeller}, other view" if method.crossed else method.labeller
        console.print(
            f"{name:<25} trains {views:<23} label: {label:<21} "
            f"KL to the {method.kl_reference} reference, {method.kl_coef}"
        )


def main() -> None:
    """Entry point of the console script."""
    sys.exit(app())


if __name__ == "__main__":
    main()
