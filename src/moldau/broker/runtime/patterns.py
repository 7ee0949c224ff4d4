"""Patterns of clients, matched by RE2 in linear time; Python's `re` could be exploited.

RE2 parses and compiles with the interpreter locked, so a thread would not keep the event loop free: the cost is bounded
before RE2 sees the pattern, to a few milliseconds. Unicode classes (a table of hundreds of ranges each) and bounded
repetitions (which RE2 unrolls) cost far more than their length shows.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

import re2

from moldau.model.units import KiB, MiB

MEMORY_BYTES_MAX: Final = 1 * MiB  # of one compiled pattern; RE2 rejects larger ones
CACHED_PATTERNS_MAX: Final = 128
PATTERN_BYTES_MAX: Final = 4 * KiB  # a list of a hundred topic names
UNICODE_CLASSES_MAX: Final = 8
REPEATED_ATOMS_MAX: Final = 256  # a topic name has at most 249 characters
PROGRAM_INSTRUCTIONS_MAX: Final = 4_000

_UNICODE_CLASS: Final = re.compile(r"\\[pP]")
# An escape, a class in brackets, a bounded repetition, or one character; none of these can backtrack.
_TOKEN: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{(\d{1,4})(?:,(\d{0,4}))?\}|.", re.DOTALL)


class InvalidPattern(ValueError):
    """The reason why a pattern is rejected."""


def check_pattern(pattern: str) -> None:
    """Raise `InvalidPattern` if the pattern is invalid or too expensive."""
    _compiled(pattern)


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """Return the names that the pattern matches entirely."""
    fullmatch = _compiled(pattern).fullmatch
    return [name for name in names if fullmatch(name.encode(errors="surrogateescape"))]


def _compiled(pattern: str) -> Any:
    if len(pattern) > PATTERN_BYTES_MAX:  # also keeps long ones out of the cache
        raise InvalidPattern(f"it has {len(pattern)} characters, more than {PATTERN_BYTES_MAX}")
    found = _compile(pattern)
    if isinstance(found, str):
        raise InvalidPattern(found)
    return found


@lru_cache(CACHED_PATTERNS_MAX)
def _compile(pattern: str) -> Any:
    """The compiled pattern, or the reason why it is rejected: both are cached."""
    try:
        raw = pattern.encode()
    except UnicodeEncodeError:
        return "it is not valid UTF-8"
    if len(raw) > PATTERN_BYTES_MAX:
        return f"it has {len(raw)} bytes, more than {PATTERN_BYTES_MAX}"
    if len(_UNICODE_CLASS.findall(pattern)) > UNICODE_CLASSES_MAX:
        return rf"it has more than {UNICODE_CLASSES_MAX} Unicode classes (\p, \P)"
    if _repeated_atoms(pattern) > REPEATED_ATOMS_MAX:
        return f"its bounded repetitions unroll to more than {REPEATED_ATOMS_MAX} characters"
    try:
        compiled = re2.compile(raw, _options())
    except re2.error as error:
        message = error.args[0]
        return message.decode(errors="replace") if isinstance(message, bytes) else str(message)
    if compiled.programsize > PROGRAM_INSTRUCTIONS_MAX:
        return f"it compiles to {compiled.programsize} instructions, more than {PROGRAM_INSTRUCTIONS_MAX}"
    return compiled


def _options() -> Any:
    options = re2.Options()
    options.log_errors = False  # it would write to standard error
    options.never_capture = True
    options.max_mem = MEMORY_BYTES_MAX
    return options


def _repeated_atoms(pattern: str) -> int:
    """How many characters and classes the bounded repetitions stand for, nested ones multiplied.

    RE2 rejects unbalanced parentheses itself; here they only must not fail.
    """
    total = item = sequence = 0  # of the whole pattern, its last item, and the sequence that this item ends
    groups: list[int] = []
    for token in _TOKEN.finditer(pattern):
        text = token[0]
        if text == "(":
            groups.append(sequence)
            item = sequence = 0
        elif text == ")":
            item = sequence
            sequence = (groups.pop() if groups else 0) + item
        elif token[1] is not None:
            repeated = max(item, 1) * max(int(token[1]), int(token[2] or 0), 1)
            total += repeated
            sequence += repeated - item
            item = repeated
        else:
            item = 1
            sequence += 1
    return total
