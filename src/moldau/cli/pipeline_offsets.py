"""Resolve --from and --until to offsets, and topics to their ids, before Spark starts."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol

from moldau.cli.connection_options import Connection
from moldau.cli.errors import CommandError, usage_error
from moldau.cli.interrupts import run_async
from moldau.cli.output import topic_id_text
from moldau.cli.positions import parse_position
from moldau.client import types
from moldau.client.async_client import AsyncClient
from moldau.client.positions import AtStart, ListsOffsets, Position, extents, resolve
from moldau.client.types import Isolation, OffsetResult
from moldau.model.ids import TopicPartition

_COMMITTED: Final = Isolation.READ_COMMITTED


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """Values of the source options startingOffsets, endingOffsets and topicIds."""

    starting: str
    ending: str | None = None
    topic_ids: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Partitions:
    """The partitions of topics, and the topics' ids."""

    places: list[TopicPartition]
    topic_ids: dict[str, str]


class Cluster(ListsOffsets, Protocol):
    """Lookups in the cluster, by our own client or by librdkafka."""

    async def find(self, topics: list[str]) -> Partitions: ...


def resolve_offsets(connection: Connection, topics: list[str], start: str, until: str | None) -> OffsetRange:
    """Resolve --from and --until for these topics, which must exist."""
    begin = parse_position(start, "--from")
    finish = None if until is None else parse_position(until, "--until")
    if isinstance(finish, AtStart):
        raise usage_error("--until start would read nothing")
    return run_async(_resolve_offsets(connection, topics, begin, finish))


async def _resolve_offsets(
    connection: Connection, topics: list[str], begin: Position, finish: Position | None
) -> OffsetRange:
    if connection.is_secured:
        return await _resolve(SecuredCluster(connection), topics, begin, finish)
    from moldau.cli.cluster_client import connect_async

    async with connect_async(connection.servers) as client:
        return await _resolve(PlainCluster(client), topics, begin, finish)


async def _resolve(cluster: Cluster, topics: list[str], begin: Position, finish: Position | None) -> OffsetRange:
    from moldau.pipelines.flow import offsets_text

    found = await cluster.find(topics)
    if isinstance(begin, AtStart) and finish is None:
        return OffsetRange(starting="earliest", topic_ids=found.topic_ids)
    known = await extents(cluster, found.places, _COMMITTED)
    starts = await resolve(cluster, begin, known, _COMMITTED)
    if finish is None:
        return OffsetRange(starting=offsets_text(starts), topic_ids=found.topic_ids)
    ends = await resolve(cluster, finish, known, _COMMITTED)
    ending = offsets_text({place: max(end, starts[place]) for place, end in ends.items()})
    return OffsetRange(starting=offsets_text(starts), ending=ending, topic_ids=found.topic_ids)


class PlainCluster:
    """Lookups by our own client."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def find(self, topics: list[str]) -> Partitions:
        views = [await self._client.describe_topic(topic) for topic in topics]
        places = [TopicPartition(view.name, each.index) for view in views for each in view.partitions]
        return Partitions(places, {view.name: topic_id_text(view.topic_id) or "" for view in views})

    async def list_offsets(
        self, times: Mapping[TopicPartition, int], *, isolation: Isolation = _COMMITTED
    ) -> Mapping[TopicPartition, OffsetResult]:
        return await self._client.list_offsets(times, isolation=isolation)


class SecuredCluster:
    """Lookups by librdkafka, which supports TLS and SASL."""

    def __init__(self, connection: Connection) -> None:
        from moldau.pipelines.requirements import require_spark

        require_spark()
        from pyspark_moldau.options.source_options import batch_options
        from pyspark_moldau.source.cluster import ConfluentCluster

        where = {"kafka.bootstrap.servers": connection.servers, "kafka.isolation.level": "read_committed"}
        with _translate_kafka_errors():
            self._cluster = ConfluentCluster(batch_options({**connection.options, **where, "subscribe": "any"}))

    async def find(self, topics: list[str]) -> Partitions:
        from pyspark_moldau.options.source_options import Topics
        from pyspark_moldau.source.read_plan import existing_topics

        with _translate_kafka_errors():
            found = existing_topics(Topics(tuple(topics)), self._cluster)
        places = [TopicPartition(name, each) for name, topic in found.items() for each in topic.partitions]
        return Partitions(places, {name: topic.topic_id for name, topic in found.items()})

    async def list_offsets(
        self, times: Mapping[TopicPartition, int], *, isolation: Isolation = _COMMITTED
    ) -> Mapping[TopicPartition, OffsetResult]:
        assert isolation is _COMMITTED
        (time_ms,) = set(times.values())  # one time for all partitions
        with _translate_kafka_errors():
            match time_ms:
                case types.EARLIEST:
                    found: Mapping[TopicPartition, int | None] = self._cluster.earliest(times)
                case types.LATEST:
                    found = self._cluster.latest(times)
                case _:
                    found = self._cluster.at_times(times)
        return {place: OffsetResult(-1 if offset is None else offset) for place, offset in found.items()}


@contextmanager
def _translate_kafka_errors() -> Iterator[None]:
    from confluent_kafka import KafkaException

    from pyspark_moldau.options.offset_limits import OptionError

    try:
        yield
    except OptionError as error:
        raise CommandError(str(error)) from error
    except KafkaException as error:
        raise CommandError(f"the cluster does not respond: {error.args[0].str()}") from error
