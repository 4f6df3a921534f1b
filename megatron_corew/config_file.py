"""YAML files and ``key=value`` overrides become a ``Config``, and a ``Config`` becomes YAML.

Every scalar is read as text and converted by the schema, never by YAML 1.1, which takes ``1e-6``
for text, ``no`` for false and ``08`` for an error. Only a bare ``null``, ``~`` or nothing is None;
quoted it is text. Files may build on others (``extends``) and refer to other keys
(``${run.seed}``; a literal ``${`` is written ``\\${``).
"""

import difflib
import itertools
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticUndefined

from megatron_corew.config import Config

S = TypeVar("S", bound=BaseModel)

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_YAML_STARTS = ("[", "{", '"', "'")
# pydantic's error types in the words of a YAML file; its own message serves for the others.
_NEEDS = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "float_parsing": "a number",
    "float_type": "a number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "model_type": "a section with keys",
    "string_type": "text",
    "tuple_type": "a list, as in [a,b]",
}


class Difference(NamedTuple):
    """One knob that two configurations set differently."""

    key: str
    """Dotted, as in an override."""
    first: Any
    second: Any


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a run's configuration.

    Args:
        path: YAML file. Its ``extends`` names one file or a list, relative to itself; later ones
            win over earlier ones, the file over all of them.
        overrides: ``section.key=value``; they win over the files. Lists as ``[a,b]``. A name that
            ends in ``.yaml`` is a further file, which wins over the ones before it.

    Returns:
        The checked configuration, with every default filled in.

    Raises:
        ValueError: an unreadable file, an unknown key, a value of the wrong kind, or a rule across
            keys is broken; one line that names the dotted key.
    """
    return load_section(path, Config, overrides)


def load_section(path: str | Path, schema: type[S], overrides: Sequence[str] = ()) -> S:
    """Read a YAML file of any schema; files, overrides and errors are those of ``load_config``."""
    try:
        files = [path, *filter(_is_file, overrides)]
        layers = [layer for file in files for layer in _layers(Path(file), ())]
        tree = OmegaConf.merge(_defaults(schema), *layers)
        for override in itertools.filterfalse(_is_file, overrides):
            key, value = _parse_override(override)
            OmegaConf.update(tree, key, value, merge=True, force_add=True)
        values = OmegaConf.to_container(tree, resolve=True)
    except OmegaConfBaseException as error:
        raise ValueError(f"{path}: {error.full_key or 'config'}: {_first_line(error)}") from error
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        explained = (_explain(detail, schema) for detail in error.errors())
        raise ValueError(" ".join(explained)) from error


def save_config(config: Config, path: str | Path) -> None:
    """Write the resolved configuration as YAML that ``load_config`` reads back equal.

    Args:
        config: What to write, all defaults included.
        path: File to write; it is replaced.
    """
    values = _escaped(config.model_dump(mode="json"))
    # Escapes outside ASCII: PyYAML folds some line separators into spaces when it writes them raw.
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=False, width=100)
    Path(path).write_text(text, encoding="utf-8")


def differences(first: Config, second: Config, *, ignoring: Sequence[str] = ()) -> list[Difference]:
    """The knobs on which two configurations disagree.

    Args:
        first: For example the configuration saved with a checkpoint.
        second: For example the one given now.
        ignoring: Dotted keys, or whole sections, that may differ.

    Returns:
        One entry per differing key, in the order of the schema.
    """
    others = dict(_leaves(second.model_dump()))
    return [
        Difference(key, value, others[key])
        for key, value in _leaves(first.model_dump())
        if value != others[key]
        and not any(key == name or key.startswith(f"{name}.") for name in ignoring)
    ]


class _TextLoader(yaml.BaseLoader):
    """All scalars are text; bare nulls are None; a key written twice is refused."""

    def construct_scalar(self, node: yaml.Node) -> Any:
        text = super().construct_scalar(node)  # type: ignore[arg-type]
        bare = isinstance(node, yaml.ScalarNode) and node.style is None
        return None if bare and text in _NULLS else text

    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> dict[Hashable, Any]:
        mapping = super().construct_mapping(node, deep=deep)  # type: ignore[arg-type]
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is not text")
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} stands twice")
            if "." in key:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} has a dot: write its parts as nested sections"
                )
        return mapping


def _layers(path: Path, opened: tuple[Path, ...]) -> list[DictConfig]:
    """The file and all it extends, lowest priority first."""
    path = path.resolve()
    if path in opened:
        chain = " -> ".join(step.name for step in (*opened[opened.index(path) :], path))
        raise ValueError(f"{path}: extends itself: {chain}. Remove one extends.")
    values = _read_file(path)
    parents = values.pop("extends", None) or []
    parents = [parents] if isinstance(parents, str) else parents
    if not all(isinstance(parent, str) for parent in parents):
        raise ValueError(f"{path}: extends: need a file name or a list of them, got {parents!r}.")
    lower = [
        layer for parent in parents for layer in _layers(path.parent / parent, (*opened, path))
    ]
    return [*lower, OmegaConf.create(values)]


def _read_file(path: Path) -> dict[str, Any]:
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), Loader=_TextLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: need a readable YAML file: {error}.") from error
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: not valid YAML: {_one_line(error)}.") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ValueError(f"{path}: need keys and values, got {_shown(values)}.")
    return values


def _is_file(override: str) -> bool:
    return override.endswith(".yaml") and "=" not in override


def _parse_override(override: str) -> tuple[str, Any]:
    key, equals, text = override.partition("=")
    key, text = key.strip(), text.strip()
    if not equals or not re.fullmatch(r"\w+(\.\w+)*", key):
        raise ValueError(f"override: need section.key=value, got {override!r}.")
    # Free text may hold colons and hashes: it is YAML only where it must be (lists, quotes).
    if not text.startswith(_YAML_STARTS):
        return key, None if text in _NULLS else text
    try:
        return key, yaml.load(text, Loader=_TextLoader)
    except yaml.YAMLError as error:
        raise ValueError(
            f"{key}: not a valid YAML value: {_one_line(error)}. Put quotes around the text."
        ) from error


def _defaults(section: type[BaseModel]) -> dict[str, Any]:
    """The schema's defaults as text, so that files can refer to keys they do not set."""
    tree: dict[str, Any] = {}
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            tree[name] = _defaults(field.annotation)
        elif field.default is not PydanticUndefined:
            tree[name] = _as_text(field.default)
    return tree


