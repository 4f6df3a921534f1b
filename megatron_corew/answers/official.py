r"""The released code's reading of answers, to the letter: the ``raw`` equivalence.

Its peculiarities are kept on purpose: a box followed by a blank swallows the rest of the
response, ``\fbox`` and a cut last box give no answer, blanks inside the box count in votes, and
some malformed fractions are compared unnormalised. ``boxes`` and ``keys`` do better.

Source: Co-rewarding, ``verl/utils/reward_score/math.py`` (after Hendrycks et al., MATH).
"""

import re

_REWRITES = (
    ("\n", ""),
    ("\\!", ""),
    ("\\\\", "\\"),
    ("tfrac", "frac"),
    ("dfrac", "frac"),
    ("\\left", ""),
    ("\\right", ""),
    ("^{\\circ}", ""),
    ("^\\circ", ""),
    ("\\$", ""),
)
_LATE_REWRITES = (("\\%", ""), (" .", " 0."), ("{.", "{0."))
_UNIT = "\\text{ "
_INTEGER_RATIO = re.compile(r"-?(?:0|[1-9][0-9]*)/-?(?:0|[1-9][0-9]*)")


class _NotNormalised(Exception):
    """The official normaliser raises on this text; the caller then compares raw strings."""


def official_answer(text: str) -> str | None:
    """Return what the official code takes for the answer of a response.

    Args:
        text: a response.

    Returns:
        The content of the last box as it stands, perhaps blank; None where the official code
        finds nothing or fails.
    """
    if "\\boxed " in text:
        return text.rsplit("\\boxed ", 1)[1].split("$", 1)[0]
    start = text.rfind("\\boxed")
    if start < 0 or not text.startswith("\\boxed{", start):
        return None
    depth = 0
    for place in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if text[place] == "}" and depth == 0:
            return text[start + len("\\boxed{") : place]
    return None


def officially_equal(answer: str, truth: str) -> bool:
    """Compare an answer with the ground truth as the official reward does.

    Args:
        answer: from ``official_answer``.
        truth: plain answer text, not boxed.

    Returns:
        Whether the normalised strings are equal; where either cannot be normalised, whether
        the strings themselves are.
    """
    try:
        return _normalised(answer) == _normalised(truth)
    except _NotNormalised:
        return answer == truth


def _normalised(answer: str) -> str:
    for old, new in _REWRITES:
        answer = answer.replace(old, new)
    parts = answer.split(_UNIT)
    if len(parts) > 2:
        raise _NotNormalised
    answer = parts[0]
    for old, new in _LATE_REWRITES:
        answer = answer.replace(old, new)
    if not answer:
        return answer
    if answer.startswith("."):
        answer = "0" + answer
    sides = answer.split("=")
    if len(sides) == 2 and len(sides[0]) <= 2:
        answer = sides[1]
    answer = _with_braced_roots(answer).replace(" ", "")
    answer = _with_braced_fractions(answer)
    if answer == "0.5":
        return "\\frac{1}{2}"
    if _INTEGER_RATIO.fullmatch(answer):
        return "\\frac{{{}}}{{{}}}".format(*answer.split("/"))
    return answer


def _with_braced_roots(answer: str) -> str:
    first, *rest = answer.split("\\sqrt")
    if "" in rest:
        raise _NotNormalised
    braced = (part if part.startswith("{") else f"{{{part[0]}}}{part[1:]}" for part in rest)
    return "\\sqrt".join([first, *braced])


def _with_braced_fractions(answer: str) -> str:
    first, *rest = answer.split("\\frac")
    done = first
    for part in rest:
        if not part:
            raise _NotNormalised
        if part.startswith("{"):
            done += "\\frac" + part
            continue
        if len(part) < 2:
            # One broken fraction makes the official code give up on the whole text.
            return answer
        numerator, denominator, tail = part[0], part[1], part[2:]
        if denominator == "{":
            done += f"\\frac{{{numerator}}}{{{tail}"
        else:
            done += f"\\frac{{{numerator}}}{{{denominator}}}{tail}"
    return done
