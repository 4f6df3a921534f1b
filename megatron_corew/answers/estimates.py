"""Arithmetic on complex numbers, at several points at once, with an estimate of the rounding error.

The errors are first-order estimates with room to spare, not bounds: whoever compares two values
allows a multiple of them.
"""

import cmath
from collections.abc import Callable

NUM_POINTS = 3
_LARGEST = 1e200
_EPS = 1e-15

# One value with its absolute error, and a value at every point.
Point = tuple[complex, float]
Values = tuple[Point, ...]


class NoValueError(Exception):
    """There is no value, or readers differ about it."""


def exact(value: complex) -> Values:
    """Return a constant, exact but for its own rounding."""
    return ((value, _EPS * abs(value)),) * NUM_POINTS


def _checked(value: complex, error: float) -> tuple[complex, float]:
    size = abs(value)
    # Comparisons with NaN are false.
    if not size < _LARGEST or not error < _LARGEST or (size and size < 1 / _LARGEST):
        raise NoValueError
    return value, error + _EPS * size


def each(function: Callable[..., tuple[complex, float]], *arguments: Values) -> Values:
    """Apply a function of single points at every point, and check the results."""
    return tuple(_checked(*function(*at)) for at in zip(*arguments, strict=True))


def plus(a: Point, b: Point) -> Point:
    """Return the sum."""
    return a[0] + b[0], a[1] + b[1]


def times(a: Point, b: Point) -> Point:
    """Return the product."""
    return a[0] * b[0], abs(a[0]) * b[1] + abs(b[0]) * a[1] + a[1] * b[1]


def over(a: Point, b: Point) -> Point:
    """Return the quotient; none where the divisor may be 0."""
    if abs(b[0]) <= 1e3 * b[1] or b[0] == 0:
        raise NoValueError
    value = a[0] / b[0]
    return value, 2 * (a[1] + abs(value) * b[1]) / abs(b[0])


def power(a: Point, b: Point) -> Point:
    """Return the principal power; none where the base may be 0."""
    whole = b[0].imag == 0 and b[0].real.is_integer()
    if a[0] == 0 or abs(a[0]) <= 1e3 * a[1]:
        if a == (0, 0.0) and whole and b[0].real > 0:
            return 0j, 0.0
        raise NoValueError
    if abs(b[0]) * abs(cmath.log(a[0])) > 400:
        raise NoValueError
    value = a[0] ** int(b[0].real) if whole and abs(b[0]) < 1000 else a[0] ** b[0]
    logarithm = abs(cmath.log(a[0]))
    relative = abs(b[0]) * a[1] / abs(a[0]) + logarithm * b[1] + _EPS * (1 + abs(b[0]) * logarithm)
    return value, 2 * abs(value) * relative


def has_disputed_root(a: Point, exponent: Point) -> bool:
    """Whether some take the real root, others the principal one."""
    return a[0].imag == 0 and a[0].real < 0 and not exponent[0].real.is_integer()


def square_root(a: Point) -> Point:
    """Return the principal square root of a number that is not 0."""
    root = cmath.sqrt(a[0])
    return root, a[1] / abs(root)


def logarithm(a: Point) -> Point:
    """Return the natural logarithm of a positive number."""
    if a[0].imag != 0 or a[0].real <= 1e3 * a[1]:
        raise NoValueError
    return cmath.log(a[0]), 2 * a[1] / abs(a[0])


def _smooth(
    function: Callable[[complex], complex], slope: Callable[[complex], float]
) -> Callable[[Point], Point]:
    def at(a: Point) -> Point:
        value = function(a[0])
        return value, 2 * slope(value) * a[1] + _EPS * slope(value) * abs(a[0])

    return at


FUNCTIONS: dict[str, Callable[[Point], Point]] = {
    "\\ln": logarithm,
    "\\exp": _smooth(cmath.exp, abs),
    "\\sin": _smooth(cmath.sin, lambda value: 1 + abs(value)),
    "\\cos": _smooth(cmath.cos, lambda value: 1 + abs(value)),
    "\\tan": _smooth(cmath.tan, lambda value: 1 + abs(value) ** 2),
    "\\cot": _smooth(lambda a: 1 / cmath.tan(a), lambda value: 1 + abs(value) ** 2),
    "\\sec": _smooth(lambda a: 1 / cmath.cos(a), lambda value: 1 + abs(value) ** 2),
    "\\csc": _smooth(lambda a: 1 / cmath.sin(a), lambda value: 1 + abs(value) ** 2),
}


def negated(values: Values) -> Values:
    """Return the values with the other sign."""
    return tuple((-value, error) for value, error in values)
