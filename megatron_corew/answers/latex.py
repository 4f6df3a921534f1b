r"""Bring the spelling of an answer to one form, before anyone asks what it means.

Unicode signs become LaTeX, wrappers and spacing go, arguments get their braces. Nothing here
decides equality; ``keys`` does.
"""

import re
import unicodedata

_SYMBOLS = {
    "\u2212": "-",
    "\u2013": "-",
    "\u2014": "-",
    "\u2010": "-",
    "\u2011": "-",
    "\u00d7": "\\times ",
    "\u00b7": "\\cdot ",
    "\u22c5": "\\cdot ",
    "\u2219": "\\cdot ",
    "\u00f7": "\\div ",
    "\u2044": "/",
    "\u2215": "/",
    "\u00b1": "\\pm ",
    "\u2213": "\\mp ",
    "\u00b0": "^{\\circ}",
    "\u00ba": "^{\\circ}",
    "\u221a": "\\sqrt ",
    "\u221e": "\\infty ",
    "\u03c0": "\\pi ",
    "\u03b8": "\\theta ",
    "\u03b1": "\\alpha ",
    "\u03b2": "\\beta ",
    "\u2264": "\\leq ",
    "\u2265": "\\geq ",
    "\u2260": "\\neq ",
    "\u2248": "\\approx ",
    "\u222a": "\\cup ",
    "\u2229": "\\cap ",
    "\u2208": "\\in ",
    "\u2205": "\\emptyset ",
    "\u2032": "'",
    "\u2026": "\\ldots ",
    "\u211d": "\\mathbb{R}",
    "\u2124": "\\mathbb{Z}",
    "\u2115": "\\mathbb{N}",
    "\u211a": "\\mathbb{Q}",
}
_RAISED_TWICE = re.compile(r"([\^_])\{([^{}]*)\}\1\{")

_SPACING = re.compile(r"\\(?:quad|qquad|thinspace|enspace|space)(?![A-Za-z])|(?<!\\)\\[,;:!> ]|~")
_THOUSANDS_MARK = re.compile(r"(?<=[0-9])(?:\{,\}|,\\!|\\,|\\!)(?=[0-9]{3}(?![0-9]))")
_SIZES = re.compile(
    r"\\(?:left|right|middle|[bB]igg?[lrm]?)(?![A-Za-z])(?:\s*\.(?![0-9]))?"
    r"|\\(?:displaystyle|textstyle|scriptstyle|limits|nolimits|bf|rm|it|boldmath)(?![A-Za-z])"
)
_COLOR = re.compile(r"\\(?:text)?color\s*\{[^{}]*\}")
_FONT = re.compile(
    r"\\(?:mathbf|boldsymbol|bm|mathit|mathsf|mathnormal|mathtt|mathcal|underline)(?=\s*\{)"
)
_TEXT = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|normal|sc|up|md)?|mathrm|mbox|hbox|operatorname\*?|emph)\s*(?=\{)"
)
_NAMES = (
    (re.compile(r"\\[dtc]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\le(?:qslant)?(?![A-Za-z])"), r"\\leq"),
    (re.compile(r"\\ge(?:qslant)?(?![A-Za-z])"), r"\\geq"),
    (re.compile(r"\\ne(?![A-Za-z])"), r"\\neq"),
    (re.compile(r"\\lt(?![A-Za-z])"), "<"),
    (re.compile(r"\\gt(?![A-Za-z])"), ">"),
    (re.compile(r"\\varnothing(?![A-Za-z])"), r"\\emptyset"),
    (re.compile(r"\\lbrace(?![A-Za-z])"), r"\\{"),
    (re.compile(r"\\rbrace(?![A-Za-z])"), r"\\}"),
    (re.compile(r"\\langle(?![A-Za-z])"), "("),
    (re.compile(r"\\rangle(?![A-Za-z])"), ")"),
    (re.compile(r"\\(?:lor|vee)(?![A-Za-z])"), r"\\text{ or }"),
    (re.compile(r"\\(?:land|wedge)(?![A-Za-z])"), r"\\text{ and }"),
    (re.compile(r"\\infin(?![A-Za-z])"), r"\\infty"),
    (re.compile(r"\\(?:degree|deg)(?![A-Za-z])"), r"^{\\circ}"),
    (re.compile(r"\^\s*\\circ(?![A-Za-z])"), r"^{\\circ}"),
    (re.compile(r"\\([%$#])"), r"\1"),
    (re.compile(r"(?<![\\A-Za-z])sqrt\s*\(([^()]*)\)"), r"\\sqrt{\1}"),
    (re.compile(r"(?<![\\A-Za-z])pi(?![A-Za-z])"), r"\\pi"),
    (re.compile(r"(?<![\\A-Za-z])(?:infinity|inf)(?![A-Za-z])"), r"\\infty"),
)
_TRAILING = re.compile(r"(?:\\\\|(?<!\.)\.|[,;:\s])+$|(?<!\\)\\$")
_WRAPPERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("`", "`"))
_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|\S", re.DOTALL)
_BRACKETS = {"(": ")", "[": "]", "{": "}", "\\{": "\\}"}


