"""The log dirs of each broker: space, replicas, copies that move, and whether the broker can use the log dir."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

from moldau.client.async_client import AsyncClient
from moldau.client.errors import ConnectionLost, ResponseTimeout, Unreachable, check
from moldau.model.errors import BrokerNotAvailable, ErrorCode
from moldau.model.ids import TopicPartition
from moldau.wire import messages

UNREACHABLE: Final = (BrokerNotAvailable, ConnectionLost, ResponseTimeout, Unreachable)  # a fenced one is not available


@dataclass(frozen=True, slots=True)
class LogDirReplica:
    """A replica in a log dir. A future one is a copy that replaces the replica of another log dir when it caught up."""

    partition: TopicPartition
    size_bytes: int
    lag: int
    is_future: bool


@dataclass(frozen=True, slots=True)
class LogDir:
    """A log dir of a broker. Total and free bytes are None if the broker does not report them."""

    broker: int
    path: str
    error: ErrorCode | None  # None: online
    total_bytes: int | None
    free_bytes: int | None
    is_cordoned: bool
    replicas: tuple[LogDirReplica, ...]

    @property
    def is_offline(self) -> bool:
        return self.error is not None

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.replicas)

    @property
    def futures(self) -> list[LogDirReplica]:
        return [each for each in self.replicas if each.is_future]


@dataclass(frozen=True, slots=True)
class LogDirs:
    """The log dirs of the brokers that respond, by broker and path."""

    found: tuple[LogDir, ...]
    unreachable: tuple[int, ...]


async def describe_log_dirs(client: AsyncClient, brokers: Collection[int], topics: Collection[str] = ()) -> LogDirs:
    """Describe the log dirs of these brokers, with the replicas of these topics, or of all if none is named.

    A broker that does not respond is named in the result; an error that a broker responds with is raised.
    """
    nodes = sorted(brokers)
    responses = await asyncio.gather(*(_log_dirs_of(client, each) for each in nodes))
    found = [each for response in responses for each in response or ()]
    wanted = [_only(each, topics) for each in found] if topics else found
    unreachable = [node for node, response in zip(nodes, responses, strict=True) if response is None]
    return LogDirs(tuple(wanted), tuple(unreachable))


async def _log_dirs_of(client: AsyncClient, node: int) -> list[LogDir] | None:
    try:
        response = await client.send(messages.DescribeLogDirsRequest(topics=None), node=node)
    except UNREACHABLE:
        return None
    check(response.error_code)
    return sorted((_log_dir(node, each) for each in response.results), key=lambda each: each.path)


def _log_dir(node: int, result: messages.DescribeLogDirsResponse.DescribeLogDirsResult) -> LogDir:
    replicas = [
        LogDirReplica(
            TopicPartition(topic.name, each.partition_index), each.partition_size, each.offset_lag, each.is_future_key
        )
        for topic in result.topics
        for each in topic.partitions
    ]
    return LogDir(
        node,
        result.log_dir,
        None if result.error_code == ErrorCode.NONE else _known(result.error_code),
        result.total_bytes if result.total_bytes >= 0 else None,
        result.usable_bytes if result.usable_bytes >= 0 else None,
        result.is_cordoned,
        tuple(sorted(replicas, key=lambda each: (each.partition, each.is_future))),
    )


def _known(code: int) -> ErrorCode:
    return ErrorCode(code) if code in list(ErrorCode) else ErrorCode.UNKNOWN_SERVER_ERROR


def _only(log_dir: LogDir, topics: Collection[str]) -> LogDir:
    return replace(log_dir, replicas=tuple(each for each in log_dir.replicas if each.partition.topic in topics))
