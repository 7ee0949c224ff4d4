"""The follower fetch fast path: responses, waiters, and lost connections."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from broker_scene import Talker, batch, produce, produce_request
from cluster_scene import Cluster, on_cluster
from replica_scene import copy_of, create, values

from moldau.broker.fastpath.follower_fetch import PARTITIONS_MAX, FollowerFetchFastPath
from moldau.broker.fetch import follower_fetch
from moldau.broker.fetch.replica_sessions import ReplicaFetchSession, SessionPartition
from moldau.broker.partitions.corruption import PartitionCorruption
from moldau.broker.partitions.leader_role import LeaderRole
from moldau.model.errors import ErrorCode
from moldau.model.ids import NO_OFFSET
from moldau.wire.framing import RequestHeader, frame_request
from moldau.wire.messages import FetchRequest, FetchResponse

LEADER, ME = 2, 3
LATEST = 18
WAIT_MS = 2000
PATIENT = ("broker.session.timeout.ms=60000",)


def leading(cluster: Cluster) -> LeaderRole:
    found = copy_of(cluster, LEADER).role.leading
    assert found is not None
    return found


class Follower:
    """A client in place of broker 3, which is paused."""

    def __init__(self, cluster: Cluster, talker: Talker, broker_epoch: int) -> None:
        self._cluster = cluster
        self.talker = talker
        self._broker_epoch = broker_epoch
        self.session_id = 0
        self.session_epoch = 0

    @classmethod
    async def of(cls, cluster: Cluster) -> "Follower":
        await cluster.until(lambda: len(leading(cluster).machine.isr) == 2, 5.0)
        cluster.host(ME).pause()
        for session in {each.session for each in copy_of(cluster, LEADER).followers}:
            assert isinstance(session, ReplicaFetchSession)
            session.end()
        return cls(cluster, await cluster.connect(LEADER), cluster.broker(ME).epoch)

    def begin(
        self,
        *offsets: int | None,
        wait_ms: int = WAIT_MS,
        leader_epoch: int = 0,
        last_epoch: int = -1,
        min_bytes: int = 1,
        on: Talker | None = None,
    ) -> "asyncio.Future[FetchResponse]":
        """Fetch partitions 0, 1 … from these offsets; None leaves a partition out."""
        topic_id = self._cluster.nodes[LEADER].broker.image.topics["t"].topic_id
        named = [
            FetchRequest.FetchPartition(
                partition=index,
                current_leader_epoch=leader_epoch,
                fetch_offset=offset,
                last_fetched_epoch=last_epoch,
                log_start_offset=0,
                partition_max_bytes=1 << 20,
            )
            for index, offset in enumerate(offsets)
            if offset is not None
        ]
        request = FetchRequest(
            replica_state=FetchRequest.ReplicaState(replica_id=ME, replica_epoch=self._broker_epoch),
            max_wait_ms=wait_ms,
            min_bytes=min_bytes,
            max_bytes=1 << 20,
            session_id=self.session_id,
            session_epoch=self.session_epoch,
            topics=[FetchRequest.FetchTopic(topic_id=topic_id, partitions=named)] if named else [],
            forgotten_topics_data=[],
        )
        self.session_epoch += 1
        return (on or self.talker).begin(LATEST, request)

    async def join(self, partitions: int = 1) -> FetchResponse:
        response = await self.begin(*[0] * partitions, wait_ms=0)
        self.session_id = response.session_id
        return response


def with_follower(
    script: Callable[[Cluster, Follower], Coroutine[Any, Any, None]], partitions: int = 1, **configs: Any
) -> None:
    async def play(cluster: Cluster) -> None:
        await create(cluster, partitions=[[LEADER, ME]] * partitions, **configs)
        try:
            await script(cluster, await Follower.of(cluster))
        finally:
            cluster.host(ME).resume()

    on_cluster(play, settings=PATIENT)


def partitions_of(response: FetchResponse) -> dict[int, Any]:
    assert response.error_code == 0, ErrorCode(response.error_code)
    return {each.partition_index: each for topic in response.responses for each in topic.partitions}


def sent(response: FetchResponse) -> dict[int, list[bytes | None]]:
    return {index: values(bytes(each.records or b"")) for index, each in partitions_of(response).items()}


@contextmanager
def recorded_paths(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Return the path that each fetch of a follower takes."""
    paths: list[str] = []
    original, handle = FollowerFetchFastPath.try_handle, follower_fetch.handle

    def try_handle(self: FollowerFetchFastPath, frame: memoryview) -> bool:
        is_handled = original(self, frame)
        if is_handled:
            paths.append("fast path")
        return is_handled

    async def record_and_handle(request: Any, context: Any) -> Any:
        paths.append("handler")
        return await handle(request, context)

    with monkeypatch.context() as patched:
        patched.setattr(FollowerFetchFastPath, "try_handle", try_handle)
        patched.setattr(follower_fetch, "handle", record_and_handle)
        yield paths


