"""A mapping of an image that is shared until it changes."""

from collections.abc import Mapping
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class SharedMapping(Generic[Key, Value]):
    """Copies a mapping of an image when it is changed for the first time."""

    __slots__ = ("_copy", "_shared")

    def __init__(self, shared: Mapping[Key, Value]) -> None:
        self._shared = shared
        self._copy: dict[Key, Value] | None = None

    def own(self) -> dict[Key, Value]:
        """Return the copy, which may be changed."""
        if self._copy is None:
            self._copy = dict(self._shared)
        return self._copy

    def finish(self) -> Mapping[Key, Value]:
        """Return the result, which must not be changed any more."""
        return self._shared if self._copy is None else self._copy
