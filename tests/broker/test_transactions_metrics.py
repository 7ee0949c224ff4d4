"""Transaction metrics."""

import asyncio

import pytest
from broker_scene import Scene, on_broker
from test_metrics import page_of, samples
from transaction_scene import FEW_PARTITIONS, P0, P1, producer_of, ready
from writer_scene import Writer, play

from moldau.model.errors import ErrorCode

pytestmark = pytest.mark.proves("O1")


def test_open_and_ended_transactions_and_pending_markers_are_counted() -> None:
    async def script(scene: Scene) -> None:
        sink = await ready(scene)
        first, second, third = (producer_of(scene, each) for each in ("first", "second", "third"))
        for producer in (first, second, third):
            await producer.init()
            await producer.add(P0, P1)
        await asyncio.sleep(10)
        found = samples(await page_of(scene))
        assert found["moldau_transactions_open"] == 3
        assert 10_000 <= found["moldau_transaction_oldest_milliseconds"] < 11_000
        sink.codes[P1] = ErrorCode.NOT_LEADER_OR_FOLLOWER
        await first.end()
        await first.until("PrepareCommit")
        await asyncio.sleep(1)
        assert samples(await page_of(scene))["moldau_transaction_markers_waiting"] == 1
        sink.codes.clear()
        await second.end(is_commit=False)
        for producer in (first, second):
            await producer.until("CompleteCommit" if producer is first else "CompleteAbort")
        found = samples(await page_of(scene))
        assert found["moldau_transactions_open"] == 1
        assert found['moldau_transactions_ended_total{outcome="committed"}'] == 1
        assert found['moldau_transactions_ended_total{outcome="aborted"}'] == 1
        assert found["moldau_transaction_markers_waiting"] == 0

    on_broker(script, settings=FEW_PARTITIONS)


def test_records_hidden_by_an_open_transaction_are_counted() -> None:
    async def script(scene: Scene, writer: Writer) -> None:
        name = 'kafka_cluster_partition_laststableoffsetlag{topic="t",partition="%d"}'
        await writer.write(b"a", b"b", b"c")
        found = samples(await page_of(scene))
        assert (found[name % 0], found[name % 1]) == (3, 0)
        await writer.finish()
        assert samples(await page_of(scene))[name % 0] == 0

    play(script)
