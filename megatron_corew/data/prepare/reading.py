"""Finds a data set by its name, its hub id or its files, whichever the user gave."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from megatron_corew.config import DataConfig
from megatron_corew.data.prepare.rows import SourceRows, read_source
from megatron_corew.data.prepare.schema import QUESTIONS_FILE
from megatron_corew.data.prepare.sources import RECIPES, Layout, Recipe, detect_layout
from megatron_corew.data.sources import read_rows

NOTHING = "none"
"""In place of evaluation sets: compare with nothing."""

# The reader of a run speaks of knobs of a run; here they are options.
_OPTIONS = {
    "data.train_rephrased": "--rephrased",
    "data.train": "--original",
    "data.prompt_column": "--prompt-column",
    "data.rephrased_column": "--rephrased-column",
    "data.answer_column": "--answer-column",
    "data.id_column": "--id-column",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What the user asked to be read."""

    what: str
    """Name of a recipe, hub id, or file."""
    original: str | None = None
    """File or hub id in place of the recipe's own."""
    rephrased: str | None = None
    """File with the rephrasings."""
    split: str | None = None
    """Split of a hub data set; None: the recipe's, else ``train``."""
    subset: str | None = None
    """Configuration of a hub data set; None: the recipe's."""
    prompt_column: str | None = None
    rephrased_column: str | None = None
    answer_column: str | None = None
    id_column: str | None = None
    """Columns; None: recognised."""

    @property
    def recipe(self) -> Recipe | None:
        """The recipe of this name, if there is one."""
        return RECIPES.get(self.what)

    @property
    def name(self) -> str:
        """Short name of the data set: the beginning of every id."""
        if self.what in RECIPES:
            return self.what
        parts = [part for part in self.what.replace("\\", "/").split("/") if part]
        last = parts[-2] if parts[-1] == QUESTIONS_FILE and len(parts) > 1 else parts[-1]
        return last.rsplit(".", 1)[0] if "." in last else last


def read_request(request: Request) -> SourceRows:
    """Read a data set.

    Returns:
        All its rows in the one schema.

    Raises:
        ValueError: no such data set, or unknown columns; the message names the option.
        RuntimeError: the hub cannot be reached; give files by ``--original``.
    """
    recipe = request.recipe
    source = request.original or (recipe.hub if recipe else request.what)
    split = request.split or (recipe.split if recipe else "train")
    subset = request.subset or (recipe.subset if recipe else None)
    try:
        layout = _layout(request, source, split, subset)
        config = DataConfig(
            train=source,
            train_rephrased=request.rephrased,
            split=split,
            subset=subset,
            prompt_column=layout.prompt,
            rephrased_column=layout.rephrased,
            answer_column=layout.answer,
            id_column=layout.id,
        )
        return read_source(config, layout=layout, name=request.name)
    except ValueError as error:
        raise ValueError(_in_options(str(error))) from error
    except RuntimeError as error:
        raise RuntimeError(_in_options(str(error))) from error


def read_evaluation_sets(names: Sequence[str], recipe: Recipe | None) -> dict[str, list[str]]:
    """Read the questions that must not be trained on.

    Args:
        names: recipes, hub ids, files or ``NAME=FILE``; empty: those of the recipe; ``none``: none.
        recipe: of the data set that is prepared.

    Returns:
        Name -> questions.

    Raises:
        ValueError: no such set.
        RuntimeError: the hub cannot be reached; name local files, or ``none``.
    """
    chosen = tuple(names) or (recipe.against if recipe else ())
    if chosen == (NOTHING,):
        return {}
    sets: dict[str, list[str]] = {}
    for text in chosen:
        name, equals, file = text.partition("=")
        request = Request(what=name, original=file) if equals else Request(what=text)
        try:
            rows = read_request(request).rows
        except (ValueError, RuntimeError) as error:
            raise type(error)(
                f"--against {text}: {error} Give NAME=FILE, or --against {NOTHING}."
            ) from error
        sets[name if equals else text] = [row.question for row in rows]
    return sets


def _layout(request: Request, source: str, split: str, subset: str | None) -> Layout:
    rows = read_rows(source, split=split, subset=subset, knob="--original")
    if request.prompt_column is not None:
        layout = Layout(
            prompt=request.prompt_column,
            answer=request.answer_column,
            id=request.id_column,
            rephrased=request.rephrased_column,
        )
    else:
        found = detect_layout(rows, source)
        layout = replace(
            found,
            answer=request.answer_column or found.answer,
            id=request.id_column or found.id,
            rephrased=request.rephrased_column or found.rephrased,
        )
    return layout if request.rephrased is None else replace(layout, rephrased=None)


def _in_options(message: str) -> str:
    for knob, option in _OPTIONS.items():
        message = message.replace(knob, option)
    return message