def clean(answer: str) -> str:
    r"""Rewrite an answer in plain, uniform LaTeX.

    Example: ``**$\dfrac{1}{2}$.**`` and U+00BD both give ``\frac{1}{2}``.

    Args:
        answer: an answer in any spelling, any Unicode.

    Returns:
        The uniform spelling; blanks are kept where they may part words and numbers.
    """
    answer = _from_unicode(answer)
    if "\\begin" not in answer:
        # LaTeX that was escaped twice; row breaks exist inside environments only.
        answer = re.sub(r"\\\\(?=[A-Za-z({\[%$])", r"\\", answer)
    answer = _unwrapped(answer)
    answer = _THOUSANDS_MARK.sub("", answer)
    answer = _SPACING.sub(" ", answer)
    answer = _SIZES.sub(" ", answer)
    answer = _COLOR.sub(" ", answer)
    answer = _FONT.sub(" ", answer)
    answer = _TEXT.sub(r"\\text", answer)
    for pattern, name in _NAMES:
        answer = pattern.sub(name, answer)
    return _unwrapped(" ".join(answer.split()))


def _from_unicode(answer: str) -> str:
    letters: list[str] = []
    for letter in answer:
        if letter in _SYMBOLS:
            letters.append(_SYMBOLS[letter])
        elif letter.isascii():
            letters.append(letter)
        elif unicodedata.category(letter) not in ("Cf", "Cs", "Co", "Cn"):
            letters.append(_decomposed(letter))
    text = "".join(letters)
    # Neighbouring raised digits form one exponent: x^{1}^{2} is x^{12}.
    previous = None
    while previous != text:
        previous = text
        text = _RAISED_TWICE.sub(r"\1{\2", text)
    return text


def _decomposed(letter: str) -> str:
    kind, _, points = unicodedata.decomposition(letter).partition(" ")
    plain = unicodedata.normalize("NFKC", letter)
    if kind == "<fraction>":
        numerator, _, denominator = plain.partition("\u2044")
        return f" \\frac{{{numerator}}}{{{denominator}}}"
    plain = "".join(_SYMBOLS.get(part, part) for part in plain)
    if kind in ("<super>", "<sub>") and re.fullmatch(r"[-+=()0-9a-z]", plain):
        return f"{'^' if kind == '<super>' else '_'}{{{plain}}}"
    return plain if points else letter


def _unwrapped(answer: str) -> str:
    """Take off dollars, math brackets, bold marks, quotes and trailing punctuation."""
    previous = None
    while previous != answer:
        previous = answer
        answer = _TRAILING.sub("", answer.strip())
        for left, right in _WRAPPERS:
            inside = answer[len(left) : len(answer) - len(right)]
            whole = answer.startswith(left) and answer.endswith(right)
            if whole and len(answer) > len(left + right) and right not in inside:
                answer = inside
    return answer


def braced_tokens(text: str) -> list[str]:
    r"""Split cleaned LaTeX into tokens, with braces around every argument.

    Example: ``\frac12 x^10`` gives the tokens of ``\frac{1}{2}x^{10}``: after ``^`` and ``_`` a
    run of digits is one argument, as people mean it.

    Args:
        text: from ``clean``.

    Returns:
        Commands (with their backslash) and single characters, no blanks.
    """
    tokens = _TOKEN.findall(text)
    out: list[str] = []
    waiting = 0  # arguments that the last command still wants
    outer: list[int] = []  # the same for the groups around this place
    place = 0
    while place < len(tokens):
        token = tokens[place]
        place += 1
        if token == "{":
            outer.append(max(waiting - 1, 0))
            waiting = 0
        elif token == "}":
            waiting = outer.pop() if outer else 0
        elif waiting:
            waiting -= 1
            run = _digit_run(tokens, place - 1) if out and out[-1] in "^_" else 1
            out += ["{", *tokens[place - 1 : place - 1 + run], "}"]
            place += run - 1
            continue
        elif token in ("\\frac", "\\binom"):
            waiting = 2
        elif token in ("^", "_"):
            waiting = 1
        elif token == "\\sqrt":
            waiting = 0 if place < len(tokens) and tokens[place] == "[" else 1
        out.append(token)
    return out


def _digit_run(tokens: list[str], start: int) -> int:
    end = start + (tokens[start] == "-")
    while end < len(tokens) and tokens[end].isascii() and tokens[end].isdigit():
        end += 1
    return max(end - start, 1)


def joined(tokens: list[str]) -> str:
    r"""Join tokens so that a command never runs into a letter (``\pi r``).

    Args:
        tokens: from ``braced_tokens``.

    Returns:
        LaTeX without any other blanks.
    """
    out: list[str] = []
    for token in tokens:
        if out and re.fullmatch(r"\\[A-Za-z]+", out[-1]) and token[0].isalpha():
            out.append(" ")
        out.append(token)
    return "".join(out)


def split_outside(text: str, separators: re.Pattern[str]) -> list[str]:
    """Split a text at separators that stand outside all brackets.

    Args:
        text: cleaned LaTeX.
        separators: what to split at; matched at one place at a time.

    Returns:
        The parts, stripped; the whole text as one part where brackets do not match.
    """
    parts, start, place = [], 0, 0
    closers: list[str] = []
    while place < len(text):
        separator = None if closers else separators.match(text, place)
        if separator:
            parts.append(text[start:place].strip())
            start = place = separator.end()
            continue
        token = _TOKEN.match(text, place)
        name = token[0] if token else text[place]
        if name in _BRACKETS:
            # (1, 2] is an interval: any round or square bracket closes any other.
            closers.append(_BRACKETS[name])
        elif name in (")", "]", "}", "\\}"):
            fits = closers and (closers[-1] == name or {closers[-1], name} == {")", "]"})
            if not fits:
                return [text.strip()]
            closers.pop()
        place += len(name)
    if closers:
        return [text.strip()]
    return [*parts, text[start:].strip()]
