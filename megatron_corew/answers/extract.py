r"""Find the final answer in a response by the rules that a data set calls for.

``boxed`` is the last complete box (see ``boxes``). The others look for what data sets without boxes
end with, always the last of its kind:

- ``hashes``: the rest of the line behind ``####``.
- ``phrase``: what follows "(final) answer is", or "answer:", up to the end of the sentence.
- ``choice``: a letter A to J in brackets, behind "answer", "option" or "choice", or at the end.
- ``last_number``: the last number, with a sign, thousands separators, decimals or a slash.
"""

import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from megatron_corew.answers.boxes import last_boxed

Extractor = Literal["boxed", "hashes", "phrase", "choice", "last_number"]

_HASHES = re.compile(r"####[ \t]*([^\n]*)")
_PHRASE = re.compile(r"\banswer\s{0,3}(?:is|are|:|=)[ \t:]*", re.IGNORECASE)
_MARKED = re.compile(
    r"\s*(?:\$\$(.+?)\$\$|\$(.+?)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]|\*\*(.+?)\*\*)", re.DOTALL
)
_SENTENCE_END = re.compile(r"[.!?](?=\s|$)|\n|$")
_LONGEST_PHRASE = 1_000
_CHOICE = re.compile(
    r"\(([A-J])\)|(?i:\b(?:answer|option|choice)(?:\s{1,3}is)?)[ \t:*]{1,4}([A-J])\b"
    r"|(?<![A-Za-z0-9])([A-J])[.)*]{0,3}\s*\Z"
)
_NUMBER = re.compile(r"(?<![\w.])[-\u2212]?[0-9][0-9,]*(?:\.[0-9]+)?(?:/[0-9]+)?")


def candidates(text: str, extractors: Sequence[Extractor]) -> Iterator[str]:
    """Find answers, in the order of preference.

    Args:
        text: a response.
        extractors: names of rules, the preferred one first.

    Returns:
        What each rule finds, without surrounding blanks; nothing for a rule that finds nothing.
    """
    for name in extractors:
        found = _RULES[name](text)
        if found is not None:
            yield found.strip()


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    found = deque(pattern.finditer(text), maxlen=1)
    return found[0] if found else None


def _behind_hashes(text: str) -> str | None:
    match = _last(_HASHES, text)
    return match[1] if match else None


def _behind_phrase(text: str) -> str | None:
    match = _last(_PHRASE, text)
    if match is None:
        return None
    rest = text[match.end() : match.end() + _LONGEST_PHRASE]
    marked = _MARKED.match(rest)
    if marked:
        return next(group for group in marked.groups() if group is not None)
    end = _SENTENCE_END.search(rest)
    return rest[: end.start()] if end else rest


def _choice(text: str) -> str | None:
    match = _last(_CHOICE, text)
    return next(group for group in match.groups() if group) if match else None


def _last_number(text: str) -> str | None:
    match = _last(_NUMBER, text)
    return match[0].rstrip(",") if match else None


_RULES: dict[Extractor, Callable[[str], str | None]] = {
    "boxed": last_boxed,
    "hashes": _behind_hashes,
    "phrase": _behind_phrase,
    "choice": _choice,
    "last_number": _last_number,
}