@pytest.mark.proves("H1", part="the high watermark")
def test_waiting_fetch_gets_a_batch_when_it_is_produced() -> None:
    async def script(cluster: Cluster, follower: Follower) -> None:
        await follower.join()
        await follower.begin(0, wait_ms=1)
        waiting = follower.begin(None)
        await asyncio.sleep(0.5)
        assert not waiting.done()
        await produce(await cluster.connect(LEADER), "t", batch(b"a"), acks=1)
        assert sent(await waiting) == {0: [b"a"]}

    with_follower(script, min_insync_replicas=1)


@pytest.mark.proves("H1", part="the high watermark")
def test_partial_batch_does_not_hold_back_earlier_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script(cluster: Cluster, follower: Follower) -> None:
        await follower.join()
        await follower.begin(0, wait_ms=1)
        waiting = follower.begin(None)
        await asyncio.sleep(0.1)
        seen: list[bool] = []
        finish_wait = FollowerFetchFastPath.finish_wait

        def noted(self: FollowerFetchFastPath, waiter: Any) -> None:
            seen.append(self.is_batch_incoming)
            finish_wait(self, waiter)

        monkeypatch.setattr(FollowerFetchFastPath, "finish_wait", noted)
        header = RequestHeader(0, 9, 1, "scene")
        requested = [frame_request(header, produce_request("t", batch(each), acks=0)) for each in (b"a", b"b")]
        frames: list[bytes] = [b"".join(each) for each in requested]  # type: ignore[arg-type]
        producer = await cluster.connect(LEADER)
        producer.send([frames[0] + frames[1][:50]])
        assert sent(await waiting) == {0: [b"a"]}
        producer.send([frames[1][50:]])
        assert sent(await follower.begin(1)) == {0: [b"b"]}
        assert not any(seen), "in a turn of its own, not in that of the producer"

    with_follower(script, min_insync_replicas=1)


def test_waiting_fetch_times_out_with_an_empty_response() -> None:
    async def script(cluster: Cluster, follower: Follower) -> None:
        await follower.join()
        for _ in range(3):
            began_s = cluster.simulation.now_s
            assert sent(await follower.begin(None, wait_ms=400)) == {}
            assert 0.4 <= cluster.simulation.now_s - began_s < 0.5

    with_follower(script)


@pytest.mark.proves("H1", part="the high watermark")
def test_fetch_offset_advances_the_high_watermark_and_acks() -> None:
    async def script(cluster: Cluster, follower: Follower) -> None:
        await follower.join()
        producer = await cluster.connect(LEADER)
        for number in range(3):  # the handler takes the first, the fast path the others
            waiting = follower.begin(number)
            acknowledged = asyncio.ensure_future(produce(producer, "t", batch(b"%d" % number), acks=-1))
            assert sent(await waiting) == {0: [b"%d" % number]}
            await asyncio.sleep(0.1)
            assert not acknowledged.done()
            follower.begin(number + 1, wait_ms=1)
            assert (await acknowledged).error_code == 0
            assert copy_of(cluster, LEADER).high_watermark == number + 1
            await asyncio.sleep(0.1)

    with_follower(script, min_insync_replicas=2)


