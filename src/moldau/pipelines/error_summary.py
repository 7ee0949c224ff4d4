"""Reduces Spark's stack traces to one line."""

import re
from typing import Final

_PYTHON_END: Final = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|[A-Z]\w*)): (.+)$")
_STACK: Final = re.compile(r"^\s+at [\w.$<>/]+\(|^\s*\.\.\. \d+ more")
_CALL: Final = re.compile(r"^An error occurred while calling \S+$")
_CLASS: Final = re.compile(r"^:? *(?:[a-z]\w*\.)+[\w$]+: ")
_CONDITION: Final = re.compile(r"^\[[A-Z_.]+\]\s*(?:Query \[id = [^\]]+\] terminated with exception: )?")
LENGTH_MAX: Final = 500


def short_reason(text: str) -> str:
    """Return the last line of the innermost Python traceback if there is one, else the first meaningful line."""
    lines = [line.rstrip() for line in text.splitlines() if _is_meaningful(line)]
    found = _after_traceback(lines)
    if found is None:
        found = _CONDITION.sub("", _CLASS.sub("", lines[0].strip())) if lines else "it failed without an error message"
    return found if len(found) <= LENGTH_MAX else found[:LENGTH_MAX] + " …"


def _is_meaningful(line: str) -> bool:
    return bool(line.strip()) and not _STACK.match(line) and not _CALL.match(line.strip())


def _after_traceback(lines: list[str]) -> str | None:
    begins = [number for number, line in enumerate(lines) if "Traceback (most recent call last)" in line]
    if not begins:
        return None
    for line in lines[begins[-1] + 1 :]:
        match = _PYTHON_END.match(line)
        if match:
            return match[2]
    return None
