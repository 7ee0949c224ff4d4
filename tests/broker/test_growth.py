"""Costs that do not grow with what exists: lines of Python that run for one operation, at two sizes.

Lines are counted on simulated ports, so the figures are exact and do not depend on the machine.
"""

import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from types import FrameType
from typing import Any, Final

import pytest
from broker_scene import Scene, Talker, batch, on_broker, produce

from moldau.broker.metrics import endpoint
from moldau.wire.messages import (
    CreateTopicsRequest,
    FetchRequest,
    IncrementalAlterConfigsRequest,
    Message,
    ProduceRequest,
)

pytestmark = pytest.mark.proves("F4")

SMALL: Final = 20
LARGE: Final = 320
TOLERANCE: Final = 1.1
FETCH_VERSION: Final = 12
TOPIC: Final = 2  # the resource type

Operation = Callable[[], Awaitable[Any]]


async def lines_of(operation: Operation) -> int:
    """How many lines of Python run until the operation is complete, in the broker and its simulated ports."""
    lines = 0

    def count(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    sys.settrace(count)
    try:
        await operation()
    finally:
        sys.settrace(None)
    return lines


class LongestStep:
    """Awaits a coroutine, and counts the lines between two of its suspensions."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine
        self.lines = 0

    def __await__(self) -> Generator[Any, Any, None]:
        while True:
            lines, awaited = self._step()
            self.lines = max(self.lines, lines)
            if awaited is StopIteration:
                return
            yield awaited

    def _step(self) -> tuple[int, Any]:
        lines = 0

        def count(_frame: FrameType, event: str, _argument: object) -> Any:
            nonlocal lines
            lines += event == "line"
            return count

        sys.settrace(count)
        try:
            awaited = self._coroutine.send(None)
        except StopIteration:
            awaited = StopIteration
        finally:
            sys.settrace(None)
        return lines, awaited


def grows(prepare: Callable[[Scene, Talker, int], Awaitable[Operation]]) -> float:
    """The lines of an operation at the large size, relative to the small one."""
    lines: dict[int, int] = {}
    for size in (SMALL, LARGE):

        async def script(scene: Scene, size: int = size) -> None:
            talker = await scene.connect()
            operation = await prepare(scene, talker, size)
            await operation()  # warm caches
            lines[size] = min([await lines_of(operation) for _ in range(5)])

        on_broker(script)
    return lines[LARGE] / lines[SMALL]


async def with_topics(talker: Talker, names: Sequence[str]) -> None:
    topics = [CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
    response = await talker.ask(5, CreateTopicsRequest(topics=topics))
    assert not any(topic.error_code for topic in response.topics)


def names_of(count: int) -> list[str]:
    return [f"t{number:04d}" for number in range(count)]


async def with_session(talker: Talker, names: Sequence[str]) -> Callable[..., Awaitable[Any]]:
    """Open a fetch session; each call sends its next fetch."""
    session_id, epoch = 0, 0

    async def fetch(*named: tuple[str, int]) -> Any:
        nonlocal session_id, epoch
        topics = [
            FetchRequest.FetchTopic(
                topic=name,
                partitions=[FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)],
            )
            for name, offset in named
        ]
        request = FetchRequest(
            session_id=session_id, session_epoch=epoch, min_bytes=1, max_bytes=1 << 20, topics=topics
        )
        response = await talker.ask(FETCH_VERSION, request)
        assert response.error_code == 0
        session_id, epoch = response.session_id, epoch + 1
        return response

    await fetch(*((name, 0) for name in names))
    return fetch


def test_empty_fetch_costs_the_same_in_every_session() -> None:
    async def prepare(_scene: Scene, talker: Talker, size: int) -> Operation:
        await with_topics(talker, names_of(size))
        return await with_session(talker, names_of(size))

    assert grows(prepare) < TOLERANCE


def test_append_and_fetch_cost_the_same_in_every_session() -> None:
    async def prepare(scene: Scene, talker: Talker, size: int) -> Operation:
        await with_topics(talker, names_of(size))
        fetch = await with_session(talker, names_of(size))
        producer = await scene.connect()

        async def append_and_fetch() -> None:
            await produce(producer, "t0001", batch(b"a"))
            (topic,) = (await fetch()).responses
            await fetch(("t0001", topic.partitions[0].high_watermark))

        return append_and_fetch

    assert grows(prepare) < TOLERANCE


def test_config_of_a_topic_costs_the_same_beside_any_number_of_topics() -> None:
    async def prepare(_scene: Scene, talker: Talker, size: int) -> Operation:
        await with_topics(talker, names_of(size))
        values = iter(range(86_400_000, 86_500_000))
        return lambda: talker.ask(0, retention("t0001", next(values)))

    assert grows(prepare) < TOLERANCE


def retention(topic: str, retention_ms: int) -> Message:
    alter = IncrementalAlterConfigsRequest
    config = alter.AlterableConfig(name="retention.ms", config_operation=0, value=str(retention_ms))
    return alter(resources=[alter.AlterConfigsResource(resource_type=TOPIC, resource_name=topic, configs=[config])])


def test_creation_of_a_topic_costs_the_same_beside_any_number_of_topics() -> None:
    async def prepare(_scene: Scene, talker: Talker, size: int) -> Operation:
        await with_topics(talker, names_of(size))
        more = iter(range(1000))
        return lambda: with_topics(talker, [f"more{next(more):04d}"])

    assert grows(prepare) < TOLERANCE


def test_idle_session_adds_nothing_to_appends() -> None:
    async def prepare(scene: Scene, talker: Talker, size: int) -> Operation:
        await with_topics(talker, ["t0000"])
        for _ in range(size):
            await with_session(await scene.connect(), ["t0000"])
        request = ProduceRequest(
            acks=-1,
            timeout_ms=30_000,
            topic_data=[
                ProduceRequest.TopicProduceData(
                    name="t0000",
                    partition_data=[ProduceRequest.PartitionProduceData(index=0, records=batch(b"a"))],
                )
            ],
        )
        return lambda: talker.ask(9, request)

    assert grows(prepare) < TOLERANCE


def test_metrics_page_never_takes_a_longer_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "SLICE_MS", -1.0)  # every slice ends where it can
    longest: dict[int, int] = {}
    for size in (SMALL, LARGE):

        async def script(scene: Scene, size: int = size) -> None:
            await with_topics(await scene.connect(), names_of(size))
            page = LongestStep(scene.node._metrics_pages().page("/metrics"))
            await page
            longest[size] = page.lines

        on_broker(script)
    assert 0 < longest[LARGE] < TOLERANCE * longest[SMALL]
