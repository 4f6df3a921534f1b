r"""Tell sorts of answers apart: values, equations, inequalities, unions of intervals.

Nothing here joins answers by algebra. A verdict is given where it is certain for every reader, and
None otherwise.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from megatron_corew.answers.latex import split_outside
from megatron_corew.answers.meaning import Key
from megatron_corew.answers.probing import Probe, probe
from megatron_corew.answers.reading import read

Sort = Literal["value", "equation", "inequality", "union", "other"]

_EQUALS = re.compile("=")
_UNION = re.compile(r"\\cup(?![A-Za-z])")
_ORDERS = re.compile(r"[<>]|\\(?:leq|geq|neq)(?![A-Za-z])")
_INFINITE = {"\\infty": float("inf"), "+\\infty": float("inf"), "-\\infty": -float("inf")}
_CLOSE = 1e-9


@dataclass(frozen=True, slots=True)
class Interval:
    """One piece of a union; open at infinity."""

    start: float
    end: float
    closed: tuple[bool, bool]


@dataclass(frozen=True, slots=True)
class Shape:
    """The sort of an expression, with what decides about it."""

    sort: Sort
    value: Probe | None = None
    """Of a value."""
    sides: tuple[Probe, Probe, Probe] | None = None
    """Of an equation of two sides: left, right, left minus right."""
    intervals: tuple[Interval, ...] = ()
    """Of a union: disjoint, in order."""


@lru_cache(maxsize=1 << 14)
def shape(text: str) -> Shape:
    """Find the sort of an expression.

    Args:
        text: from ``Key.text``.
    """
    value = probe(text)
    if value is not None:
        return Shape("value", value=value)
    if _ORDERS.search(text):
        return Shape("inequality")
    sides = split_outside(text, _EQUALS)
    if len(sides) == 2:
        probes = probe(sides[0]), probe(sides[1]), probe(f"{sides[0]}-({sides[1]})")
        return Shape("equation", sides=probes if None not in probes else None)  # type: ignore[arg-type]
    pieces = [_interval(read(piece)) for piece in split_outside(text, _UNION)]
    if len(pieces) > 1 and None not in pieces:
        return Shape("union", intervals=_merged([piece for piece in pieces if piece]))
    return Shape("other")


def decide_expression(expression: Key, other: Key) -> bool | None:
    """Decide an expression against a set, sequence, matrix, names, or another expression.

    Args:
        expression: a key of that kind.
        other: a key of one of these kinds.
    """
    own = shape(expression.text)
    if other.kind == "expression":
        return _decide_shapes(own, shape(other.text))
    if own.sort == "value":
        # Something with one value is none of the rest.
        return False
    if own.sort == "other":
        return None
    if other.kind in ("matrix", "named"):
        return None if own.sort == "equation" and other.kind == "named" else False
    if other.kind == "sequence":
        if own.sort == "union":
            interval = _interval(other)
            return False if interval is None else _same_union(own.intervals, (interval,))
        return None if own.sort == "inequality" else False
    if own.sort in ("union", "inequality"):
        # A set of values is finite; one of inequalities may be the same in other words.
        return False if all(_is_value(element) for element in other.value) else None
    return None


def _is_value(key: Key) -> bool:
    return key.kind == "number" or (key.kind == "expression" and probe(key.text) is not None)


def _decide_shapes(a: Shape, b: Shape) -> bool | None:
    if "other" in (a.sort, b.sort):
        return None
    if a.sort == b.sort == "value":
        return False if a.value and b.value and a.value.differs(b.value) else None
    if a.sort == b.sort == "equation":
        return _same_line(a, b)
    if a.sort == b.sort == "union":
        return _same_union(a.intervals, b.intervals)
    if {a.sort, b.sort} == {"equation", "value"}:
        value, equation = (a, b) if a.value else (b, a)
        return _is_a_side(value, equation)
    if a.sort == b.sort or {a.sort, b.sort} == {"inequality", "union"}:
        return None
    return False


def _is_a_side(value: Shape, equation: Shape) -> bool | None:
    """x + y = 5 is 5 to math-verify."""
    if value.value is None or equation.sides is None:
        return None
    return False if all(value.value.differs(side) for side in equation.sides[:2]) else None


def _same_line(a: Shape, b: Shape) -> bool | None:
    """Linear equations have the same solutions only if one is a multiple of the other."""
    if a.sides is None or b.sides is None:
        return None
    one, other = a.sides[2], b.sides[2]
    if not (one.is_linear and other.is_linear):
        return None
    return None if one.is_multiple_of(other) else False


def _interval(key: Key | None) -> Interval | None:
    if key is None or key.kind != "sequence" or len(key.value[2]) != 2:
        return None
    left, right, ends = key.value
    start, end = (_end(each) for each in ends)
    if start is None or end is None or not start < end:
        return None
    return Interval(start, end, (left == "[", right == "]"))


def _end(key: Key) -> float | None:
    if key.text in _INFINITE:
        return _INFINITE[key.text]
    value = probe(key.text)
    if value is None or value.has_variables or value.values[0].imag:
        return None
    return value.values[0].real


def _merged(pieces: list[Interval]) -> tuple[Interval, ...]:
    done: list[Interval] = []
    for piece in sorted(pieces, key=lambda piece: (piece.start, not piece.closed[0])):
        last = done[-1] if done else None
        touches = last and last.end == piece.start and (last.closed[1] or piece.closed[0])
        if last and (piece.start < last.end or touches):
            far = max(last, piece, key=lambda each: (each.end, each.closed[1]))
            done[-1] = Interval(last.start, far.end, (last.closed[0], far.closed[1]))
        else:
            done.append(piece)
    return tuple(done)


def _same_union(a: tuple[Interval, ...], b: tuple[Interval, ...]) -> bool | None:
    if len(a) != len(b) or [piece.closed for piece in a] != [piece.closed for piece in b]:
        return False
    ends = [
        (x, y)
        for one, other in zip(a, b, strict=True)
        for x, y in ((one.start, other.start), (one.end, other.end))
    ]
    if all(x == y for x, y in ends):
        return True
    # Ends may be equal but for rounding, or decimals: that is not certain.
    apart = any(x != y and abs(x - y) > _CLOSE + 1e-3 * min(abs(x), abs(y)) for x, y in ends)
    return False if apart else None
