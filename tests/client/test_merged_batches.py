"""Records of concurrent requests share batches, and each request gets its own offset or error."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from moldau.client.merged_batches import MERGED_BYTES_MAX, Lane, MergedBatches, NotSent
from moldau.client.types import ProduceResult
from moldau.model.errors import MessageTooLarge, NotLeaderOrFollower
from moldau.records.builder import NewRecord
from moldau.records.compression import Compression
from moldau.testing.clock import SimulatedClock

LANE = Lane("orders", 0, -1, Compression.NONE, 1_000)


def record(value: bytes) -> NewRecord:
    return (0, None, value, ())


class Client:
    """A client whose batches are in flight until they are released; a value `large` is rejected."""

    def __init__(self) -> None:
        self.sent: list[list[bytes | None]] = []
        self.released = asyncio.Event()
        self.end_offset = 100
        self.failure: Exception | None = None

    async def produce(self, _: str, __: int, records: Sequence[NewRecord], *, acks: int, **___: Any) -> ProduceResult:
        values = [value for _, _, value, _ in records]
        self.sent.append(values)
        await self.released.wait()
        if self.failure is not None:
            raise self.failure
        if b"large" in values:
            raise MessageTooLarge("too large")
        self.end_offset += len(records)
        return ProduceResult(self.end_offset - len(records) if acks else -1, -1, 0)


class Times(list[float]):
    """The time of a clock, in milliseconds."""

    def now_ms(self) -> float:
        return self[0]


def batches_of(client: Client, times: Times | None = None) -> MergedBatches:
    clock = SimulatedClock((times or Times([0.0])).now_ms)
    return MergedBatches(client, clock)  # type: ignore[arg-type]


@pytest.mark.proves("A3", part="merged batches")
async def test_requests_that_arrive_meanwhile_share_the_next_batch() -> None:
    client = Client()
    batches = batches_of(client)
    waiting = [batches.produce(LANE, [record(b"0")])]
    await asyncio.sleep(0)
    waiting += [batches.produce(LANE, [record(b"%d" % number)] * (number + 1)) for number in range(1, 4)]
    client.released.set()
    assert await asyncio.gather(*waiting) == [100, 101, 103, 106]
    assert client.sent == [[b"0"], [b"1"] * 2 + [b"2"] * 3 + [b"3"] * 4]
    other = batches.produce(LANE._replace(acks=0), [record(b"x")])
    assert await other == -1


@pytest.mark.proves("A3", part="merged batches")
async def test_rejected_request_does_not_fail_the_others() -> None:
    client = Client()
    batches = batches_of(client)
    waiting = [batches.produce(LANE, [record(value)]) for value in (b"first", b"small", b"large", b"tail")]
    client.released.set()
    first, small, large, tail = await asyncio.gather(*waiting, return_exceptions=True)
    assert (first, small, tail) == (100, 101, 102)
    assert isinstance(large, MessageTooLarge)


@pytest.mark.proves("A3", part="merged batches")
async def test_batch_of_unknown_outcome_is_not_sent_again() -> None:
    client = Client()
    client.failure = NotLeaderOrFollower("moved")
    batches = batches_of(client)
    waiting = [batches.produce(LANE, [record(b"x")]) for _ in range(3)]
    client.released.set()
    failed = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(each) for each in failed] == [NotLeaderOrFollower] * 3
    assert sum(map(len, client.sent)) == 3


@pytest.mark.proves("A3", part="merged batches")
async def test_records_that_waited_too_long_are_not_sent() -> None:
    client, times = Client(), Times([0.0])
    batches = batches_of(client, times)
    first = batches.produce(LANE, [record(b"first")])
    await asyncio.sleep(0)
    late = batches.produce(LANE, [record(b"late")])
    times[0] = 2_000
    client.released.set()
    assert await first == 100
    with pytest.raises(NotSent):
        await late
    assert client.sent == [[b"first"]]


async def test_batches_are_bounded_in_bytes() -> None:
    client = Client()
    batches = batches_of(client)
    half = record(b"x" * (MERGED_BYTES_MAX // 2))
    waiting = [batches.produce(LANE, [half]) for _ in range(5)]
    client.released.set()
    assert await asyncio.gather(*waiting) == [100, 101, 102, 103, 104]
    assert max(map(len, client.sent)) == 2