@pytest.mark.proves("H1", part="the high watermark")
def test_next_connection_gets_what_a_lost_one_was_not_sent() -> None:
    async def script(cluster: Cluster, follower: Follower) -> None:
        await follower.join()
        await follower.begin(0, wait_ms=1)
        lost = follower.begin(None)
        await asyncio.sleep(0.1)
        (session,) = {each.session for each in copy_of(cluster, LEADER).followers}
        assert session.is_waiting
        follower.talker.connection.close()
        with pytest.raises(ConnectionResetError):
            await lost
        await asyncio.sleep(0.1)
        assert not session.is_waiting
        await produce(await cluster.connect(LEADER), "t", batch(b"a"), acks=1)
        assert sent(await follower.begin(None, on=await cluster.connect(LEADER))) == {0: [b"a"]}

    with_follower(script, min_insync_replicas=1)


@pytest.mark.proves("H1", part="the high watermark")
def test_second_fetch_ends_the_wait_of_the_first_in_order() -> None:
    async def script(cluster: Cluster, follower: Follower) -> None:
        await follower.join(2)
        first = follower.begin(None)
        await asyncio.sleep(0.1)
        second = follower.begin(0, None)
        assert sent(await first) == {}
        assert not second.done()
        await produce(await cluster.connect(LEADER), "t", batch(b"a"), acks=1)
        assert sent(await second) == {0: [b"a"]}

    with_follower(script, partitions=2, min_insync_replicas=1)


@pytest.mark.proves("H5", part="fencing")
def test_errors_and_divergence_are_reported() -> None:
    async def script(cluster: Cluster, follower: Follower) -> None:
        producer = await cluster.connect(LEADER)
        for index in (0, 1):
            await produce(producer, "t", batch(b"a"), acks=1, partition=index)
        await follower.join(2)
        response = partitions_of(await follower.begin(1, 7))
        assert response[1].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (
            partitions_of(await follower.begin(0, None, leader_epoch=5))[0].error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        )
        response = partitions_of(await follower.begin(5, None, last_epoch=0))
        assert response[0].diverging_epoch.end_offset == 1

    with_follower(script, partitions=2, min_insync_replicas=1)


@pytest.mark.proves("H1", part="the high watermark")
def test_unknown_session_or_epoch_is_rejected() -> None:
    async def script(_: Cluster, follower: Follower) -> None:
        await follower.join()
        await follower.begin(None, wait_ms=1)
        follower.session_epoch += 1
        assert (await follower.begin(None)).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        follower.session_id += 1
        assert (await follower.begin(None)).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    with_follower(script)


