"""The fetches of a follower when partitions are added and removed while two are in flight."""

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from moldau.broker.configs.replica_settings import ReplicaSettings
from moldau.broker.partitions.leadership_check import IN_FLIGHT_MAX
from moldau.broker.replicas.fetcher import FetcherDependencies, ReplicaFetcher
from moldau.broker.runtime.rate_limited_logger import RateLimitedLogger
from moldau.model.ids import Address
from moldau.wire.codec import request_decoder
from moldau.wire.follower_fetch import FetchPartition
from moldau.wire.messages import FetchResponse

TOPIC_ID = b"t" * 16
LATER_CODE = 999


class Wire:
    """Records fetches, and responds on demand."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self._callbacks: list[Any] = []

    def send_borrowing(self, request: Any, *, timeout_ms: float, on_response: Any, on_error: Any) -> None:  # noqa: ARG002
        self.requests.append(request)
        self._callbacks.append(on_response)

    def try_send_raw(
        self,
        message: Any,
        versions: tuple[int, int],
        *,
        timeout_ms: float,
        write: Any,
        read: Any,  # noqa: ARG002
        on_response: Any,
        on_error: Any,
    ) -> bool:
        frame = write(versions[1], 1, b"c")
        request, _ = request_decoder(message.API_KEY, versions[1])(memoryview(frame), 4 + 8 + 2 + 1 + 1)
        self.send_borrowing(request, timeout_ms=timeout_ms, on_response=on_response, on_error=on_error)
        return True

    def response(self, response: FetchResponse | None = None) -> None:
        """Respond to the oldest fetch, by default with an empty response."""
        self._callbacks.pop(0)(response or FetchResponse(session_id=5, responses=[]))

    @property
    def in_flight(self) -> int:
        return len(self._callbacks)


def fetcher_on(wire: Wire) -> ReplicaFetcher:
    dependencies = FetcherDependencies(
        node_id=2,
        peers=cast(Any, SimpleNamespace(link_to=lambda *_: wire)),
        clock=cast(Any, SimpleNamespace(wall_ms=lambda: 0)),
        limited_logger=RateLimitedLogger(cast(Any, SimpleNamespace(wall_ms=lambda: 0)), logging.getLogger(__name__)),
        truncation_sync=cast(Any, None),
        throttles=cast(Any, SimpleNamespace(follower_delay_ms=lambda *_, **__: 0.0)),
        settings=ReplicaSettings,
        address_of=lambda _: Address("n1", 9092),
        broker_epoch=lambda: 7,
        failed=lambda _, error: pytest.fail(str(error)),
    )
    return ReplicaFetcher(1, "replicas", dependencies)


class Stand:
    """A followed partition, in one leader epoch."""

    def __init__(self, **fields: object) -> None:
        vars(self).update(fields)


def new(index: int) -> Any:
    return Stand(
        key=(TOPIC_ID, index),
        partition=Stand(topic_id=TOPIC_ID, name=Stand(partition=index), log=Stand(settings=None)),
        can_be_fetched=True,
        waits_for_sync=False,
        is_in_session=False,
        is_in_sync=True,
        accepts_response=lambda _: True,
        failures=0,
        build_fetch_partition=lambda *_: FetchPartition(TOPIC_ID, index, 1, 0, 1, 0, 1000),
    )


def named(request: Any) -> list[int]:
    return [each.partition for topic in request.topics for each in topic.partitions]


def forgotten(request: Any) -> list[int]:
    return [index for topic in request.forgotten_topics_data for index in topic.partitions]


async def in_session(wire: Wire, fetcher: ReplicaFetcher, *followed: Any) -> None:
    """Respond to the fetch that names them, and let two fetches be in flight."""
    for each in followed:
        fetcher.add(each)
    await asyncio.sleep(0)
    wire.response()
    fetcher.add(new(9))
    await asyncio.sleep(0)
    assert wire.in_flight == IN_FLIGHT_MAX


@pytest.mark.proves("H5", part="fencing")
def test_removed_partition_is_forgotten_after_repeated_leader_changes() -> None:
    async def play() -> None:
        wire = Wire()
        fetcher = fetcher_on(wire)
        first, second = new(0), new(0)
        await in_session(wire, fetcher, first)
        fetcher.remove(first)
        fetcher.add(second)  # the same leader in its next epoch, not yet in any fetch
        fetcher.remove(second)
        await asyncio.sleep(0)
        wire.response()
        wire.response()
        assert [index for request in wire.requests for index in forgotten(request)] == [0]
        await fetcher.close()

    asyncio.run(play())


def test_removed_and_added_partition_is_forgotten_and_named_in_one_fetch() -> None:
    async def play() -> None:
        wire = Wire()
        fetcher = fetcher_on(wire)
        first = new(0)
        await in_session(wire, fetcher, first)
        fetcher.remove(first)
        fetcher.add(new(0))
        await asyncio.sleep(0)
        assert wire.in_flight == IN_FLIGHT_MAX, "no third one"
        wire.response()
        assert (named(wire.requests[-1]), forgotten(wire.requests[-1])) == ([0], [0])
        await fetcher.close()

    asyncio.run(play())


@pytest.mark.parametrize("is_whole", [True, False], ids=["the fetch", "a partition"])
def test_fetch_is_retried_after_an_unknown_error_code(is_whole: bool) -> None:
    async def play() -> None:
        wire = Wire()
        fetcher = fetcher_on(wire)
        fetcher.add(new(0))
        await asyncio.sleep(0)
        rejected = FetchResponse.PartitionData(partition_index=0, error_code=LATER_CODE)
        topic = FetchResponse.FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[rejected])
        wire.response(
            FetchResponse(error_code=LATER_CODE) if is_whole else FetchResponse(session_id=5, responses=[topic])
        )
        await asyncio.sleep(0.1)
        assert named(wire.requests[-1]) == [0]
        assert len(wire.requests) > 1
        await fetcher.close()

    asyncio.run(play())
