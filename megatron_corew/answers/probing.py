r"""Tell expressions apart by their values at fixed points, where no algebra is needed.

Every variable gets the same three positive values in every expression, the third between the
others, so that equal expressions have equal values, and different values prove a difference. Equal
values prove nothing: those pairs go to math-verify.

What math-verify might read differently has no values here (None): a function without brackets
around a long argument, a quotient followed by a product, relations, primes, ``\log`` without a
base. Where two readings are possible, the one that makes more expressions equal is taken: letters
differ by name and not by case, ``e`` and ``i`` are the constants, ``f(x)`` is a product.
"""

import cmath
import math
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from megatron_corew.answers.latex import braced_tokens

_NUM_POINTS = 3
_MAX_TOKENS = 300
_MAX_DEPTH = 24
_LARGEST = 1e200
_EPS = 1e-15
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


class _NoValueError(Exception):
    """The text has no value here."""


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
    except (_NoValueError, ArithmeticError, ValueError):
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


# A value at every point, each with its error.
Values = tuple[tuple[complex, float], ...]


def _exact(value: complex) -> Values:
    return ((value, _EPS * abs(value)),) * _NUM_POINTS


def _variable(name: str) -> Values:
    points = [zlib.crc32(f"{name.casefold()}/{at}".encode()) for at in range(2)]
    first, second = (0.3 + 1.4 * point / 2**32 for point in points)
    return tuple((complex(value), 0.0) for value in (first, second, (first + second) / 2))


def _checked(value: complex, error: float) -> tuple[complex, float]:
    size = abs(value)
    # Comparisons with NaN are false.
    if not size < _LARGEST or not error < _LARGEST or (size and size < 1 / _LARGEST):
        raise _NoValueError
    return value, error + _EPS * size


def _each(function: Callable[..., tuple[complex, float]], *arguments: Values) -> Values:
    return tuple(_checked(*function(*at)) for at in zip(*arguments, strict=True))


Point = tuple[complex, float]


def _plus(a: Point, b: Point) -> Point:
    return a[0] + b[0], a[1] + b[1]


def _times(a: Point, b: Point) -> Point:
    return a[0] * b[0], abs(a[0]) * b[1] + abs(b[0]) * a[1] + a[1] * b[1]


def _over(a: Point, b: Point) -> Point:
    if abs(b[0]) <= 1e3 * b[1] or b[0] == 0:
        raise _NoValueError
    value = a[0] / b[0]
    return value, 2 * (a[1] + abs(value) * b[1]) / abs(b[0])


def _power(a: Point, b: Point) -> Point:
    whole = b[0].imag == 0 and b[0].real.is_integer()
    if a[0] == 0 or abs(a[0]) <= 1e3 * a[1]:
        if a == (0, 0.0) and whole and b[0].real > 0:
            return 0j, 0.0
        raise _NoValueError
    if abs(b[0]) * abs(cmath.log(a[0])) > 400:
        raise _NoValueError
    value = a[0] ** int(b[0].real) if whole and abs(b[0]) < 1000 else a[0] ** b[0]
    logarithm = abs(cmath.log(a[0]))
    relative = abs(b[0]) * a[1] / abs(a[0]) + logarithm * b[1] + _EPS * (1 + abs(b[0]) * logarithm)
    return value, 2 * abs(value) * relative


def _has_disputed_root(a: Point, exponent: Point) -> bool:
    """Whether some take the real root, others the principal one."""
    return a[0].imag == 0 and a[0].real < 0 and not exponent[0].real.is_integer()


def _logarithm(a: Point) -> Point:
    if a[0].imag != 0 or a[0].real <= 1e3 * a[1]:
        raise _NoValueError
    return cmath.log(a[0]), 2 * a[1] / abs(a[0])


def _smooth(
    function: Callable[[complex], complex], slope: Callable[[complex], float]
) -> Callable[[Point], Point]:
    def at(a: Point) -> Point:
        value = function(a[0])
        return value, 2 * slope(value) * a[1] + _EPS * slope(value) * abs(a[0])

    return at


