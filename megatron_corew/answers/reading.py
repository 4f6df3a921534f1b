r"""Read what a cleaned answer means: numbers, choices, sets, sequences, matrices, expressions.

The readings themselves are listed in ``keys``. Each reader takes (text, depth) and returns None
for what is not its own; the first that answers wins.
"""

import re
from collections.abc import Iterable
from fractions import Fraction

from megatron_corew.answers import latex
from megatron_corew.answers.arithmetic import exact_value
from megatron_corew.answers.meaning import Key

_MAX_DEPTH = 6

_COMMAND = re.compile(r"\\[A-Za-z]+")
_SYMBOL_NAMES = (
    "\\alpha \\beta \\gamma \\delta \\epsilon \\varepsilon \\zeta \\eta \\theta \\vartheta \\iota "
    "\\kappa \\lambda \\mu \\nu \\xi \\pi \\rho \\sigma \\tau \\upsilon \\phi \\varphi \\chi \\psi "
    "\\omega \\Gamma \\Delta \\Theta \\Lambda \\Xi \\Pi \\Sigma \\Phi \\Psi \\Omega \\infty "
    "\\emptyset \\ell \\hbar"
)
_SYMBOL_COMMANDS = frozenset(_SYMBOL_NAMES.split())
_UNIT_NAMES = (
    "mm cm dm km nm inch inches ft feet foot yd yard yards mi mile miles kg mg lb lbs pound pounds "
    "oz ounce ounces ton tons sec secs second seconds min mins minute minutes hr hrs hour hours "
    "day days week weeks month months year years deg degs degree degrees radian radians rad "
    "dollar dollars cent cents usd euro euros percent percentage square cubic sq cu unit units "
    "mph kph kmh liter liters litre litres ml meter meters metre metres centimeter centimeters "
    "kilometer kilometers gram grams kilogram kilograms newton newtons joule joules watt watts "
    "volt volts"
)
_UNITS = frozenset(_UNIT_NAMES.split())
_AND = re.compile(r"\s*(?:[,;]|\\text\{\s*(?:,\s*)?(?:and|or)\s*\}|(?<=\s)(?:and|or)(?=\s))\s*")
_THOUSANDS = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,])")
_SPACED_THOUSANDS = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?: [0-9]{3})+(?![0-9])")
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_CHOICE = re.compile(r"(?:(?:option|choice|answer)\s*)?\(?([A-Z])\)?[.:]?", re.IGNORECASE)
_OPTION_TEXT = re.compile(r"(?:\(([A-Z])\)|([A-Z])[.):])\s*(?![-+*/^=,(_\s]).+", re.DOTALL)
_NAME = re.compile(
    r"(?:\\text\{[^{}]*\}|\\?[A-Za-z]+)'?(?:_(?:\{\w*\}|\w))?\s*(?:\([a-z0-9](?:,\s*[a-z0-9])*\))?"
    r"|\(\s*[a-z](?:,\s*[a-z])+\s*\)"
)
# Names that are numbers: x = e is a value, x = y is an equation.
_VALUES = frozenset(("e", "i", "\\pi", "\\infty", "\\emptyset"))
_MEMBER = re.compile(r"[A-Za-z]\s*\\in(?![A-Za-z])")
_BASED = re.compile(r"(-?)\(?([0-9A-F]+)(?:\.([0-9A-F]+))?\)?_\{([0-9]{1,2})\}")
_DIGITS_WITH_BASE = re.compile(r"-?\(?[0-9]+(?:\.[0-9]+)?\)?_\{[0-9]{1,2}\}")
_SPOKEN_BASE = {"two": "2", "three": "3", "eight": "8", "ten": "10", "sixteen": "16"}
_MATRIX = re.compile(
    r"\\begin\{([pbB]?matrix|smallmatrix|array)\}(?:\{[clr|\s]*\})?(.*)\\end\{\1\}", re.DOTALL
)
# 5 2 is neither 52 nor a product; math-verify would read 52.
_APART = re.compile(r"-?[0-9.]+(?: [0-9.]+)+")
# p - q is a difference of letters; x-axis is a word.
_DIFFERENCE = re.compile(r"(?:^|\s)-|-(?:\s|$)|^[A-Za-z]{1,2}-[A-Za-z]{1,2}$")
_PLAIN_MIXED = re.compile(r"(-?)\s*([0-9]+)\s+([0-9]+)\s*/\s*([0-9]+)")
_UNIT_POWER = r"(?:\s*\^\s*(?:\{\s*-?[0-9]\s*\}|[0-9]))?"
_DEGREES = r"\^\s*\{\s*\\circ\s*\}\s*[CFK]?(?![A-Za-z])"
_SPEED = r"(?:km|mi|cm|ft|m)\s*/\s*(?:hr|h|sec|s|min)(?![A-Za-z])"
_UNIT_TAIL = re.compile(
    rf"\s*(?:/\s*)?(?:\\text\{{\s*([^{{}}0-9]*?)\s*\}}{_UNIT_POWER}|%|{_DEGREES}"
    rf"|(?<=[\s/0-9])([A-Za-z]{{2,}}){_UNIT_POWER}|(?<=[\s0-9]){_SPEED})\s*$"
)
_TRIGONOMETRY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")
_QUANTITY = re.compile(
    r"\s*(?:and\s+)?([0-9]+(?:\.[0-9]+)?)\s*"
    r"(?:\\text\s*\{\s*([A-Za-z .]+?)\s*\}|([A-Za-z]{2,}))"
)


