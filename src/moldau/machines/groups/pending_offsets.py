"""Offsets committed in open transactions: invisible until the transaction commits."""

from collections.abc import Iterator

from moldau.wire import messages

OffsetKey = tuple[str, str, int]
"""Group, topic and partition."""


class PendingOffsets:
    """Pending offsets by producer, to end a transaction, and by group, to detect unstable offsets.

    Order matters: of two commits for a key the later record in the log wins, whichever transaction ends first. So a
    plain commit, or the commit of a transaction, drops everything that was pending for the key before it.
    """

    __slots__ = ("_by_group", "_by_producer")

    def __init__(self) -> None:
        self._by_producer: dict[int, dict[OffsetKey, messages.OffsetCommitValue]] = {}
        self._by_group: dict[str, dict[tuple[str, int], dict[int, None]]] = {}  # producers, latest last

    def __bool__(self) -> bool:
        return bool(self._by_producer)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PendingOffsets) and self._by_producer == other._by_producer

    __hash__ = None  # type: ignore[assignment]

    def add(self, producer_id: int, key: messages.OffsetCommitKey, value: messages.OffsetCommitValue) -> None:
        self._by_producer.setdefault(producer_id, {})[key.group, key.topic, key.partition] = value
        producers = self._by_group.setdefault(key.group, {}).setdefault((key.topic, key.partition), {})
        producers.pop(producer_id, None)
        producers[producer_id] = None

    def end(self, producer_id: int) -> dict[OffsetKey, messages.OffsetCommitValue]:
        """Remove and return a producer's pending offsets, except superseded ones."""
        ended = self._by_producer.pop(producer_id, {})
        for key in ended:
            self._remove(producer_id, key)
        return ended

    def of_producer(self, producer_id: int) -> list[OffsetKey]:
        return list(self._by_producer.get(producer_id, ()))

    def supersede(self, key: OffsetKey, by: int | None = None) -> None:
        """Drop what is pending for this key: all of it, or everything before that of one producer."""
        group_id, topic, partition = key
        for producer_id in list(self._by_group.get(group_id, {}).get((topic, partition), ())):
            if producer_id == by:
                break
            offsets = self._by_producer[producer_id]
            del offsets[key]
            if not offsets:
                del self._by_producer[producer_id]
            self._remove(producer_id, key)

    def _remove(self, producer_id: int, key: OffsetKey) -> None:
        group_id, topic, partition = key
        partitions = self._by_group[group_id]
        producers = partitions[topic, partition]
        del producers[producer_id]
        if not producers:
            del partitions[topic, partition]
            if not partitions:
                del self._by_group[group_id]

    def has(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an offset is pending for this partition."""
        return bool(self._by_group) and (topic, partition) in self._by_group.get(group_id, {})

    def has_any(self, group_id: str) -> bool:
        return group_id in self._by_group

    def partitions(self, group_id: str) -> list[tuple[str, int]]:
        """Return topics and partitions with pending offsets."""
        return list(self._by_group.get(group_id, ()))

    def group_ids(self) -> list[str]:
        """Return the groups with pending offsets."""
        return list(self._by_group)

    def at(self, key: OffsetKey) -> Iterator[messages.OffsetCommitValue]:
        """Yield the pending offsets of a partition, of all producers."""
        group_id, topic, partition = key
        for producer_id in self._by_group.get(group_id, {}).get((topic, partition), ()):
            yield self._by_producer[producer_id][key]
