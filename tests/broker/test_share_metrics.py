"""Metrics of share groups: in-flight records, acknowledgements by type, expired locks, and latency."""

import asyncio

import pytest
from broker_scene import Scene, batch, on_broker, produce
from share_members import ACCEPT, REJECT, RELEASE, RENEW, member_of, serve_shares
from test_share_fetch import LOCK_MS, configure

from moldau.broker.metrics import share_metrics
from moldau.broker.metrics.share_metrics import share_lines

pytestmark = [pytest.mark.proves("O1"), pytest.mark.proves("C8")]

ACKNOWLEDGEMENTS = "kafka_server_sharegroupmetrics_recordacknowledgements_total"
IN_FLIGHT = "kafka_server_sharepartitionmetrics_inflightmessagecount"
LATENCY = "moldau_share_acknowledgement_milliseconds"
OLDEST = "moldau_share_group_oldest_unacknowledged_milliseconds"
REDELIVERIES = "moldau_share_group_redeliveries_total"
LOCK_TIMEOUTS = "kafka_server_sharepartitionmetrics_acquisitionlocktimeout_total"


def metrics_of(scene: Scene) -> dict[str, float]:
    lines = "".join(share_lines(scene.node.broker.shares)).splitlines()
    samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in samples}


def in_state(state: str, group: str = "g") -> str:
    return f'moldau_share_group_records{{group="{group}",state="{state}"}}'


def test_metrics_follow_the_records_of_a_group() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        state = await serve_shares(scene)
        talker = await scene.connect()
        await configure(talker, "share.auto.offset.reset", "earliest")
        for _ in range(6):
            await produce(talker, "t", batch(b"x"))
        member = await member_of(scene)
        assert await member.acquire() == [(0, 5, 1)]
        found = metrics_of(scene)
        assert (found[f'{IN_FLIGHT}{{group="g"}}'], found[in_state("acquired")]) == (6, 6)
        assert (found[in_state("available")], found[f"{LATENCY}_count"], found[LOCK_TIMEOUTS]) == (0, 0, 0)

        state.may_write.clear()
        acknowledgement = asyncio.create_task(member.acknowledge((0, 1, ACCEPT), (2, 2, RELEASE), (3, 3, REJECT)))
        await asyncio.sleep(0.5)
        assert metrics_of(scene)[f"{LATENCY}_count"] == 0
        state.may_write.set()
        assert await acknowledgement == 0
        assert await member.acknowledge((4, 4, RENEW), is_renew_ack=True) == 0
        found = metrics_of(scene)
        assert [
            found[f'{ACKNOWLEDGEMENTS}{{acktype="{kind}"}}'] for kind in ("Accept", "Release", "Reject", "Renew")
        ] == [
            2,
            1,
            1,
            1,
        ]
        assert (found[f'{IN_FLIGHT}{{group="g"}}'], found[in_state("available")], found[in_state("acquired")]) == (
            4,
            1,
            2,
        )
        assert found[f"{LATENCY}_count"] == 1
        assert found[f"{LATENCY}_sum"] >= 500

        await asyncio.sleep(LOCK_MS / 1000 + 1)
        found = metrics_of(scene)
        assert (found[LOCK_TIMEOUTS], found[in_state("available")], found[in_state("acquired")]) == (2, 3, 0)

        assert await member.acquire() == [(2, 2, 2), (4, 5, 2)]
        await asyncio.sleep(10)
        found = metrics_of(scene)
        assert found[f'{REDELIVERIES}{{group="g"}}'] == 3
        assert found[f'{OLDEST}{{group="g"}}'] >= LOCK_MS + 10_000
        await configure(await scene.connect(), "share.retry.backoff.ms", "5000")
        await member.acknowledge((2, 2, RELEASE), (4, 5, ACCEPT))
        found = metrics_of(scene)
        assert (found[in_state("available")], found[in_state("waiting")]) == (0, 1)

    on_broker(script)


def test_groups_beyond_the_maximum_share_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_metrics, "GROUPS_MAX", 1)

    async def script(scene: Scene) -> None:
        await scene.create("t")
        await serve_shares(scene)
        for group in ("a", "b", "c"):
            await (await member_of(scene, group=group)).acquire()
        await produce(await scene.connect(), "t", batch(b"x"))
        for group in ("a", "b", "c"):
            assert await (await member_of(scene, "o" * 22, group=group)).acquire() == [(0, 0, 1)]
        found = metrics_of(scene)
        assert (found[in_state("acquired", "a")], found[in_state("acquired", "")]) == (1, 2)
        assert in_state("acquired", "b") not in found

    on_broker(script)
