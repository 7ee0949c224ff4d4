"""Offsets that were committed in a transaction which has not ended: nobody sees them until it is known how it ends."""

from collections.abc import Iterator

from moldau.wire import messages

OffsetKey = tuple[str, str, int]
"""Group, topic and partition."""


class PendingOffsets:
    """By producer, for a transaction's end; and by group, for those who ask whether an offset is settled.

    The order counts: the record that stands later in the log wins, whichever transaction ends first. So a settled
    offset, or one that was committed without a transaction, leaves nothing pending of what came before it.
    """

    __slots__ = ("_by_group", "_by_producer")

    def __init__(self) -> None:
        self._by_producer: dict[int, dict[OffsetKey, messages.OffsetCommitValue]] = {}
        self._by_group: dict[str, dict[tuple[str, int], dict[int, None]]] = {}  # producers, the latest last

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
        """What the producer's transaction has committed, if it is not overtaken; nothing of it is pending now."""
        ended = self._by_producer.pop(producer_id, {})
        for key in ended:
            self._leave(producer_id, key)
        return ended

    def of_producer(self, producer_id: int) -> list[OffsetKey]:
        return list(self._by_producer.get(producer_id, ()))

    def overtake(self, key: OffsetKey, by: int | None = None) -> None:
        """What is pending for this key no longer counts: all of it, or what came before that of one producer."""
        group_id, topic, partition = key
        for producer_id in list(self._by_group.get(group_id, {}).get((topic, partition), ())):
            if producer_id == by:
                break
            offsets = self._by_producer[producer_id]
            del offsets[key]
            if not offsets:
                del self._by_producer[producer_id]
            self._leave(producer_id, key)

    def _leave(self, producer_id: int, key: OffsetKey) -> None:
        group_id, topic, partition = key
        places = self._by_group[group_id]
        producers = places[topic, partition]
        del producers[producer_id]
        if not producers:
            del places[topic, partition]
            if not places:
                del self._by_group[group_id]

    def has(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether it may soon be another offset than the one that is known."""
        return bool(self._by_group) and (topic, partition) in self._by_group.get(group_id, {})

    def has_any(self, group_id: str) -> bool:
        return group_id in self._by_group

    def places(self, group_id: str) -> list[tuple[str, int]]:
        """Topics and partitions for which the group has something pending."""
        return list(self._by_group.get(group_id, ()))

    def group_ids(self) -> list[str]:
        """The groups that have something pending."""
        return list(self._by_group)

    def at(self, key: OffsetKey) -> Iterator[messages.OffsetCommitValue]:
        """What is pending for one partition, by any producer."""
        group_id, topic, partition = key
        for producer_id in self._by_group.get(group_id, {}).get((topic, partition), ()):
            yield self._by_producer[producer_id][key]