_FUNCTIONS: dict[str, Callable[[Point], Point]] = {
    "\\ln": _logarithm,
    "\\exp": _smooth(cmath.exp, abs),
    "\\sin": _smooth(cmath.sin, lambda value: 1 + abs(value)),
    "\\cos": _smooth(cmath.cos, lambda value: 1 + abs(value)),
    "\\tan": _smooth(cmath.tan, lambda value: 1 + abs(value) ** 2),
    "\\cot": _smooth(lambda a: 1 / cmath.tan(a), lambda value: 1 + abs(value) ** 2),
    "\\sec": _smooth(lambda a: 1 / cmath.cos(a), lambda value: 1 + abs(value) ** 2),
    "\\csc": _smooth(lambda a: 1 / cmath.sin(a), lambda value: 1 + abs(value) ** 2),
}


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
            raise _NoValueError
        total = self._product(depth)
        while self._peek() in ("+", "-"):
            negative = self._take("-") or not self._take("+")
            term = self._product(depth)
            total = _each(_plus, total, _negated(term) if negative else term)
        return total

    def _product(self, depth: int) -> Values:
        negative = False
        while self._peek() in ("+", "-"):
            negative ^= self._take("-") or not self._take("+")
        total, divided = self._factor(depth), False
        while True:
            if self._take("/", "\\div"):
                total, divided = _each(_over, total, self._signed_factor(depth)), True
            elif self._take("*", "\\times", "\\cdot"):
                total = _each(_times, total, self._signed_factor(depth))
            elif self._starts_factor():
                if divided or self._is_digit():
                    # 1/2x, and 2 3: readers differ.
                    raise _NoValueError
                total = _each(_times, total, self._factor(depth))
            else:
                return _negated(total) if negative else total

    def _signed_factor(self, depth: int) -> Values:
        negative = self._take("-")
        factor = self._factor(depth)
        return _negated(factor) if negative else factor

    def _is_digit(self) -> bool:
        return self._peek().isascii() and self._peek().isdigit()

    def _starts_factor(self) -> bool:
        token = self._peek()
        named = token in _GREEK or token in _CONSTANTS or token in _FUNCTIONS
        opens = token in ("(", "{", "[", "\\frac", "\\sqrt", "\\binom", "\\log", ".")
        letter = len(token) == 1 and token.isascii() and token.isalnum()
        return named or opens or letter

    def _factor(self, depth: int) -> Values:
        if self._peek() in _FUNCTIONS or self._peek() == "\\log":
            return self._function(depth)
        value = self._atom(depth)
        if self._take_degrees():
            value = _each(_times, value, _exact(complex(math.pi / 180)))
        elif self._take("^"):
            exponent = self._group("{", "}", depth)
            if len(set(exponent)) == 1 and any(_has_disputed_root(a, exponent[0]) for a in value):
                raise _NoValueError
            value = _each(_power, value, exponent)
        if self._peek() in ("^", "_", "!", "'"):
            raise _NoValueError
        return value

    def _take_degrees(self) -> bool:
        if list(self._tokens[self._place : self._place + 4]) != ["^", "{", "\\circ", "}"]:
            return False
        self._place += 4
        self.has_degrees = True
        return True

    def _group(self, left: str, right: str, depth: int) -> Values:
        if not self._take(left):
            raise _NoValueError
        value = self.sum(depth + 1)
        if not self._take(right):
            raise _NoValueError
        return value

    def _function(self, depth: int) -> Values:
        name = self._peek()
        self._place += 1
        base = exponent = None
        if name == "\\log":
            if not self._take("_"):
                raise _NoValueError
            base = self._group("{", "}", depth)
        if self._take("^"):
            exponent = self._group("{", "}", depth)
            if any(value.real <= 0 for value, _ in exponent):
                # sin^{-1} may be the arc sine.
                raise _NoValueError
        argument = self._argument(depth)
        value = _each(_FUNCTIONS["\\ln" if base else name], argument)
        if base:
            value = _each(_over, value, _each(_logarithm, base))
        return _each(_power, value, exponent) if exponent else value

    def _argument(self, depth: int) -> Values:
        for left, right in (("(", ")"), ("{", "}"), ("[", "]")):
            if self._peek() == left:
                argument = self._group(left, right, depth)
                if self._peek() == "^":
                    raise _NoValueError
                return argument
        argument = self._atom(depth)
        if self._take_degrees():
            argument = _each(_times, argument, _exact(complex(math.pi / 180)))
        elif self._is_one_of_letters():
            argument = _each(_times, argument, self._atom(depth))
        # sin 3x y and sin x^2 are read in several ways; sin x cos x is not.
        if self._peek() in ("^", "!", "'", "/") or (
            self._starts_factor() and self._peek() not in _FUNCTIONS
        ):
            raise _NoValueError
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
            return _each(_over, self._group("{", "}", depth), self._group("{", "}", depth))
        if self._take("\\binom"):
            return self._binomial(depth)
        if self._take("\\sqrt"):
            return self._root(depth)
        if token in _CONSTANTS:
            self._place += 1
            return _exact(_CONSTANTS[token])
        if token in _GREEK or (len(token) == 1 and token.isascii() and token.isalpha()):
            self._place += 1
            self.has_variables = True
            return _variable(token + self._subscript())
        return self._number()

    def _root(self, depth: int) -> Values:
        degree = self._group("[", "]", depth) if self._peek() == "[" else _exact(2)
        radicand = self._group("{", "}", depth)
        if any(value == 0 for value, _ in radicand):
            raise _NoValueError
        if degree == _exact(2):
            # The principal root of a negative number is not disputed.
            return _each(lambda a: (cmath.sqrt(a[0]), a[1] / abs(cmath.sqrt(a[0]))), radicand)
        exponent = _each(_over, _exact(1), degree)
        if any(_has_disputed_root(a, exponent[0]) for a in radicand):
            raise _NoValueError
        return _each(_power, radicand, exponent)

    def _binomial(self, depth: int) -> Values:
        (n, _), *_ = self._group("{", "}", depth)
        (k, _), *_ = self._group("{", "}", depth)
        whole = all(v.imag == 0 and v.real.is_integer() and 0 <= v.real <= 400 for v in (n, k))
        if not whole:
            raise _NoValueError
        return _exact(complex(math.comb(int(n.real), int(k.real))))

    def _subscript(self) -> str:
        if not self._take("_"):
            return ""
        if not self._take("{"):
            raise _NoValueError
        name = ""
        while not self.at_end and self._peek().isalnum():
            name += self._peek()
            self._place += 1
        if not name or not self._take("}"):
            raise _NoValueError
        return f"_{name}"

    def _number(self) -> Values:
        start = self._place
        while self._is_digit() or self._peek() == ".":
            self._place += 1
        text = "".join(self._tokens[start : self._place])
        if not _NUMBER.fullmatch(text):
            raise _NoValueError
        if self._peek() == "\\frac" and self._is_plain_fraction():
            # 3\frac12 is a mixed number to some.
            raise _NoValueError
        self.has_decimals |= "." in text
        return _exact(complex(float(text)))

    def _is_plain_fraction(self) -> bool:
        rest = "".join(self._tokens[self._place : self._place + 40])
        return re.match(r"\\frac\{[0-9.]+\}\{[0-9.]+\}", rest) is not None


def _negated(values: Values) -> Values:
    return tuple((-value, error) for value, error in values)