def read(text: str) -> Key | None:
    """Read a cleaned answer.

    Args:
        text: from ``latex.clean``.

    Returns:
        Its meaning; None where the text holds no letter, digit or known symbol.
    """
    return _read(text, 0)


def _read(text: str, depth: int) -> Key | None:
    text = text.strip()
    if whole := _TEXT.fullmatch(text):
        text = whole[1].strip()
    if not _has_content(text):
        return None
    if depth > _MAX_DEPTH:
        return _expression(text)
    readers = (_choice, _number, _named_value, _quantities, _list, _matrix, _bracketed, _word)
    for reader in readers:
        key = reader(text, depth)
        if key is not None:
            return key
    return _expression(_without_units(text, every_text=False))


def _has_content(text: str) -> bool:
    rest = _COMMAND.sub(lambda command: "x" if command[0] in _SYMBOL_COMMANDS else "", text)
    return any(letter.isalnum() for letter in rest)


def _plain(text: str) -> str:
    return " ".join(_TEXT.sub(r"\1", text).split())


def _choice(text: str, depth: int) -> Key | None:
    plain = _plain(text)
    match = _CHOICE.fullmatch(plain)
    if match and match[1].isupper():
        return Key("choice", match[1])
    option = _OPTION_TEXT.fullmatch(plain)
    if option and depth == 0:
        return Key("choice", option[1] or option[2])
    return None


def _number(text: str, depth: int) -> Key | None:
    value = _value(_without_units(text, every_text=True), thousands=depth == 0)
    return None if value is None else Key("number", value)


def _without_thousands(text: str) -> str:
    # Inside brackets a comma parts elements: (1,234) has two.
    if re.search(r"[(\[{]", text):
        return text
    return _THOUSANDS.sub(lambda number: number[0].replace(",", ""), text)


def _value(text: str, *, thousands: bool) -> Fraction | None:
    """The number a unit-free text stands for."""
    if thousands:
        text = _without_thousands(text)
    text = _SPACED_THOUSANDS.sub(lambda number: number[0].replace(" ", ""), text)
    mixed = _PLAIN_MIXED.fullmatch(text)
    if mixed and int(mixed[3]) < int(mixed[4]):
        size = int(mixed[2]) + Fraction(int(mixed[3]), int(mixed[4]))
        return -size if mixed[1] else size
    if re.search(r"[0-9.]\s+[0-9.]", text):
        return None
    tokens = latex.braced_tokens(text)
    value = exact_value(tokens)
    return _based_value(latex.joined(tokens)) if value is None else value