def _as_text(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_as_text(item) for item in value]
    return None if value is None else str(value)


def _escaped(value: Any) -> Any:
    """Protect ``${`` (and the backslashes before it) from being read as a reference."""
    if isinstance(value, dict):
        return {key: _escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", r"\1\1\\${", value)
    return value


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _explain(detail: ErrorDetails, schema: type[BaseModel]) -> str:
    """One pydantic error as: key, what was needed, what was got."""
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in detail["loc"])
    key, message = key.removeprefix("."), detail["msg"]
    if detail["type"] == "value_error":
        # A rule of the schema: its text already names the knob.
        return str(detail["ctx"]["error"])
    if detail["type"] == "extra_forbidden":
        return _explain_unknown(key, schema)
    if detail["type"] == "missing":
        return f"{key}: needed, got nothing. Set {key} in the file or on the command line."
    need = _NEEDS.get(detail["type"], message.removeprefix("Input should be "))
    if need.startswith(("greater", "less")):
        need = f"a number {need}"
    return f"{key}: need {need}, got {_shown(detail['input'])}."


def _explain_unknown(key: str, schema: type[BaseModel]) -> str:
    known = [name for name, _ in _known_keys(schema)]
    section, _, leaf = key.rpartition(".")
    # Either the right name in the wrong section, or a slip in the right one.
    elsewhere = [name for name in known if name.rpartition(".")[2] == leaf]
    close = elsewhere or difflib.get_close_matches(key, known, n=1, cutoff=0.7)
    if close:
        return f"{key}: unknown key. Did you mean {' or '.join(close)}?"
    siblings = [name for name, parent in _known_keys(schema) if parent == section]
    sections = list(schema.model_fields)
    return f"{key}: unknown key. Known keys here: {', '.join(siblings if section else sections)}."


def _known_keys(section: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every dotted key with the section it stands in."""
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _known_keys(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", prefix.removesuffix(".")


def _shown(value: Any) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]


def _one_line(error: Exception) -> str:
    return re.sub(r"\s+", " ", str(error)).strip()
