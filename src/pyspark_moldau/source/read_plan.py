"""Plans reads from the options, the checkpoint's offsets and the cluster's metadata.

All requests go through the `Cluster` protocol, which tests replace.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from moldau.model.ids import TopicPartition
from moldau.model.units import HOUR_MS
from pyspark_moldau.options.offset_limits import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    AtOffsets,
    AtTime,
    AtTimes,
    Earliest,
    Latest,
    Limit,
    Offsets,
    OptionError,
)
from pyspark_moldau.options.source_options import Assignment, SourceOptions, Subscription, Topics
from pyspark_moldau.source.offset_ranges import OffsetRange, split
from pyspark_moldau.source.rate_limit import RateLimit

log = logging.getLogger("pyspark_moldau")

# Committed offsets of a group without members expire after a week (offsets.retention.minutes).
_COMMIT_AGAIN_MS: Final = 12 * HOUR_MS


class RecordsLost(RuntimeError):
    """Records that the query should have read are no longer available."""


class UnknownTopic(RuntimeError):
    """A topic was deleted after it was described."""


class Topic(NamedTuple):
    """A topic's id and partitions; a recreated topic has a new id."""

    topic_id: str
    partitions: tuple[int, ...]


class Cluster(Protocol):
    """The cluster metadata that planning needs."""

    def topics(self, subscription: Subscription) -> dict[str, Topic]:
        """Return the matching topics that exist."""
        ...

    def earliest(self, partitions: Collection[TopicPartition]) -> Offsets: ...

    def latest(self, partitions: Collection[TopicPartition]) -> Offsets:
        """Return high watermarks, or last stable offsets with `read_committed`; may raise `UnknownTopic`."""
        ...

    def at_times(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return the first offset at or after a timestamp; None if all records are older."""
        ...

    def commit(self, group: str, offsets: Offsets) -> None: ...


def plan_batch(options: SourceOptions, cluster: Cluster) -> list[OffsetRange]:
    """Return the ranges of a batch query, split for its tasks."""
    topics = existing_topics(options.subscription, cluster)
    partitions = partitions_of(options.subscription, topics)
    starts = starting_offsets(options, cluster, partitions)
    ends = ending_offsets(options, cluster, partitions)
    _check_order(starts, ends)
    ranges = [OffsetRange(*each, starts[each], ends[each], topics[each.topic].topic_id) for each in partitions]
    return split(ranges, options.partitions_min, options.records_per_partition_max)


def _check_order(starts: Offsets, ends: Offsets) -> None:
    wrong = [f"{where} from {starts[where]} to {ends[where]}" for where in sorted(ends) if starts[where] > ends[where]]
    if wrong:
        raise OptionError(f"A batch query would end before it starts: {', '.join(wrong)}.")


def existing_topics(subscription: Subscription, cluster: Cluster) -> dict[str, Topic]:
    """Return the topics to read; raises if a named topic does not exist."""
    topics = cluster.topics(subscription)
    match subscription:
        case Topics(names):
            wanted: Iterable[str] = names
        case Assignment(assigned):
            wanted = dict.fromkeys(each.topic for each in assigned)
        case _:
            wanted = ()
    missing = [name for name in wanted if name not in topics]
    if missing:
        raise OptionError(f"Topics do not exist: {', '.join(missing)}.")
    return topics


def partitions_of(subscription: Subscription, topics: Mapping[str, Topic]) -> list[TopicPartition]:
    there = [TopicPartition(name, each) for name, topic in sorted(topics.items()) for each in topic.partitions]
    if not isinstance(subscription, Assignment):
        return there
    known, wanted = set(there), set(subscription.partitions)
    missing = [str(each) for each in subscription.partitions if each.topic in topics and each not in known]
    if missing:
        raise OptionError(f"Option 'assign' names partitions that do not exist: {', '.join(missing)}.")
    return [each for each in there if each in wanted]


def starting_offsets(options: SourceOptions, cluster: Cluster, partitions: list[TopicPartition]) -> Offsets:
    """Return the starting offsets of a query without a checkpoint."""
    found = _resolve("startingOffsets", options.starting, cluster, partitions)
    late = [each for each in partitions if found[each] is None]
    if late and not options.falls_back_to_latest:
        raise OptionError(
            f"No record of {', '.join(map(str, late))} is at or after the starting timestamp. Set "
            "'startingOffsetsByTimestampStrategy' to 'latest' to start at the latest offset instead."
        )
    return _or_latest(found, cluster, late)


def ending_offsets(options: SourceOptions, cluster: Cluster, partitions: list[TopicPartition]) -> Offsets:
    """Return the ending offsets of a batch query; a timestamp after the last record means the log end."""
    found = _resolve("endingOffsets", options.ending, cluster, partitions)
    return _or_latest(found, cluster, [each for each in partitions if found[each] is None])


def _or_latest(found: Mapping[TopicPartition, int | None], cluster: Cluster, late: list[TopicPartition]) -> Offsets:
    latest = cluster.latest(late) if late else {}
    return {where: latest[where] if offset is None else offset for where, offset in found.items()}


def _resolve(
    option: str, limit: Limit, cluster: Cluster, partitions: list[TopicPartition]
) -> Mapping[TopicPartition, int | None]:
    match limit:
        case Earliest():
            return cluster.earliest(partitions)
        case Latest():
            return cluster.latest(partitions)
        case AtTime(time_ms):
            return cluster.at_times(dict.fromkeys(partitions, time_ms))
        case AtTimes(times_ms):
            _check_complete(f"{option}ByTimestamp", times_ms, partitions)
            return cluster.at_times(times_ms)
        case AtOffsets(offsets):
            _check_complete(option, offsets, partitions)
            return _named(offsets, cluster)


def _named(offsets: Mapping[TopicPartition, int], cluster: Cluster) -> Offsets:
    earliest = [where for where, offset in offsets.items() if offset == EARLIEST_OFFSET]
    latest = [where for where, offset in offsets.items() if offset == LATEST_OFFSET]
    known = dict(offsets)
    known |= cluster.earliest(earliest) if earliest else {}
    return known | (cluster.latest(latest) if latest else {})


def _check_complete(option: str, given: Mapping[TopicPartition, int], partitions: list[TopicPartition]) -> None:
    if set(given) != set(partitions):
        raise OptionError(
            f"Option '{option}' must name exactly the partitions that are read; use -1 for latest and -2 for earliest. "
            f"It names {_listed(given)}; the query reads {_listed(partitions)}."
        )


def _without(offsets: Offsets, gone: Collection[TopicPartition]) -> Offsets:
    return {where: offset for where, offset in offsets.items() if where not in gone}


def _listed(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(map(str, sorted(partitions))) or "none"


@dataclass(slots=True)
class StreamPlan:
    """One run of a streaming query, on the driver."""

    options: SourceOptions
    cluster: Cluster
    monotonic_ms: Callable[[], float]
    _topic_ids: dict[str, str] = field(init=False)
    _has_checked_ids: bool = False  # against the current topic ids
    _initial: Offsets | None = None  # starting offsets without a checkpoint
    _available: Offsets | None = None  # end offsets of an AvailableNow run
    _newest: Offsets = field(default_factory=dict)
    _recreated: Offsets = field(default_factory=dict)  # offsets of a deleted topic that was recreated
    _read_to: Offsets | None = None  # end of the last batch of this run
    _committed: Offsets = field(default_factory=dict)
    _committed_ms: float = 0.0
    _rate: RateLimit = field(init=False)

    def __post_init__(self) -> None:
        self._topic_ids = dict(self.options.topic_ids)
        least, delay_ms = self.options.offsets_per_trigger_min, self.options.trigger_delay_ms_max
        self._rate = RateLimit(least, self.options.offsets_per_trigger_max, delay_ms)

    def initial(self) -> Offsets:
        """Return the starting offsets of a query without a checkpoint."""
        topics = existing_topics(self.options.subscription, self.cluster)
        partitions = partitions_of(self.options.subscription, topics)
        self._initial = starting_offsets(self.options, self.cluster, partitions)
        if self._available is not None:  # "latest" resolved later may be behind the available end
            ends = {where: max(self._available.get(where, start), start) for where, start in self._initial.items()}
            self._available |= ends
        return self._initial

    def prepare_available_now(self) -> None:
        """Fix the end offsets; later records are left for the next run."""
        self._available = self.cluster.latest(self._partitions(self.cluster.topics(self.options.subscription)))

    def latest(self, start: Offsets, *, is_limited: bool) -> Offsets:
        """Return the end offsets of the next batch."""
        topics = self.cluster.topics(self.options.subscription)
        self._check_topic_ids(topics, start)
        self.commit(start)
        end = self._latest_now(topics, start) if self._available is None else self._still_available(start, topics)
        self._newest = end
        self._report_truncated(start, end)
        if not is_limited:
            return end
        limited = self._rate.limit(self._begin(start, end), end, self.monotonic_ms(), waits=self._available is None)
        return start if limited is None else limited

    @property
    def newest(self) -> Offsets:
        """Return the last known end of each partition."""
        return self._newest

    def ranges(self, start: Offsets, end: Offsets) -> list[OffsetRange]:
        """Return the task ranges of the batch between `start` and `end`."""
        read_to = end
        if not self._has_checked_ids:  # a batch that an earlier run did not finish
            topics = self.cluster.topics(self.options.subscription)
            start, end = self._drop_missing(start, end, topics)
            start = self._start_of_former_run(start, end)
            self._check_topic_ids(topics, start)
        self._report_missing(start, end)
        self._report_truncated(start, end)
        begin = self._begin(start, end)
        self._read_to = read_to
        ranges = [self._range(where, begin[where], end[where]) for where in sorted(end)]
        return split(ranges, self.options.partitions_min, self.options.records_per_partition_max)

    def _drop_missing(self, start: Offsets, end: Offsets, topics: Mapping[str, Topic]) -> tuple[Offsets, Offsets]:
        """Drop deleted topics, which remain in the checkpoint's offsets forever."""
        there = set(self._partitions(topics))
        gone = [where for where in sorted(end) if where not in there and end[where] != start.get(where)]
        self._report_missing_partitions(gone)
        return _without(start, gone), _without(end, gone)

    def _start_of_former_run(self, start: Offsets, end: Offsets) -> Offsets:
        """Correct the start of a replayed first batch, of which the checkpoint stores only the end.

        "Latest" or a timestamp resolves differently now, possibly behind that end. The original start was
        before the end, so the end itself is a safe start as long as the log still has it.
        """
        if start != self._initial:
            return start
        known = {where: offset for where, offset in start.items() if where in end}
        late = [where for where in sorted(known) if known[where] > end[where]]
        earliest = self.cluster.earliest(late) if late else {}
        for where in late:
            if earliest[where] > end[where]:
                self._report_data_loss(
                    f"{where} was to be read up to offset {end[where]} but now begins at {earliest[where]}"
                )
        return known | {where: end[where] for where in late}

    def commit(self, offsets: Offsets) -> None:
        """Commit the progress to the consumer group, if one is set. Errors do not stop the query."""
        if self.options.group is None or not offsets:
            return
        now_ms = self.monotonic_ms()
        if offsets == self._committed and now_ms - self._committed_ms < _COMMIT_AGAIN_MS:
            return
        try:
            self.cluster.commit(self.options.group, offsets)
            self._committed, self._committed_ms = dict(offsets), now_ms
        except Exception as error:
            log.warning("Cannot commit offsets to group '%s': %s", self.options.group, error)

    def _partitions(self, topics: Mapping[str, Topic]) -> list[TopicPartition]:
        there = [TopicPartition(name, each) for name, topic in sorted(topics.items()) for each in topic.partitions]
        if not isinstance(self.options.subscription, Assignment):
            return there
        wanted = set(self.options.subscription.partitions)
        return [each for each in there if each in wanted]

    def _latest_now(self, topics: Mapping[str, Topic], start: Offsets) -> Offsets:
        try:
            return self.cluster.latest(self._partitions(topics))
        except UnknownTopic:  # deleted since it was described, and possibly recreated
            described = self.cluster.topics(self.options.subscription)
            if described == topics:
                raise
            self._check_topic_ids(described, start)
            return self.cluster.latest(self._partitions(described))

    def _still_available(self, start: Offsets, topics: Mapping[str, Topic]) -> Offsets:
        """Return the AvailableNow ends without topics that were deleted meanwhile."""
        there = set(self._partitions(topics))
        available = self._available or {}
        return {where: end for where, end in available.items() if where in there or start.get(where) == end}

    def _report_truncated(self, start: Offsets, end: Offsets) -> None:
        for where in sorted(set(start) & set(end)):
            if end[where] < start[where] != self._recreated.get(where):
                self._report_data_loss(f"{where} was read up to offset {start[where]} but now ends at {end[where]}")

    def _begin(self, start: Offsets, end: Offsets) -> Offsets:
        """Return the start of each partition; new partitions start at their earliest offset."""
        fresh = [each for each in sorted(end) if each not in start or self._recreated.get(each) == start[each]]
        earliest = self.cluster.earliest(fresh) if fresh else {}
        for where in fresh:
            if where not in start and earliest[where] > 0:
                self._report_data_loss(f"the new partition {where} starts at offset {earliest[where]} instead of 0")
        return {where: earliest[where] if where in earliest else start[where] for where in end}

    def _range(self, where: TopicPartition, begin: int, end: int) -> OffsetRange:
        return OffsetRange(*where, begin, end, self._topic_ids.get(where.topic, ""))

    def _report_missing(self, start: Offsets, end: Offsets) -> None:
        self._report_missing_partitions(sorted(set(start) - set(end)))

    def _report_missing_partitions(self, gone: list[TopicPartition]) -> None:
        if gone:
            self._report_data_loss(f"{_listed(gone)} {'does' if len(gone) == 1 else 'do'} not exist any more")

    def _check_topic_ids(self, topics: Mapping[str, Topic], start: Offsets) -> None:
        """Detect recreated topics, whose offsets are unrelated to the checkpoint's.

        A checkpoint stores offsets in Spark's format, without ids: ids of earlier runs come from the option `topicIds`.
        """
        self._has_checked_ids = True
        if start == self._read_to:  # these offsets were read after the topic was recreated
            self._recreated = {}
        for name, topic in sorted(topics.items()):
            known = self._topic_ids.get(name)
            if known and topic.topic_id and known != topic.topic_id:
                self._report_data_loss(
                    f"topic {name} was deleted and recreated: its id was {known} and is {topic.topic_id}"
                )
                self._recreated |= {where: offset for where, offset in start.items() if where.topic == name}
            self._topic_ids[name] = topic.topic_id

    def _report_data_loss(self, what: str) -> None:
        if self.options.fails_on_data_loss:
            raise RecordsLost(
                f"Some records may have been lost: {what}. Set 'failOnDataLoss' to false to continue anyway."
            )
        log.warning("Some records may have been lost: %s.", what)
