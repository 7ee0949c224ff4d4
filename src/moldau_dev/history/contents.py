"""The content of the logs according to a history: records, their offsets and their readers."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from moldau_dev.history.attempts import Attempt, Send
from moldau_dev.history.operations import Kind, Read, Value


@dataclass(slots=True)
class Readers:
    """A set of readers: one consumer group, or all clients."""

    name: str
    topics: tuple[str, ...] = ()
    seen: dict[str, dict[Value, None]] = field(default_factory=dict)
    lowest: dict[str, int] = field(default_factory=dict)
    highest: dict[str, int] = field(default_factory=dict)

    def add(self, key: str, read: Read) -> None:
        offset, value = read
        self.seen.setdefault(key, {})[value] = None
        self.lowest[key] = min(self.lowest.get(key, offset), offset)
        self.highest[key] = max(self.highest.get(key, offset), offset)

    def has_seen(self, key: str, value: Value) -> bool:
        return value in self.seen.get(key, {})

    def should_read(self, key: str) -> bool:
        return not self.topics or key.rpartition("-")[0] in self.topics


class Contents:
    """Built once from the attempts; checks only read it."""

    def __init__(self, attempts: Sequence[Attempt]) -> None:
        self.attempts = attempts
        self.writers: dict[tuple[str, Value], Attempt] = {}
        self.values_at: dict[str, dict[int, dict[Value, None]]] = {}
        self.offsets_of: dict[str, dict[Value, dict[int, None]]] = {}
        self.all_readers = Readers("all readers")
        self.groups: dict[str, Readers] = {}
        self.records_read = 0
        self._group_of: dict[str, Readers] = {}
        for attempt in attempts:
            self._take(attempt)
        for attempt in attempts:
            if attempt.kind is Kind.INFO and self.is_visible(attempt):
                self._take_reads(attempt)  # a transaction without response that was committed
        self.known_offsets = {key: sorted(values) for key, values in self.values_at.items()}

    def readers(self) -> Iterator[Readers]:
        """Yield all readers together, then each group."""
        yield self.all_readers
        yield from self.groups.values()

    def acknowledged(self) -> Iterator[tuple[Attempt, Send]]:
        return ((attempt, send) for attempt in self.attempts if attempt.is_ok for send in attempt.sends)

    def ok_reads(self) -> Iterator[tuple[Attempt, str, Read]]:
        return ((attempt, key, read) for attempt in self.attempts if attempt.is_ok for key, read in attempt.reads())

    def is_visible(self, attempt: Attempt) -> bool:
        """Whether it is known to have happened: it was acknowledged, or a part of it was read."""
        return attempt.is_ok or any(self.all_readers.has_seen(send.key, send.value) for send in attempt.sends)

    def _take(self, attempt: Attempt) -> None:
        for send in attempt.sends:
            self.writers[send.key, send.value] = attempt
        if attempt.f == "subscribe":
            self._subscribe(attempt)
        if not attempt.is_ok:
            return
        self._place((send.key, send.offset, send.value) for send in attempt.sends if send.offset is not None)
        self._take_reads(attempt)

    def _take_reads(self, attempt: Attempt) -> None:
        self._place((key, offset, value) for key, (offset, value) in attempt.reads())
        for key, read in attempt.reads():
            self._see(attempt.process, key, read)

    def _subscribe(self, attempt: Attempt) -> None:
        name, topics = attempt.value["group"], tuple(attempt.value["topics"])
        self._group_of[attempt.process] = self.groups.setdefault(name, Readers(f"group {name}", topics))

    def _place(self, records: Iterable[tuple[str, int, Value]]) -> None:
        for key, offset, value in records:
            self.values_at.setdefault(key, {}).setdefault(offset, {})[value] = None
            self.offsets_of.setdefault(key, {}).setdefault(value, {})[offset] = None

    def _see(self, process: str, key: str, read: Read) -> None:
        self.records_read += 1
        self.all_readers.add(key, read)
        if process in self._group_of:
            self._group_of[process].add(key, read)
