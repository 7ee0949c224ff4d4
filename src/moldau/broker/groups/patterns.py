"""Subscription patterns, matched by RE2 in linear time; Python's `re` could be exploited."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

import re2

from moldau.model.units import MiB

MEMORY_BYTES_MAX: Final = 1 * MiB  # of one compiled pattern; RE2 rejects larger ones
CACHED_PATTERNS_MAX: Final = 256
PATTERN_BYTES_MAX: Final = 32_767


class InvalidPattern(ValueError):
    """RE2's error message for an invalid pattern."""


def _options() -> Any:
    options = re2.Options()
    options.log_errors = False  # it would write to standard error
    options.never_capture = True
    options.max_mem = MEMORY_BYTES_MAX
    return options


@lru_cache(CACHED_PATTERNS_MAX)
def _compiled(pattern: str) -> Any:
    try:
        raw = pattern.encode()
        if len(raw) > PATTERN_BYTES_MAX:
            raise InvalidPattern(f"it has {len(raw)} bytes, more than {PATTERN_BYTES_MAX}")
        return re2.compile(raw, _options())
    except UnicodeEncodeError:
        raise InvalidPattern("it is not valid UTF-8") from None
    except re2.error as error:
        message = error.args[0]
        raise InvalidPattern(message.decode(errors="replace") if isinstance(message, bytes) else str(message)) from None


def check_pattern(pattern: str) -> None:
    """Raise `InvalidPattern` if RE2 rejects the pattern."""
    _compiled(pattern)


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """Return the names that the pattern matches entirely."""
    fullmatch = _compiled(pattern).fullmatch
    return [name for name in names if fullmatch(name.encode(errors="surrogateescape"))]
