r"""Find the final answer in a response: the last complete box, by matching braces.

Choices:
    1. Only complete boxes count: in a response that was cut inside its last box, the one before
       it stands. Of nested boxes the innermost is taken (the last one that starts).
    2. ``\fbox`` is a box. Blanks before the brace are allowed. Without a brace the argument is
       the run up to the next blank or ``$``, if it starts like a value (``\boxed 5``).
    3. Escaped braces (``\{``) are part of the answer and never counted.
    4. A response without a box has no answer; numbers in the text are not searched.
"""

import re

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
# A value without braces: a number, a command, an opening bracket, or one single letter. Words
# are prose ("put it into \boxed as asked").
_BARE_START = re.compile(r"[-+]?[.0-9(\[\\]|[A-Za-z](?![A-Za-z])")
_BARE_STEP = re.compile(r"\\[()\[\]]|\\.|[{}\s$]|[^\\{}\s$]+", re.DOTALL)


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last complete box.

    Example: ``First \boxed{3}. No: \boxed{\frac{1}{2}}, or \boxed{4`` gives ``\frac{1}{2}``.

    Args:
        text: a response.

    Returns:
        The content with its own spelling, without surrounding blanks, perhaps empty; None
        without a complete box. Takes time linear in the text.
    """
    closing = _closing_braces(text)
    for box in reversed(list(_BOX.finditer(text))):
        argument = _argument(text, box.end(), closing)
        if argument is not None:
            return argument.strip()
    return None


def _closing_braces(text: str) -> dict[int, int]:
    """Map the place of every matched opening brace to that of its closing one."""
    opened: list[int] = []
    closing: dict[int, int] = {}
    for brace in _BRACE.finditer(text):
        if brace[0] == "{":
            opened.append(brace.start())
        elif brace[0] == "}" and opened:
            closing[opened.pop()] = brace.start()
    return closing


def _argument(text: str, start: int, closing: dict[int, int]) -> str | None:
    if text.startswith("{", start):
        return text[start + 1 : closing[start]] if start in closing else None
    if not _BARE_START.match(text, start):
        return None
    end = start
    while step := _BARE_STEP.match(text, end):
        if step[0] == "{":
            if end not in closing:
                return None
            end = closing[end] + 1
        elif step[0] in ("}", "$", r"\)", r"\]") or step[0].isspace():
            break
        else:
            end = step.end()
    return text[start:end] or None
