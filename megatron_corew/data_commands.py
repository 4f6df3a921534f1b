"""`corew prepare` makes clean data, `corew data` shows them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from checkpoint_tools.command import one_line_errors
from megatron_corew.config import DataConfig
from megatron_corew.terminal import console

if TYPE_CHECKING:
    from megatron_corew.data.prepare.pipeline import Prepared
    from megatron_corew.data.prepare.reading import Request
    from megatron_corew.data.prepare.rows import SourceRows
    from megatron_corew.data.prepare.settings import PrepareSettings
    from megatron_corew.data.rendering import PromptRenderer

app = typer.Typer()
_LONGEST: int = DataConfig.model_fields["max_prompt_tokens"].default

# The options of `corew prepare`.
_What = Annotated[
    str,
    typer.Argument(
        help="math, dapo, open-rs, math-test, math500, gsm8k, amc, aime24, aime25, a hub id, "
        "or a file (.parquet, .jsonl, .json)."
    ),
]
_Out = Annotated[Path | None, typer.Option(help="Folder to write; data/NAME by default.")]
_Original = Annotated[
    str | None, typer.Option(help="File of the questions, in place of the hub's.")
]
_Rephrased = Annotated[
    str | None, typer.Option(help="File of the rephrased questions, joined by id.")
]
_Against = Annotated[
    list[str] | None,
    typer.Option(
        help="Evaluation set that must not be trained on: a name, NAME=FILE, or none. May "
        "stand several times; those of the paper by default."
    ),
]
_Keep = Annotated[
    bool, typer.Option("--keep", help="Keep contaminated questions; they are still reported.")
]
_Quarantine = Annotated[
    list[str] | None,
    typer.Option(
        help="Fault of a rephrasing that quarantines the pair (missing, placeholder, "
        "identical, 'diagram lost', 'numbers lost', 'too short', 'too long', 'another "
        "language', or none); the first four by default."
    ),
]
_Overlap = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        max=1.0,
        help="Share of an evaluation question's 13-grams that counts as contamination; 0.6 by "
        "default, 1 finds only whole questions.",
    ),
]
_Tokenizer = Annotated[
    Path | None, typer.Option(help="The policy's folder: drop prompts that are too long.")
]
_MaxPromptTokens = Annotated[
    int, typer.Option(min=1, help="Longest prompt of either view, in tokens.")
]
_SystemPrompt = Annotated[
    str | None, typer.Option(help="System message of the run, counted in the length.")
]
_ChatTemplateFile = Annotated[
    str | None, typer.Option(help="Chat template of the run, for models without one.")
]
_Split = Annotated[str | None, typer.Option(help="Split of a hub data set.")]
_Subset = Annotated[str | None, typer.Option(help="Configuration of a hub data set.")]
_PromptColumn = Annotated[str | None, typer.Option(help="Column of the question.")]
_RephrasedColumn = Annotated[
    str | None, typer.Option(help="Column of the rephrasing in the same file.")
]
_AnswerColumn = Annotated[str | None, typer.Option(help="Column of the answer.")]
_IdColumn = Annotated[str | None, typer.Option(help="Column that joins the views.")]


@app.command(
    epilog="Example: corew prepare math --original train_original.parquet --rephrased "
    "train_rewrite_Qwen3-32B.parquet --against math-test=test.parquet --out data/math"
)
def prepare(
    what: _What,
    out: _Out = None,
    original: _Original = None,
    rephrased: _Rephrased = None,
    against: _Against = None,
    keep: _Keep = False,
    quarantine: _Quarantine = None,
    overlap: _Overlap = None,
    tokenizer: _Tokenizer = None,
    max_prompt_tokens: _MaxPromptTokens = _LONGEST,
    system_prompt: _SystemPrompt = None,
    chat_template_file: _ChatTemplateFile = None,
    split: _Split = None,
    subset: _Subset = None,
    prompt_column: _PromptColumn = None,
    rephrased_column: _RephrasedColumn = None,
    answer_column: _AnswerColumn = None,
    id_column: _IdColumn = None,
) -> None:
    """Make one clean file of questions from any source, and say what was left out and why.

    Writes questions.parquet (id, source, messages, answer, rephrased_messages, meta),
    quarantine.jsonl, contaminated.jsonl and report.json. With local files nothing is asked of
    the network.
    """
    with one_line_errors():
        from megatron_corew.data.prepare.reading import Request

        request = Request(
            what=what,
            original=original,
            rephrased=rephrased,
            split=split,
            subset=subset,
            prompt_column=prompt_column,
            rephrased_column=rephrased_column,
            answer_column=answer_column,
            id_column=id_column,
        )
        _prepare(
            request,
            folder=out or Path("data") / request.name,
            against=against or [],
            settings=_prepare_settings(quarantine or [], overlap),
            keep_contaminated=keep,
            renderer=_renderer(tokenizer, system_prompt, chat_template_file),
            max_prompt_tokens=max_prompt_tokens,
        )


def _prepare(
    request: "Request",
    *,
    folder: Path,
    against: Sequence[str],
    settings: "PrepareSettings",
    keep_contaminated: bool,
    renderer: "PromptRenderer | None",
    max_prompt_tokens: int,
) -> None:
    from megatron_corew.data.prepare.output import write_folder
    from megatron_corew.data.prepare.reading import read_request

    with console.status("reading the questions") as status:
        source = read_request(request)
        status.update(f"checking {source.total} questions")
        prepared = _check(
            request,
            source,
            against,
            settings,
            keep_contaminated=keep_contaminated,
            renderer=renderer,
            max_prompt_tokens=max_prompt_tokens,
        )
    write_folder(prepared, folder)
    for line in prepared.report.lines():
        console.print(line)
    console.print(f"written to {folder}")


def _check(
    request: "Request",
    source: "SourceRows",
    against: Sequence[str],
    settings: "PrepareSettings",
    *,
    keep_contaminated: bool = False,
    renderer: "PromptRenderer | None" = None,
    max_prompt_tokens: int = _LONGEST,
) -> "Prepared":
    from megatron_corew.data.prepare.contamination import EvaluationIndex
    from megatron_corew.data.prepare.pipeline import prepare_rows
    from megatron_corew.data.prepare.reading import read_evaluation_sets

    sets = read_evaluation_sets(against, request.recipe)
    return prepare_rows(
        request.name,
        source,
        settings=settings,
        index=EvaluationIndex(sets, ngram=settings.ngram, overlap=settings.overlap),
        keep_contaminated=keep_contaminated,
        renderer=renderer,
        max_prompt_tokens=max_prompt_tokens,
    )


def _prepare_settings(quarantine: Sequence[str], overlap: float | None) -> "PrepareSettings":
    from megatron_corew.data.prepare.rephrasings import RephrasingFault
    from megatron_corew.data.prepare.settings import PrepareSettings

    known = get_args(RephrasingFault)
    wrong = [fault for fault in quarantine if fault not in (*known, "none")]
    if wrong:
        raise ValueError(f"--quarantine: need one of {', '.join(known)}, none; got {wrong[0]!r}.")
    chosen: dict[str, object] = {}
    if quarantine:
        chosen["quarantine"] = tuple(fault for fault in known if fault in quarantine)
    if overlap is not None:
        chosen["overlap"] = overlap
    return PrepareSettings.model_validate(chosen)


def _renderer(
    folder: Path | None, system_prompt: str | None, chat_template_file: str | None
) -> "PromptRenderer | None":
    """How the run will render prompts; None without a tokenizer."""
    if folder is None:
        if system_prompt is not None or chat_template_file is not None:
            raise ValueError(
                "--tokenizer: needed with --system-prompt and --chat-template-file, got none: "
                "they only matter for the length of prompts."
            )
        return None
    from megatron_corew.data.rendering import PromptRenderer
    from megatron_corew.preflight import load_tokenizer

    tokenizer = load_tokenizer(folder, knob="--tokenizer")
    has_template = bool(chat_template_file or tokenizer.chat_template)
    config = DataConfig(
        train=str(folder),
        system_prompt=system_prompt,
        chat_template=has_template,
        chat_template_file=chat_template_file,
    )
    return PromptRenderer(config, tokenizer)


@app.command(epilog="Example: corew data data/math --tokenizer models/Qwen3-8B-Base --samples 3")
def data(
    what: Annotated[
        str,
        typer.Argument(help="A folder of `corew prepare`, a name, a hub id, or a file."),
    ],
    rephrased: Annotated[
        str | None, typer.Option(help="File of the rephrased questions, joined by id.")
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(help="Evaluation set to look for, as in `corew prepare`; none by default."),
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="The policy's folder: lengths in tokens, not words.")
    ] = None,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="Count texts longer than this; needs --tokenizer.")
    ] = _LONGEST,
    samples: Annotated[int, typer.Option(min=0, help="Questions to show.")] = 3,
    seed: Annotated[int, typer.Option(help="Which questions to show.")] = 0,
) -> None:
    """Show what is in a data set: counts, lengths, samples, problems. Nothing is written."""
    with one_line_errors():
        from megatron_corew.data.prepare import overview
        from megatron_corew.data.prepare.reading import Request, read_request
        from megatron_corew.data.prepare.schema import QUESTIONS_FILE

        inside = Path(what) / QUESTIONS_FILE
        request = Request(what=str(inside) if inside.is_file() else what, rephrased=rephrased)
        with console.status("reading and checking"):
            source = read_request(request)
            prepared = _check(request, source, against or ["none"], _prepare_settings([], None))
        if not source.rows:
            raise ValueError(f"{what}: need at least one question, got {source.total} broken rows.")
        length, unit, limit = _measure(tokenizer, max_tokens)
        for line in (
            *overview.count_lines(source.rows),
            *overview.length_lines(source.rows, length, unit, limit),
            *prepared.report.problem_lines(),
            *overview.sample_lines(source.rows, samples, seed),
        ):
            console.print(line)


def _measure(
    tokenizer: Path | None, max_tokens: int
) -> tuple[Callable[[str], int], str, int | None]:
    """How to measure a text, in what unit, and the limit in this unit."""
    if tokenizer is None:
        return (lambda text: len(text.split())), "words", None
    from megatron_corew.data.rendering import PromptRenderer
    from megatron_corew.preflight import load_tokenizer

    config = DataConfig(train=str(tokenizer), chat_template=False)
    renderer = PromptRenderer(config, load_tokenizer(tokenizer, knob="--tokenizer"))

    def tokens(text: str) -> int:
        return len(renderer.prompt(text, "original", text[:40]).token_ids)

    return tokens, "tokens", max_tokens
