r"""Tell expressions apart by their values at fixed points, where no algebra is needed.

Every variable gets the same three positive values in every expression, the third between the
others, so that equal expressions have equal values, and different values prove a difference. Equal
values prove nothing: those pairs go to math-verify.

What math-verify might read differently has no values here (None): a function without brackets
around a long argument, a quotient followed by a product, relations, primes, ``\log`` without a
base. Where two readings are possible, the one that makes more expressions equal is taken: letters
differ by name and not by case, ``e`` and ``i`` are the constants, ``f(x)`` is a product.
"""

import math
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from megatron_corew.answers.estimates import (
    FUNCTIONS,
    NoValueError,
    Values,
    each,
    exact,
    has_disputed_root,
    logarithm,
    negated,
    over,
    plus,
    power,
    square_root,
    times,
)
from megatron_corew.answers.latex import braced_tokens

_MAX_TOKENS = 300
_MAX_DEPTH = 24
# Errors are estimated, not proven: ten times the estimate, and a billionth of the value, count
# as equal. Decimals may be rounded (0.333333 is 1/3), which changes any value a little more.
_SAFETY = 10.0
_EXACT_SLACK = 1e-9
_ROUNDED_SLACK = 1e-3

_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+")
_GREEK_NAMES = (
    "\\alpha \\beta \\gamma \\delta \\epsilon \\varepsilon \\zeta \\eta \\theta \\vartheta \\iota "
    "\\kappa \\lambda \\mu \\nu \\xi \\rho \\sigma \\tau \\upsilon \\phi \\varphi \\chi \\psi "
    "\\omega \\ell"
)
_GREEK = frozenset(_GREEK_NAMES.split())
_CONSTANTS = {"\\pi": complex(math.pi), "e": complex(math.e), "i": 1j}
_SPELLED_OUT = re.compile(
    r"sqrt|sin|cos|tan|cot|sec|csc|log|ln|exp|max|min|gcd|lcm|mod|lim|det|inf|arc|arg|deg|floor"
    r"|ceil|choose|and|or"
)


@dataclass(frozen=True, slots=True)
class Probe:
    """The values of one expression at the fixed points."""

    values: tuple[complex, ...]
    errors: tuple[float, ...]
    """Estimated absolute rounding error of each value."""
    has_decimals: bool
    has_variables: bool
    has_degrees: bool

    def differs(self, other: "Probe") -> bool:
        """Whether the two expressions are certainly different."""
        if self.has_degrees != other.has_degrees:
            # 90 degrees may be 90 or half of pi.
            return False
        rounded = self.has_decimals or other.has_decimals
        for a, b, error_a, error_b in zip(
            self.values, other.values, self.errors, other.errors, strict=True
        ):
            size = max(abs(a), abs(b))
            slack = _ROUNDED_SLACK * max(1.0, size) if rounded else _EXACT_SLACK * size
            if abs(a - b) > _SAFETY * (error_a + error_b) + slack:
                return True
        return False

    @property
    def is_linear(self) -> bool:
        """Whether the value at the point between the others is the mean of theirs."""
        first, second, middle = self.values
        size = abs(first) + abs(second) + abs(middle) + _SAFETY * sum(self.errors)
        return abs(first + second - 2 * middle) <= _EXACT_SLACK * size

    def is_multiple_of(self, other: "Probe") -> bool:
        """Whether the values of the two have one ratio; not certain with decimals."""
        (a, b, _), (c, d, _) = self.values, other.values
        slack = _ROUNDED_SLACK if self.has_decimals or other.has_decimals else _EXACT_SLACK
        return abs(a * d - b * c) <= slack * (abs(a * d) + abs(b * c) + 1e-9)


@lru_cache(maxsize=1 << 16)
def probe(text: str) -> Probe | None:
    r"""Evaluate an expression at the fixed points.

    Args:
        text: LaTeX of an expression, from ``Key.text``.

    Returns:
        Its values; None where it is no scalar expression, or one that others may read
        differently, or a value is too large. Nothing raises; time is linear in the text.
    """
    if len(text) > 2 * _MAX_TOKENS:
        return None
    tokens = braced_tokens(text)
    if len(tokens) > _MAX_TOKENS or _has_spelled_name(tokens):
        return None
    reader = _Reader(tokens)
    try:
        values = reader.sum(0)
    except (NoValueError, ArithmeticError, ValueError):
        return None
    if not reader.at_end:
        return None
    return Probe(
        tuple(value for value, _ in values),
        tuple(error for _, error in values),
        reader.has_decimals,
        reader.has_variables,
        reader.has_degrees,
    )