def _based_value(text: str) -> Fraction | None:
    match = _BASED.fullmatch(_with_base_in_digits(text))
    if not match:
        return None
    sign, whole, decimals, base = match[1], match[2], match[3] or "", int(match[4])
    if not 2 <= base <= 16 or any(int(digit, 16) >= base for digit in whole + decimals):
        return None
    value = Fraction(int(whole + decimals, base), base ** len(decimals))
    return -value if sign else value


def _with_base_in_digits(text: str) -> str:
    plain = _plain(text)
    for word, digits in _SPOKEN_BASE.items():
        plain = plain.replace(f"_{{{word}}}", f"_{{{digits}}}")
    return plain


def _without_units(text: str, *, every_text: bool) -> str:
    """Drop currency and percent signs, and the units at the end.

    ``every_text``: any ``\\text{...}`` at the end counts as a unit (behind a number), else only
    known unit words do.
    """
    text = re.sub(r"[$\u00a3\u20ac\u00a5]", "", text).strip()
    if _TRIGONOMETRY.search(text):
        # The sine of 30 degrees is not that of 30.
        return text
    while tail := _UNIT_TAIL.search(text):
        words = (tail[1] or tail[2] or "").replace(".", " ").split()
        known = all(word.casefold() in _UNITS for word in words)
        counted = every_text and (tail[1] is not None or len((tail[2] or "").strip()) > 3)
        if tail[2] and not known:
            # 5 apples has a unit; 5abcd is a product.
            counted &= text[tail.start(2) - 1].isspace()
        if not (known or counted) or not text[: tail.start()].strip():
            break
        text = text[: tail.start()].strip()
    return text


def _named_value(text: str, depth: int) -> Key | None:
    if re.search(r"[<>]|\\(?:leq|geq|neq|approx|equiv|text\{ (?:or|and) \})", text):
        return None
    member = _MEMBER.match(text)
    if member:
        return _read(text[member.end() :], depth + 1)
    sides = latex.split_outside(text, re.compile("="))
    if len(sides) < 2 or len(latex.split_outside(text, _AND)) > 1:
        return None
    if all(_NAME.fullmatch(side) and side not in _VALUES for side in sides):
        return None
    if _NAME.fullmatch(sides[0]):
        return _read(sides[-1], depth + 1)
    if len(sides) == 2 and _NAME.fullmatch(sides[1]):
        return _read(sides[0], depth + 1)
    return None


def _quantities(text: str, depth: int) -> Key | None:
    found, place = [], 0
    while quantity := _QUANTITY.match(text, place):
        unit = (quantity[2] or quantity[3]).casefold().strip(" .").removesuffix("s")
        found.append((Fraction(quantity[1]), unit))
        place = quantity.end()
    if len({unit for _, unit in found}) < 2 or text[place:].strip(" ."):
        return None
    return Key("quantities", tuple(found))


def _list(text: str, depth: int) -> Key | None:
    if depth == 0:
        text = _without_thousands(text)
    items = [item for item in latex.split_outside(text, _AND) if item]
    names = [_name_and_value(item) for item in items]
    distinct = {name for name, _ in names if name}
    if len(items) > 1 and len(distinct) > 1:
        if len(distinct) < len(items):
            return None
        pairs = [(name, _read(value, depth + 1)) for name, value in names]
        kept = frozenset((name, key) for name, key in pairs if key is not None)
        return Key("named", kept) if len(kept) == len(items) else None
    signs = [part for item in items for part in _both_signs(item)]
    if len(signs) < 2:
        return None
    return _as_set(_read(item, depth + 1) for item in signs)


def _name_and_value(item: str) -> tuple[str, str]:
    sides = latex.split_outside(item, re.compile("="))
    if len(sides) == 2 and _NAME.fullmatch(sides[0]):
        return _plain(sides[0]), sides[1]
    return "", item


