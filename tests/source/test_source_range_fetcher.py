"""One task with scripted fetch responses: gaps, losses and slow responses are topic_id apart."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from moldau.client.errors import ResponseTimeout
from moldau.client.metadata import Metadata, TopicView
from moldau.client.types import EARLIEST, LATEST, FetchResult, Isolation, OffsetResult
from moldau.model.errors import NotLeaderOrFollower, OffsetOutOfRange, UnsupportedVersion
from moldau.model.ids import NO_TOPIC_ID, NodeId, TopicId
from moldau.records.builder import build_batch
from pyspark_moldau.options.source_options import batch_options
from pyspark_moldau.source import raw_fetcher
from pyspark_moldau.source.offset_ranges import OffsetRange
from pyspark_moldau.source.raw_fetcher import RangeFetcher
from pyspark_moldau.source.read_plan import RecordsLost

END = 100
LOCAL = -4
EMPTY = FetchResult(high_watermark=END, last_stable_offset=END, log_start_offset=0)
WANTED = OffsetRange("t", 0, 0, 20)

Response = FetchResult | Exception
Logged = pytest.LogCaptureFixture


def records(first: int, count: int) -> FetchResult:
    batch = build_batch([(0, b"k", b"v", ())] * count)
    batch[0:8] = first.to_bytes(8, "big")
    return FetchResult(memoryview(bytes(batch)), END, END, 0)


@dataclass
class ScriptedClient:
    """A client with scripted fetch responses, of which the last is repeated, and a table of listed offsets."""

    responses: list[Response]
    offsets: dict[int, int | Exception] = field(default_factory=dict)
    topic_ids: list[bytes] = field(default_factory=lambda: [NO_TOPIC_ID])
    waits_ms: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    metadata: Metadata = field(default_factory=lambda: Metadata(brokers={NodeId(1): None}))  # type: ignore[dict-item]

    async def fetch(self, *where: Any, **how: Any) -> FetchResult:
        self.waits_ms.append(how["max_wait_ms"])
        self.positions.append(where[2])
        self._learn()
        response = self.responses.pop(0) if len(self.responses) > 1 else self.responses[0]
        if isinstance(response, Exception):
            raise response
        return response

    async def list_offset(self, *where: Any, isolation: Isolation) -> OffsetResult:
        assert isolation is Isolation.READ_UNCOMMITTED
        found = {EARLIEST: 0, LATEST: END, LOCAL: 0, **self.offsets}[where[2]]
        if isinstance(found, Exception):
            raise found
        return OffsetResult(found)

    async def retry(self, attempt: Callable[[], Any], *, about: str) -> Any:
        assert about == "t"
        return await attempt()

    async def topic(self, name: str) -> TopicView:
        self._learn()
        return self.metadata.topics[name]

    async def close(self) -> None: ...

    def _learn(self) -> None:
        topic_id = self.topic_ids.pop(0) if len(self.topic_ids) > 1 else self.topic_ids[0]
        self.metadata.topics["t"] = TopicView("t", TopicId(topic_id))


@pytest.fixture
def read() -> Iterator[Callable[..., Iterator[Any]]]:
    made: list[RangeFetcher] = []

    def rows(client: ScriptedClient, wanted: OffsetRange = WANTED, **given: str) -> Iterator[Any]:
        words = {name.replace("__", "."): value for name, value in given.items()}
        must = {"kafka.bootstrap.servers": "b:1", "subscribe": "t", "kafkaConsumer.pollTimeoutMs": "5000"}
        options = batch_options(must | words)
        made.append(RangeFetcher(wanted, options, client, asyncio.new_event_loop()))  # type: ignore[arg-type]
        return made[-1].rows()

    yield rows
    for each in made:
        each.close()


Read = Callable[..., Iterator[Any]]


def offsets(rows: Iterator[Any]) -> list[int]:
    return [offset for batch in rows for offset in batch["offset"].to_pylist()]


# Responses without records


@pytest.mark.proves("D1")
@pytest.mark.parametrize("count", [1, 2])
def test_few_empty_fetches_do_not_end_a_range(read: Read, count: int) -> None:
    client = ScriptedClient([records(0, 10), *[EMPTY] * count, records(10, 10)])
    assert offsets(read(client)) == list(range(20))


@pytest.mark.proves("D1")
def test_gap_is_accepted_soon_and_logged(read: Read, caplog: Logged) -> None:
    client = ScriptedClient([records(0, 10), EMPTY])
    began_s = time.monotonic()
    with caplog.at_level(logging.WARNING):
        assert offsets(read(client)) == list(range(10))
    assert time.monotonic() - began_s < 2.0
    assert client.waits_ms == [500, 500, 50, 50]
    assert "No records in t-0 from offset 10 to 19" in caplog.text


@pytest.mark.proves("D1")
def test_tiered_records_are_awaited_with_growing_fetch_waits(read: Read) -> None:
    client = ScriptedClient([records(0, 10), *[EMPTY] * 6, records(10, 10)], {LOCAL: 60})
    assert offsets(read(client)) == list(range(20))
    assert client.waits_ms == [500, 500, 50, 50, 1500, 2000, 2500, 3000]


@pytest.mark.proves("D1")
def test_tiered_records_that_never_arrive_are_an_error(read: Read) -> None:
    client = ScriptedClient([records(0, 10), EMPTY], {LOCAL: 60})
    rows = read(client, kafkaConsumer__pollTimeoutMs="300")
    assert next(rows).num_rows == 10
    with pytest.raises(TimeoutError, match="at offset 10 within 300 ms"):
        next(rows)


@pytest.mark.proves("D1")
def test_empty_fetches_of_a_cluster_without_tiered_storage_are_a_gap(read: Read) -> None:
    client = ScriptedClient([records(0, 10), EMPTY], {LOCAL: UnsupportedVersion("what is -4?")})
    assert offsets(read(client)) == list(range(10))


def test_failed_lookup_of_the_local_log_start_is_an_error(read: Read) -> None:
    client = ScriptedClient([records(0, 10), EMPTY], {LOCAL: NotLeaderOrFollower("not me")})
    with pytest.raises(NotLeaderOrFollower):
        offsets(read(client))


def test_redirect_to_a_preferred_replica_is_no_empty_fetch(read: Read) -> None:
    elsewhere = FetchResult(high_watermark=END, last_stable_offset=END, preferred_read_replica=NodeId(2))
    client = ScriptedClient([*[elsewhere] * 5, records(0, 20)])
    assert offsets(read(client)) == list(range(20))


@pytest.mark.proves("D1")
def test_time_spent_on_rows_does_not_count_as_waiting(read: Read) -> None:
    client = ScriptedClient([records(0, 10), EMPTY, records(10, 10)])
    rows = read(client, kafkaConsumer__pollTimeoutMs="200")
    assert next(rows).num_rows == 10
    time.sleep(0.4)  # processing of the rows takes longer than the poll timeout
    assert offsets(rows) == list(range(10, 20))


@pytest.mark.proves("D1")
def test_lagging_high_watermark_is_awaited_without_fail_on_data_loss(read: Read) -> None:
    """The high watermark of a new leader lags at first."""
    short = FetchResult(high_watermark=10, last_stable_offset=10, log_start_offset=0)
    client = ScriptedClient([records(0, 10), short, short, records(10, 10)])
    assert offsets(read(client, failOnDataLoss="false")) == list(range(20))


# Rejected offsets


@pytest.mark.proves("D1")
@pytest.mark.parametrize("fails", ["true", "false"])
def test_out_of_range_error_for_an_existing_offset_is_retried(read: Read, fails: str) -> None:
    client = ScriptedClient([records(0, 10), *[OffsetOutOfRange("not yet")] * 3, records(10, 10)])
    assert offsets(read(client, failOnDataLoss=fails)) == list(range(20))


@pytest.mark.proves("D1")
def test_lasting_out_of_range_error_for_an_existing_offset_is_no_loss(read: Read) -> None:
    client = ScriptedClient([records(0, 10), OffsetOutOfRange("never")])
    with pytest.raises(TimeoutError, match="expected records up to offset 20"):
        offsets(read(client, failOnDataLoss="false", kafkaConsumer__pollTimeoutMs="300"))


@pytest.mark.parametrize(("earliest", "latest"), [(12, END), (0, 5)])
def test_out_of_range_error_for_a_missing_offset_is_a_loss(read: Read, earliest: int, latest: int) -> None:
    client = ScriptedClient([records(0, 10), OffsetOutOfRange("gone")], {EARLIEST: earliest, LATEST: latest})
    with pytest.raises(RecordsLost, match=f"the log has {earliest} to {latest}"):
        offsets(read(client))


# Recreated topics


ID, NEW_ID = bytes(range(1, 17)), bytes(range(2, 18))
OLD = WANTED._replace(topic_id="AQIDBAUGBwgJCgsMDQ4PEA")


@pytest.mark.proves("D1")
def test_topic_recreated_between_fetches_is_a_loss(read: Read) -> None:
    client = ScriptedClient([records(0, 10), records(10, 10)], topic_ids=[ID, ID, NEW_ID])
    rows = read(client, OLD)
    assert next(rows).num_rows == 10
    with pytest.raises(RecordsLost, match="recreated"):
        next(rows)


@pytest.mark.proves("D1")
def test_recreated_topic_is_logged_once_without_fail_on_data_loss(read: Read, caplog: Logged) -> None:
    client = ScriptedClient([records(first, 5) for first in range(0, 20, 5)], topic_ids=[ID, ID, NEW_ID])
    with caplog.at_level(logging.WARNING):
        assert offsets(read(client, OLD, failOnDataLoss="false")) == list(range(20))
    assert caplog.text.count("recreated") == 1


# Slow row processing


class TimedOut(ScriptedClient):
    """Raises a timeout if the response is not awaited in time."""

    async def fetch(self, *where: Any, **how: Any) -> FetchResult:
        began_s = time.monotonic()
        response = await super().fetch(*where, **how)
        await asyncio.sleep(0.01)
        if time.monotonic() - began_s > 0.2:
            raise ResponseTimeout("b did not respond to Fetch in time", was_sent=True)
        return response


@pytest.mark.proves("D1")
def test_fetch_that_timed_out_while_rows_were_used_is_retried(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_fetcher, "_STALL_S", 0.1)
    client = TimedOut([records(0, 10), records(10, 10)])
    rows = read(client)
    assert next(rows).num_rows == 10
    time.sleep(0.3)  # processing of the rows takes longer than a fetch may
    assert offsets(rows) == list(range(10, 20))
    assert client.positions == [0, 10, 10]


@pytest.mark.proves("D1")
def test_short_poll_timeout_allows_slow_row_processing(read: Read) -> None:
    assert len(offsets(read(ScriptedClient([records(0, 20)])))) == 20  # warm-up: the first rows of a process are slow
    client = TimedOut([records(0, 10), records(10, 10)])
    rows = read(client, kafkaConsumer__pollTimeoutMs="200")
    assert next(rows).num_rows == 10
    time.sleep(0.3)  # processing of the rows
    assert offsets(rows) == list(range(10, 20))


def test_fetch_that_fails_while_awaited_is_an_error(read: Read) -> None:
    client = ScriptedClient([records(0, 10), ResponseTimeout("b did not respond to Fetch in time", was_sent=True)])
    with pytest.raises(ResponseTimeout):
        offsets(read(client))
    assert client.positions == [0, 10]
