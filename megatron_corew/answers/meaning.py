"""The meaning of an answer as a hashable value, and how it is written for math-verify."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

Kind = Literal[
    "number",
    "expression",
    "word",
    "choice",
    "set",
    "sequence",
    "matrix",
    "named",
    "quantities",
    "opaque",
]

# Beyond this a number is compared with numbers only, and never written out.
MAX_WRITTEN_BITS = 4_000


@dataclass(frozen=True, slots=True)
class Key:
    """The meaning of one answer: hashable, equal for equal answers."""

    kind: Kind
    value: Any
    """Fraction (number), text (expression, word, choice, opaque), frozenset of keys (set),
    (left, right, keys) (sequence), rows of keys (matrix), frozenset of (name, key) (named),
    pairs of (Fraction, unit) (quantities)."""

    @property
    def text(self) -> str:
        """LaTeX that depends on the meaning only, not on the spelling that was read."""
        return _WRITERS[self.kind](self.value) if self.kind in _WRITERS else str(self.value)

    @property
    def is_writable(self) -> bool:
        """Whether the text says it all: huge numbers are abridged."""
        return self.kind != "number" or _bits(self.value) <= MAX_WRITTEN_BITS


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _number(value: Fraction) -> str:
    if _bits(value) > MAX_WRITTEN_BITS:
        return f"\\text{{a number of {_bits(value)} bits}}"
    if value.denominator == 1:
        return str(value.numerator)
    sign = "-" if value < 0 else ""
    return f"{sign}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


def _set(keys: frozenset[Key]) -> str:
    return "\\{" + ",".join(sorted(key.text for key in keys)) + "\\}"


def _sequence(value: tuple[str, str, tuple[Key, ...]]) -> str:
    left, right, keys = value
    return left + ",".join(key.text for key in keys) + right


def _matrix(rows: tuple[tuple[Key, ...], ...]) -> str:
    lines = "\\\\".join("&".join(key.text for key in row) for row in rows)
    return f"\\begin{{pmatrix}}{lines}\\end{{pmatrix}}"


def _named(pairs: frozenset[tuple[str, Key]]) -> str:
    return ",".join(sorted(f"{name}={key.text}" for name, key in pairs))


def _quantities(pairs: tuple[tuple[Fraction, str], ...]) -> str:
    return " ".join(f"{float(size):.12g}\\text{{ {unit}}}" for size, unit in pairs)


_WRITERS: dict[str, Any] = {
    "number": _number,
    "set": _set,
    "sequence": _sequence,
    "matrix": _matrix,
    "named": _named,
    "quantities": _quantities,
}
