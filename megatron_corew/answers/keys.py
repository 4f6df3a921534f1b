r"""What an answer means, as a key: equal keys mean equal answers, and most unequal keys are
decided here too, so that math-verify is asked only about real expressions.

Readings (each is one choice, made once for votes and rewards):
    1. A percent sign, a currency sign, degrees and a unit are dropped: ``50\%`` is 50 and not
       0.5, ``5 cm`` is 5 and also ``5 m``, 90 degrees is 90 and not pi/2. An answer of several
       quantities (``3 hours 20 minutes``) keeps its units.
    2. ``1,000`` is a thousand; with a blank (``1, 000``) or in brackets it is a list. ``101_2``
       is its value, 5.
    3. Numbers are exact. A decimal with at least 6 decimals, 4 digits of them significant, also
       equals a number that rounds to it (``0.333333`` is 1/3, ``0.333`` is not).
    4. A bare list and ``\pm`` are sets: order and repetition do not count. Round and square
       brackets are sequences: order and brackets count. A set of one is its element.
    5. ``x = 5`` is 5; different names (``x=1, y=2``) are kept. ``x \in S`` is S.
    6. A single capital letter, bare or in round brackets or in front of the option's text, is a
       choice. Letters differ by case; longer words do not.
    7. An answer without any letter, digit or known symbol (``\foo``, ``?``) is no answer.
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import lru_cache

from megatron_corew.answers.latex import clean
from megatron_corew.answers.meaning import Key
from megatron_corew.answers.probing import probe
from megatron_corew.answers.reading import read
from megatron_corew.answers.shapes import decide_expression

# Longer answers are compared as text only: nobody states a result in a thousand characters.
_MAX_LENGTH = 1_000
_ROUNDED_DECIMALS = range(6, 51)
_ROUNDED_MIN_DIGITS = 1_000
_LONGEST_DECIMAL = 10 ** _ROUNDED_DECIMALS[-1]
# The smallest divisor that takes six decimals: 2 to the sixth.
_ROUNDED_MIN_DIVISOR = 2 ** _ROUNDED_DECIMALS[0]
_SHORT_WORD = 3
_MAX_UNEQUAL_ELEMENTS = 32


def canonical_key(answer: str) -> Key | None:
    r"""Read an answer.

    Example: ``0.5``, ``\frac12``, ``1/2`` and ``\dfrac{2}{4}`` have one key; so have ``C``,
    ``\text{(C)}`` and ``(C)``.

    Args:
        answer: any text. Nothing raises, whatever the characters.

    Returns:
        The key, with ``canonical_key(key.text) == key`` where ``key.is_writable``; None where
        there is no answer in the text.
    """
    if len(answer) > _MAX_LENGTH:
        return Key("opaque", answer)
    return _cached_key(answer)


@lru_cache(maxsize=1 << 16)
def _cached_key(answer: str) -> Key | None:
    key = read(clean(answer))
    # What is written for a key must mean that key. Odd texts need a second look; those that
    # never settle are compared letter by letter.
    for _ in range(4):
        if key is None or key.kind == "number":
            return key
        again = read(clean(key.text)) if len(key.text) <= _MAX_LENGTH else None
        if again == key:
            return key
        if again is None:
            break
        key = again
    return Key("opaque", answer)


def decides(a: Key, b: Key) -> bool | None:
    """Decide the equality of two answers without algebra.

    Args:
        a: a key.
        b: another one; the order does not matter.

    Returns:
        True or False where that is plain, None where only algebra can tell.
    """
    if a == b:
        return True
    if a.kind != b.kind:
        return _decides_mixed(a, b)
    if a.kind == "number":
        return _rounds_to(a.value, b.value) or _rounds_to(b.value, a.value)
    if a.kind == "expression":
        return decide_expression(a, b)
    if a.kind == "word":
        return None if _may_be_products(a.value, b.value) else False
    if a.kind == "set":
        return _same_elements(a.value, b.value)
    if a.kind == "sequence":
        return _same_in_order(a.value[2], b.value[2]) if a.value[:2] == b.value[:2] else False
    if a.kind == "matrix":
        return _same_rows(a.value, b.value)
    if a.kind == "named":
        return _same_values(dict(a.value), dict(b.value))
    return False


def _decides_mixed(a: Key, b: Key) -> bool | None:
    """Decide two answers of different kinds."""
    kinds = {a.kind, b.kind}
    if kinds == {"matrix", "sequence"}:
        return _is_vector(*((a, b) if a.kind == "matrix" else (b, a)))
    if kinds == {"named", "sequence"}:
        named, sequence = (a, b) if a.kind == "named" else (b, a)
        return None if len(named.value) == len(sequence.value[2]) else False
    if "expression" not in kinds:
        return False
    expression, other = (a, b) if a.kind == "expression" else (b, a)
    if other.kind == "number":
        return _is_number(expression, other)
    if other.kind == "word":
        # pq may be the product of p and q.
        short = len(other.value) <= _SHORT_WORD and other.value.isascii()
        return _unless_values_differ(expression, other) if short else False
    if other.kind in ("set", "sequence", "matrix", "named"):
        return decide_expression(expression, other)
    return False


def _is_vector(matrix: Key, sequence: Key) -> bool | None:
    rows, items = matrix.value, sequence.value[2]
    cells = [cell for row in rows for cell in row]
    if len(cells) != len(items) or len(rows) not in (1, len(cells)):
        return False
    return False if _same_in_order(cells, items) is False else None


def _unless_values_differ(expression: Key, word: Key) -> bool | None:
    one, other = probe(expression.text), probe(word.text)
    return False if one is None or other is None or one.differs(other) else None


def _is_number(expression: Key, number: Key) -> bool | None:
    if not number.is_writable:
        return False
    found = probe(expression.text)
    if found and not found.has_variables and found.values[0].imag == 0:
        value, error = found.values[0].real, found.errors[0]
        if _rounds_to(number.value, Fraction(value), margin=-Fraction(10 * error)):
            return True
    return decide_expression(expression, Key("expression", number.text))


def _rounds_to(decimal: Fraction, value: Fraction, margin: Fraction = Fraction(0)) -> bool:
    """Whether ``value`` rounds to the decimal, which must have digits enough to mean it."""
    if _LONGEST_DECIMAL % decimal.denominator or decimal.denominator < _ROUNDED_MIN_DIVISOR:
        return False
    places = next(d for d in range(_ROUNDED_DECIMALS.stop) if 10**d % decimal.denominator == 0)
    scaled = abs(decimal) * 10**places
    if places not in _ROUNDED_DECIMALS or scaled < _ROUNDED_MIN_DIGITS:
        return False
    half = Fraction(1, 2) + margin * 10**places
    return abs(abs(value) * 10**places - scaled) <= half and (value < 0) == (decimal < 0)


def _may_be_products(a: str, b: str) -> bool:
    """Short words may be products of letters: ``ab`` and ``ba``."""
    return len(a) <= _SHORT_WORD and sorted(a) == sorted(b)


def _all(verdicts: Iterable[bool | None]) -> bool | None:
    known = set(verdicts)
    if False in known:
        return False
    return None if None in known else True


def _any(verdicts: Iterable[bool | None]) -> bool | None:
    known = set(verdicts)
    if True in known:
        return True
    return None if None in known else False


def _same_in_order(a: Sequence[Key], b: Sequence[Key]) -> bool | None:
    if len(a) != len(b):
        return False
    return _all(decides(x, y) for x, y in zip(a, b, strict=True))


def _same_rows(a: Sequence[Sequence[Key]], b: Sequence[Sequence[Key]]) -> bool | None:
    if len(a) != len(b):
        return False
    return _all(_same_in_order(x, y) for x, y in zip(a, b, strict=True))


def _same_elements(a: frozenset[Key], b: frozenset[Key]) -> bool | None:
    # Long sets are compared by their keys alone: their elements would make too many pairs.
    if len(a ^ b) > _MAX_UNEQUAL_ELEMENTS:
        return False
    left = (_any(decides(x, y) for y in b) for x in a - b)
    right = (_any(decides(y, x) for x in a) for y in b - a)
    return _all([*left, *right])


def _same_values(a: dict[str, Key], b: dict[str, Key]) -> bool | None:
    if a.keys() != b.keys():
        return None
    return _all(decides(a[name], b[name]) for name in a)