def _has_spelled_name(tokens: Sequence[str]) -> bool:
    letters = "".join(token if len(token) == 1 and token.isalpha() else " " for token in tokens)
    return _SPELLED_OUT.search(letters) is not None


def _variable(name: str) -> Values:
    points = [zlib.crc32(f"{name.casefold()}/{at}".encode()) for at in range(2)]
    first, second = (0.3 + 1.4 * point / 2**32 for point in points)
    return tuple((complex(value), 0.0) for value in (first, second, (first + second) / 2))


class _Reader:
    """A recursive-descent reader; every method takes the depth, so that nesting is bounded."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self._tokens = tokens
        self._place = 0
        self.has_decimals = False
        self.has_variables = False
        self.has_degrees = False

    @property
    def at_end(self) -> bool:
        return self._place == len(self._tokens)

    def _peek(self) -> str:
        return "" if self.at_end else self._tokens[self._place]

    def _take(self, *wanted: str) -> bool:
        found = not self.at_end and self._peek() in wanted
        self._place += found
        return found

    def sum(self, depth: int) -> Values:
        if depth > _MAX_DEPTH:
            raise NoValueError
        total = self._product(depth)
        while self._peek() in ("+", "-"):
            negative = self._take("-") or not self._take("+")
            term = self._product(depth)
            total = each(plus, total, negated(term) if negative else term)
        return total

    def _product(self, depth: int) -> Values:
        negative = False
        while self._peek() in ("+", "-"):
            negative ^= self._take("-") or not self._take("+")
        total, divided = self._factor(depth), False
        while True:
            if self._take("/", "\\div"):
                total, divided = each(over, total, self._signed_factor(depth)), True
            elif self._take("*", "\\times", "\\cdot"):
                total = each(times, total, self._signed_factor(depth))
            elif self._starts_factor():
                if divided or self._is_digit():
                    # 1/2x, and 2 3: readers differ.
                    raise NoValueError
                total = each(times, total, self._factor(depth))
            else:
                return negated(total) if negative else total

    def _signed_factor(self, depth: int) -> Values:
        negative = self._take("-")
        factor = self._factor(depth)
        return negated(factor) if negative else factor

    def _is_digit(self) -> bool:
        return self._peek().isascii() and self._peek().isdigit()

    def _starts_factor(self) -> bool:
        token = self._peek()
        named = token in _GREEK or token in _CONSTANTS or token in FUNCTIONS
        opens = token in ("(", "{", "[", "\\frac", "\\sqrt", "\\binom", "\\log", ".")
        letter = len(token) == 1 and token.isascii() and token.isalnum()
        return named or opens or letter

    def _factor(self, depth: int) -> Values:
        if self._peek() in FUNCTIONS or self._peek() == "\\log":
            return self._function(depth)
        value = self._atom(depth)
        if self._take_degrees():
            value = each(times, value, exact(complex(math.pi / 180)))
        elif self._take("^"):
            exponent = self._group("{", "}", depth)
            if len(set(exponent)) == 1 and any(has_disputed_root(a, exponent[0]) for a in value):
                raise NoValueError
            value = each(power, value, exponent)
        if self._peek() in ("^", "_", "!", "'"):
            raise NoValueError
        return value

    def _take_degrees(self) -> bool:
        if list(self._tokens[self._place : self._place + 4]) != ["^", "{", "\\circ", "}"]:
            return False
        self._place += 4
        self.has_degrees = True
        return True

    def _group(self, left: str, right: str, depth: int) -> Values:
        if not self._take(left):
            raise NoValueError
        value = self.sum(depth + 1)
        if not self._take(right):
            raise NoValueError
        return value

    def _function(self, depth: int) -> Values:
        name = self._peek()
        self._place += 1
        base = exponent = None
        if name == "\\log":
            if not self._take("_"):
                raise NoValueError
            base = self._group("{", "}", depth)
        if self._take("^"):
            exponent = self._group("{", "}", depth)
            if any(value.real <= 0 for value, _ in exponent):
                # sin^{-1} may be the arc sine.
                raise NoValueError
        argument = self._argument(depth)
        value = each(FUNCTIONS["\\ln" if base else name], argument)
        if base:
            value = each(over, value, each(logarithm, base))
        return each(power, value, exponent) if exponent else value

    def _argument(self, depth: int) -> Values:
        for left, right in (("(", ")"), ("{", "}"), ("[", "]")):
            if self._peek() == left:
                argument = self._group(left, right, depth)
                if self._peek() == "^":
                    raise NoValueError
                return argument
        argument = self._atom(depth)
        if self._take_degrees():
            argument = each(times, argument, exact(complex(math.pi / 180)))
        elif self._is_one_of_letters():
            argument = each(times, argument, self._atom(depth))
        # sin 3x y and sin x^2 are read in several ways; sin x cos x is not.
        if self._peek() in ("^", "!", "'", "/") or (
            self._starts_factor() and self._peek() not in FUNCTIONS
        ):
            raise NoValueError
        return argument

    def _is_one_of_letters(self) -> bool:
        token = self._peek()
        return token in _GREEK or token == "\\pi" or (len(token) == 1 and token.isalpha())

    def _atom(self, depth: int) -> Values:
        token = self._peek()
        for left, right in (("(", ")"), ("{", "}"), ("[", "]")):
            if token == left:
                return self._group(left, right, depth)
        if self._take("\\frac"):
            return each(over, self._group("{", "}", depth), self._group("{", "}", depth))
        if self._take("\\binom"):
            return self._binomial(depth)
        if self._take("\\sqrt"):
            return self._root(depth)
        if token in _CONSTANTS:
            self._place += 1
            return exact(_CONSTANTS[token])
        if token in _GREEK or (len(token) == 1 and token.isascii() and token.isalpha()):
            self._place += 1
            self.has_variables = True
            return _variable(token + self._subscript())
        return self._number()

    def _root(self, depth: int) -> Values:
        degree = self._group("[", "]", depth) if self._peek() == "[" else exact(2)
        radicand = self._group("{", "}", depth)
        if any(value == 0 for value, _ in radicand):
            raise NoValueError
        if degree == exact(2):
            # The principal root of a negative number is not disputed.
            return each(square_root, radicand)
        exponent = each(over, exact(1), degree)
        if any(has_disputed_root(a, exponent[0]) for a in radicand):
            raise NoValueError
        return each(power, radicand, exponent)

    def _binomial(self, depth: int) -> Values:
        (n, _), *_ = self._group("{", "}", depth)
        (k, _), *_ = self._group("{", "}", depth)
        whole = all(v.imag == 0 and v.real.is_integer() and 0 <= v.real <= 400 for v in (n, k))
        if not whole:
            raise NoValueError
        return exact(complex(math.comb(int(n.real), int(k.real))))

    def _subscript(self) -> str:
        if not self._take("_"):
            return ""
        if not self._take("{"):
            raise NoValueError
        name = ""
        while not self.at_end and self._peek().isalnum():
            name += self._peek()
            self._place += 1
        if not name or not self._take("}"):
            raise NoValueError
        return f"_{name}"

    def _number(self) -> Values:
        start = self._place
        while self._is_digit() or self._peek() == ".":
            self._place += 1
        text = "".join(self._tokens[start : self._place])
        if not _NUMBER.fullmatch(text):
            raise NoValueError
        if self._peek() == "\\frac" and self._is_plain_fraction():
            # 3\frac12 is a mixed number to some.
            raise NoValueError
        self.has_decimals |= "." in text
        return exact(complex(float(text)))

    def _is_plain_fraction(self) -> bool:
        rest = "".join(self._tokens[self._place : self._place + 40])
        return re.match(r"\\frac\{[0-9.]+\}\{[0-9.]+\}", rest) is not None
