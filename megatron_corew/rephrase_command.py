"""`corew rephrase`: the command that lets a model say questions in other words."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from checkpoint_tools.command import one_line_errors
from megatron_corew.terminal import console

if TYPE_CHECKING:
    from megatron_corew.data.prepare.schema import PreparedRow
    from megatron_corew.data.rephrase.job import Rephrased
    from megatron_corew.data.rephrase.journal import Journal
    from megatron_corew.data.rephrase.settings import RephraseConfig

app = typer.Typer()


@app.command(
    epilog="Example: corew rephrase data/math --model models/Qwen3-32B --out data/math-rephrased"
)
def rephrase(
    data: Annotated[
        str,
        typer.Argument(
            help="What `corew prepare` wrote: a folder, its questions.parquet, or "
            "its quarantine.jsonl."
        ),
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Knobs to change, as section.key=value.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Hugging Face folder: start a vLLM server with it on this machine."),
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="Address of a running OpenAI-compatible server.")
    ] = None,
    recipe: Annotated[
        Path, typer.Option(help="YAML file with prompt, sampling and checks.")
    ] = Path("configs/rephrase/qwen3_32b.yaml"),
    out: Annotated[
        Path | None, typer.Option(help="Folder to write; DATA-rephrased by default.")
    ] = None,
    only_missing: Annotated[
        bool, typer.Option("--only-missing", help="Keep the rephrasings that are there.")
    ] = False,
) -> None:
    """Let a model say every question in other words, and keep what stands the checks.

    A rephrasing is refused when it is a placeholder, the original, loses numbers or diagram code,
    or is of another length or language; preserve.samples=8 also lets the model solve both versions.
    Refused ones are tried again with another seed, then quarantined. Every attempt goes into
    attempts.jsonl at once: the same command goes on where an interrupted one stopped.
    """
    with one_line_errors():
        from megatron_corew.config_file import load_section
        from megatron_corew.data.prepare.schema import read_prepared
        from megatron_corew.data.rephrase.journal import Journal
        from megatron_corew.data.rephrase.output import write_rephrased
        from megatron_corew.data.rephrase.settings import RephraseConfig

        if (model is None) == (url is None):
            raise ValueError("--model or --url: need one of the two, got both or none.")
        chosen = [f"model={model}"] if model is not None else []
        config = load_section(recipe, RephraseConfig, [*chosen, *(overrides or [])])
        rows = read_prepared(data, knob="DATA")
        folder = out or _beside(Path(data))
        # The journal first: a second job on the same folder must not wait for a server.
        with (
            Journal(folder / "attempts.jsonl") as journal,
            _rephrasing_server(config, url, folder) as (address, post_mortem),
        ):
            wanted = [row for row in rows if not (only_missing and row.rephrased_messages)]
            done = _rephrase(config, wanted, journal, address, post_mortem)
        for line in write_rephrased(done, rows, folder):
            console.print(line)


def _beside(data: Path) -> Path:
    """The folder for new rephrasings: DATA-rephrased, next to the folder of the questions."""
    folder = data if data.is_dir() else data.resolve().parent
    return folder.with_name(f"{folder.name}-rephrased")


@contextmanager
def _rephrasing_server(
    config: "RephraseConfig", url: str | None, folder: Path
) -> Iterator[tuple[str, Callable[[], str]]]:
    """The address of a server, started here unless one was given, and its post-mortem."""
    if url is not None:
        yield url, lambda: ""
        return
    if not (Path(config.model) / "config.json").is_file():
        raise ValueError(
            f"--model: need a Hugging Face folder with a config.json, got {config.model!r}. "
            "Download the model first, or give the address of a server by --url."
        )
    import torch

    from megatron_corew.rollout.server import VllmServer

    server = VllmServer(
        config.model,
        config.servers,
        dtype=config.dtype,
        max_model_len=config.max_model_len,
        seed=config.sampling.seed,
        log_path=folder / "server.log",
        on_gpu=torch.cuda.is_available(),
    )
    try:
        server.start()
        with console.status(f"starting a vLLM server with {config.model}"):
            server.wait_until_healthy()
        yield server.address, server.post_mortem
    finally:
        server.stop()


def _rephrase(
    config: "RephraseConfig",
    rows: "Sequence[PreparedRow]",
    journal: "Journal",
    address: str,
    post_mortem: Callable[[], str],
) -> "Rephrased":
    from megatron_corew.config import AnswersConfig
    from megatron_corew.data.rephrase.progress import RephraseProgress
    from megatron_corew.data.rephrase.service import rephrase_all
    from megatron_corew.judges import judge_of

    with judge_of(AnswersConfig()) as judge, RephraseProgress(console, len(rows)) as progress:
        return rephrase_all(
            config,
            rows,
            journal,
            judge,
            address=address,
            post_mortem=post_mortem,
            on_done=progress.count,
        )
