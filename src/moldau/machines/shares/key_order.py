"""`KeyOrder`: which records of a window are the first unfinished ones of their keys (`share.order=key`)."""

from collections import deque


class KeyOrder:
    """The unfinished records of a window by key, in the order of their offsets; bounded by the window."""

    __slots__ = ("_keys", "_queues")

    def __init__(self) -> None:
        self._keys: dict[int, int] = {}  # by offset
        self._queues: dict[int, deque[int]] = {}  # offsets by key

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, offset: int, key: int) -> bool:
        """Add a record behind the earlier ones; return whether it is the first of its key."""
        self._keys[offset] = key
        queue = self._queues.setdefault(key, deque())
        queue.append(offset)
        return queue[0] == offset

    def finish(self, offset: int) -> int | None:
        """Remove a record; return the one that is the first of its key now, if it was not before."""
        key = self._keys.pop(offset, None)
        if key is None:
            return None
        queue = self._queues[key]
        was_first = queue[0] == offset
        queue.remove(offset)
        if not queue:
            del self._queues[key]
            return None
        return queue[0] if was_first else None

    def between(self, first_offset: int, last_offset: int) -> list[int]:
        """The unfinished records in the range, in order."""
        if last_offset - first_offset < len(self._keys):
            return [offset for offset in range(first_offset, last_offset + 1) if offset in self._keys]
        return sorted(offset for offset in self._keys if first_offset <= offset <= last_offset)