@pytest.mark.proves("S7", part="sendfile")
def test_uncached_records_are_read_in_a_thread_before_sending(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(cluster: Cluster, follower: Follower) -> None:
        await produce(await cluster.connect(LEADER), "t", batch(b"a"), acks=1)
        await follower.join()
        read: list[str] = []
        executor = cluster.nodes[LEADER].broker.executor
        run = executor.run

        def run_counted(*work: Any) -> Any:
            read.append("beside")
            return run(*work)

        monkeypatch.setattr(executor, "run", run_counted)
        for is_cold in (False, True):
            file = type(copy_of(cluster, LEADER).log.read(0, 100).file)  # type: ignore[union-attr]
            monkeypatch.setattr(file, "is_cached", lambda *_, is_cold=is_cold: not is_cold)
            read.clear()
            assert sent(await follower.begin(0)) == {0: [b"a"]}
            assert bool(read) == is_cold

    with_follower(script, min_insync_replicas=1)


def test_fetch_of_many_partitions_falls_back_to_the_handler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script(_: Cluster, follower: Follower) -> None:
        with recorded_paths(monkeypatch) as paths:
            await follower.join(PARTITIONS_MAX + 1)
            await follower.begin(None, wait_ms=1)  # the response carries each high watermark
            await asyncio.sleep(0.1)
            assert paths[0] == "handler"
            paths.clear()
            await follower.begin(0, 0, wait_ms=1)
            await follower.begin(0, wait_ms=1)
            assert paths == ["fast path", "fast path"]
            paths.clear()
            await follower.begin(*[0] * (PARTITIONS_MAX + 1), wait_ms=1)
            assert paths == ["handler"]

    with_follower(script, partitions=PARTITIONS_MAX + 1, min_insync_replicas=1)


def test_changes_in_many_partitions_are_sent_in_several_responses() -> None:
    async def script(cluster: Cluster, follower: Follower) -> None:
        count = follower_fetch.PARTITIONS_AT_ONCE + 20
        await follower.join(count)
        await follower.begin(0, wait_ms=1)
        waiting = follower.begin(None)
        await asyncio.sleep(0.1)
        for index in range(count):
            for followed in copy_of(cluster, LEADER, "t", index).followers:
                assert isinstance(followed, SessionPartition)
                followed.sent_high_watermark = NO_OFFSET
                followed.on_leader_changed()
        first = partitions_of(await waiting)
        assert len(first) == follower_fetch.PARTITIONS_AT_ONCE
        assert len(first | partitions_of(await follower.begin(None))) == count

    with_follower(script, partitions=follower_fetch.PARTITIONS_AT_ONCE + 20)


@pytest.mark.proves("H5", part="fencing")
def test_deleted_partition_falls_back_to_the_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(cluster: Cluster, follower: Follower) -> None:
        await follower.join()
        requested = follower.begin(0, wait_ms=1)
        await requested
        copy_of(cluster, LEADER).close()
        with recorded_paths(monkeypatch) as paths:
            response = partitions_of(await follower.begin(0))
            assert paths == ["handler"]
        assert response[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    with_follower(script)


@pytest.mark.proves("S6", part="appended before the acknowledgement")
def test_coalesced_batches_are_not_sent_before_they_are_written() -> None:
    async def script(cluster: Cluster, follower: Follower) -> None:
        producer = await cluster.connect(LEADER)
        await follower.join(2)
        await follower.begin(0, 0, wait_ms=1)
        await produce(producer, "t", batch(b"a"), acks=1, partition=0)
        await follower.begin(0, wait_ms=1)
        waiting = follower.begin(1)  # the first partition has a change: a commit
        await asyncio.sleep(0.004)
        copy_of(cluster, LEADER, "t", 1)._is_careful = True  # as after a write that failed
        header = RequestHeader(0, 9, 1, "scene")
        requested = [produce_request("t", batch(b"b"), acks=0, partition=index) for index in (0, 1)]
        producer.send([b"".join(piece for each in requested for piece in frame_request(header, each))])  # type: ignore[misc]
        response = sent(await waiting)
        response |= {} if 0 in response else sent(await follower.begin(1))
        assert response == {0: [b"b"], 1: [b"b"]}

    with_follower(script, partitions=2, min_insync_replicas=1)


@pytest.mark.proves("H5", part="fencing")
def test_batch_below_min_bytes_is_not_checked_for_corruption(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(cluster: Cluster, follower: Follower) -> None:
        await follower.join()
        await produce(await cluster.connect(LEADER), "t", batch(b"a"), acks=1)
        looked: list[int] = []
        monkeypatch.setattr(PartitionCorruption, "check_batch", lambda _, _log, offset: looked.append(offset))
        assert sent(await follower.begin(0, min_bytes=1000, wait_ms=100)) == {0: [b"a"]}
        assert looked == []
        assert sent(await follower.begin(0)) == {0: [b"a"]}
        assert looked == [0], "it was sent that, and asks for it again"

    with_follower(script, min_insync_replicas=1)