def _both_signs(item: str) -> list[str]:
    if not re.search(r"\\(?:pm|mp)(?![A-Za-z])", item):
        return [item]
    pairs = ((r"\\pm(?![A-Za-z])", "+-"), (r"\\mp(?![A-Za-z])", "-+"))
    both = [item, item]
    for pattern, signs in pairs:
        both = [re.sub(pattern, sign, part) for part, sign in zip(both, signs, strict=True)]
    return [part.strip().removeprefix("+") for part in both]


def _as_set(keys: Iterable[Key | None]) -> Key | None:
    found = set(keys)
    kept = frozenset(key for key in found if key is not None)
    if None in found or not kept:
        return None
    return Key("set", kept) if len(kept) > 1 else next(iter(kept))


def _matrix(text: str, depth: int) -> Key | None:
    match = _MATRIX.fullmatch(text)
    if not match or "\\begin" in match[2]:
        return None
    lines = [line for line in re.split(r"\\\\(?:\[[^\]]*\])?|\\cr", match[2]) if line.strip()]
    rows = tuple(tuple(_cell(cell, depth) for cell in line.split("&")) for line in lines)
    return Key("matrix", rows) if rows else None


def _cell(text: str, depth: int) -> Key:
    return _read(text, depth + 1) or Key("expression", latex.joined(latex.braced_tokens(text)))


def _bracketed(text: str, depth: int) -> Key | None:
    for left, right in (("\\{", "\\}"), ("(", ")"), ("(", "]"), ("[", ")"), ("[", "]")):
        inside = text[len(left) : len(text) - len(right)]
        if text.startswith(left) and text.endswith(right) and _balanced(inside):
            break
    else:
        return None
    if re.search(r"\\[lc]?dots|\\mid|\||:|\\cup|\\cap|[<>=]|\\[lg]eq", inside):
        return None
    items = latex.split_outside(inside, re.compile(r"[,;]"))
    if left == "\\{":
        return _as_set(_read(part, depth + 1) for item in items for part in _both_signs(item))
    keys = [_read(item, depth + 1) for item in items]
    if len(keys) == 1:
        return keys[0] if left == "(" or (keys[0] and keys[0].kind == "number") else None
    known = tuple(key for key in keys if key is not None)
    return Key("sequence", (left, right, known)) if len(known) == len(keys) else None


def _balanced(text: str) -> bool:
    """Whether no bracket of the text closes one that was opened before it."""
    # A text with unmatched brackets comes back whole, so its end is not reached as a part.
    return len(latex.split_outside(text + "\x00", re.compile("\x00"))) == 2


def _word(text: str, depth: int) -> Key | None:
    plain = _plain(text)
    if _APART.fullmatch(plain):
        return Key("word", plain)
    # Nor are the digits of 19_2 a number of that base; math-verify would drop the base.
    based = latex.joined(latex.braced_tokens(plain))
    if _DIGITS_WITH_BASE.fullmatch(based):
        return Key("word", based)
    plain = plain.strip(" .,:;!?")
    letters = plain.replace(" ", "").replace("-", "").replace("'", "")
    if len(letters) < 2 or not letters.isalpha() or _DIFFERENCE.search(plain):
        return None
    words = plain.casefold().split()
    if len(words) > 1 and words[0] in ("the", "a", "an"):
        words = words[1:]
    return Key("word", " ".join(words))


def _expression(text: str) -> Key:
    # 5 2 is not 52, however little it means.
    tokens = latex.braced_tokens(re.sub(r"(?<=[0-9.]) (?=[0-9.])", r"\\ ", text))
    while len(tokens) > 2 and tokens[0] == "{" and tokens[-1] == "}" and _balanced_braces(tokens):
        tokens = tokens[1:-1]
    return Key("expression", latex.joined(tokens))


def _balanced_braces(tokens: list[str]) -> bool:
    depth = 0
    for token in tokens[:-1]:
        depth += {"{": 1, "}": -1}.get(token, 0)
        if depth == 0:
            return False
    return True
