r"""Exact values of answers that are plain arithmetic: ``\frac{1}{2^{99}}``, ``1.2\times10^{3}``.

Everything is a Fraction; what is not arithmetic, undefined, or too large to be worth it has no
value here (None) and is left to math-verify.
"""

import math
import re
from collections.abc import Sequence
from fractions import Fraction

# 2004! has 19 thousand bits. Larger numbers are not answers, and cost time.
_MAX_BITS = 1 << 15
_MAX_FACTORIAL = 3_000
_MAX_DEPTH = 24
_NUMBER = re.compile(
    r"(?P<whole>[0-9]*)(?:\.(?P<decimals>[0-9]*))?"
    r"(?:\\(?:overline|bar|dot)\{(?P<repeating>[0-9]+)\})?(?:[eE](?P<exponent>[-+]?[0-9]{1,4}))?"
)
_PRODUCTS = {"\\times", "\\cdot", "*"}
_QUOTIENTS = {"/", "\\div"}


class _NoValueError(Exception):
    """The tokens are not arithmetic."""


def exact_value(tokens: Sequence[str]) -> Fraction | None:
    r"""Evaluate plain arithmetic exactly.

    Knows decimals (also repeating and with an exponent), fractions, mixed numbers
    (``3\frac{1}{2}`` is 7/2), + - x / ^ !, brackets, and roots of perfect squares. A product
    without a sign has no value here.

    Args:
        tokens: from ``latex.braced_tokens``.

    Returns:
        The value, or None for anything else.
    """
    reader = _Reader(tokens)
    try:
        value = reader.sum(0)
    except _NoValueError:
        return None
    return value if reader.at_end else None


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > _MAX_BITS:
        raise _NoValueError
    return value


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    size = max(base.numerator.bit_length(), base.denominator.bit_length())
    whole = exponent.denominator == 1 and abs(exponent) * size <= _MAX_BITS
    if not whole or (base == 0 and exponent <= 0):
        raise _NoValueError
    return Fraction(base ** int(exponent))


def _root(value: Fraction) -> Fraction:
    if value < 0:
        raise _NoValueError
    root = Fraction(math.isqrt(value.numerator), math.isqrt(value.denominator))
    if root * root != value:
        raise _NoValueError
    return root


class _Reader:
    """A recursive-descent reader; every method takes the depth, so that nesting is bounded."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self._tokens = tokens
        self._place = 0

    @property
    def at_end(self) -> bool:
        return self._place == len(self._tokens)

    def _peek(self) -> str:
        return "" if self.at_end else self._tokens[self._place]

    def _take(self, *wanted: str) -> bool:
        found = self._peek() in wanted and not self.at_end
        self._place += found
        return found

    def sum(self, depth: int) -> Fraction:
        if depth > _MAX_DEPTH:
            raise _NoValueError
        total = self._product(depth)
        while self._peek() in ("+", "-"):
            negative = self._take("-") or not self._take("+")
            term = self._product(depth)
            total = _bounded(total - term if negative else total + term)
        return total

    def _product(self, depth: int) -> Fraction:
        total = self._signed(depth)
        while self._peek() in _PRODUCTS | _QUOTIENTS:
            divide = self._take(*_QUOTIENTS) or not self._take(*_PRODUCTS)
            factor = self._signed(depth)
            if divide and factor == 0:
                raise _NoValueError
            total = _bounded(total / factor if divide else total * factor)
        return total

    def _signed(self, depth: int) -> Fraction:
        negative = False
        while self._peek() in ("+", "-"):
            negative ^= self._take("-") or not self._take("+")
        value = self._raised(depth)
        return -value if negative else value

    def _raised(self, depth: int) -> Fraction:
        value = self._atom(depth)
        if self._take("!"):
            if value.denominator != 1 or not 0 <= value <= _MAX_FACTORIAL:
                raise _NoValueError
            value = Fraction(math.factorial(int(value)))
        if self._take("^"):
            value = _bounded(_power(value, self._group("{", "}", depth)))
        return _bounded(value)

    def _group(self, left: str, right: str, depth: int) -> Fraction:
        if not self._take(left):
            raise _NoValueError
        value = self.sum(depth + 1)
        if not self._take(right):
            raise _NoValueError
        return value

    def _atom(self, depth: int) -> Fraction:
        token = self._peek()
        if token == "(":
            return self._group("(", ")", depth)
        if token == "{":
            return self._group("{", "}", depth)
        if self._take("\\frac"):
            numerator = self._group("{", "}", depth)
            denominator = self._group("{", "}", depth)
            if denominator == 0:
                raise _NoValueError
            return numerator / denominator
        if self._take("\\sqrt"):
            return _root(self._group("{", "}", depth))
        return self._number(depth)

    def _number(self, depth: int) -> Fraction:
        text = "".join(self._tokens[self._place :])
        match = _NUMBER.match(text)
        if match is None or not (match["whole"] or match["decimals"] or match["repeating"]):
            raise _NoValueError
        self._skip(match.end())
        whole, decimals, repeating = match["whole"], match["decimals"], match["repeating"]
        if repeating and decimals is None:
            raise _NoValueError
        value = Fraction(int(whole + (decimals or "") or "0"), 10 ** len(decimals or ""))
        if repeating:
            nines = 10 ** len(repeating) - 1
            value += Fraction(int(repeating), nines * 10 ** len(decimals or ""))
        if match["exponent"]:
            value *= _power(Fraction(10), Fraction(int(match["exponent"])))
        if decimals is None and self._peek() == "\\frac":
            return value + self._proper_fraction(depth)
        return value

    def _skip(self, length: int) -> None:
        while length > 0:
            length -= len(self._tokens[self._place])
            self._place += 1

    def _proper_fraction(self, depth: int) -> Fraction:
        """The second part of a mixed number; anything else would be a product."""
        fraction = self._atom(depth)
        if not 0 < fraction < 1:
            raise _NoValueError
        return fraction
