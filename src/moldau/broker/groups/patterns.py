"""Patterns by which consumers subscribe: RE2 reads them, whose time grows with the text alone, never Python's `re`."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

import re2

from moldau.model.units import MiB

MEMORY_BYTES_MAX: Final = 1 * MiB  # of one compiled pattern; RE2 refuses what needs more
PATTERNS_KEPT: Final = 256
PATTERN_BYTES_MAX: Final = 32_767


class InvalidPattern(ValueError):
    """What RE2 says of a pattern that it cannot read."""


def _options() -> Any:
    options = re2.Options()
    options.log_errors = False  # it would write to standard error
    options.never_capture = True
    options.max_mem = MEMORY_BYTES_MAX
    return options


@lru_cache(PATTERNS_KEPT)
def _compiled(pattern: str) -> Any:
    try:
        raw = pattern.encode()
        if len(raw) > PATTERN_BYTES_MAX:
            raise InvalidPattern(f"it has {len(raw)} bytes, more than {PATTERN_BYTES_MAX}")
        return re2.compile(raw, _options())
    except UnicodeEncodeError:
        raise InvalidPattern("it is no UTF-8") from None
    except re2.error as error:
        words = error.args[0]
        raise InvalidPattern(words.decode(errors="replace") if isinstance(words, bytes) else str(words)) from None


def check_pattern(pattern: str) -> None:
    """`InvalidPattern` if RE2 cannot read it."""
    _compiled(pattern)


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """Those of the names that the pattern matches from end to end."""
    fullmatch = _compiled(pattern).fullmatch
    return [name for name in names if fullmatch(name.encode(errors="surrogateescape"))]
