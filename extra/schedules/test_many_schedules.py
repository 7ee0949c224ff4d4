"""1,000 schedules on real processes, with three failovers: no tick is missed or doubled.

MOLDAU_MINUTES=10 is the length of the run, MOLDAU_SCHEDULES=1000 the number of schedules.
"""

import os
import time
from collections import Counter
from itertools import product

import pytest

from moldau.cli.queue_records import extents, records_between
from moldau.client.schedules import set_schedule
from moldau.model.ids import TopicPartition
from moldau.testing import Cluster

MINUTES = float(os.environ.get("MOLDAU_MINUTES", "10"))
SCHEDULES = int(os.environ.get("MOLDAU_SCHEDULES", "1000"))
INTERVAL_MS = 10_000
TOPIC = "ticks"
SETTLE_S = 60.0
DOWN_S = 15.0

Tick = tuple[str, int]


def published(cluster: Cluster) -> Counter[Tick]:
    """All ticks in the topic, by schedule and time."""
    found: Counter[Tick] = Counter()
    with cluster.client() as client:
        for place, (start, end) in extents(client, TOPIC).items():
            for record in records_between(client, TopicPartition(*place), start, end):
                name = dict(record.headers)["moldau-schedule"]
                assert name is not None
                found[name.decode(), record.timestamp] += 1
    return found


def fail_over(cluster: Cluster, node: int, until_s: float) -> None:
    """Kill a node, and start it again after a while; return at the time."""
    cluster.kill(node)
    time.sleep(DOWN_S)  # the length of the outage
    cluster.start(node)
    time.sleep(max(0.0, until_s - time.monotonic()))  # the rest of its part of the run


@pytest.mark.timeout(int(MINUTES * 60 + 600))
def test_no_tick_is_missed_or_doubled_by_three_failovers() -> None:
    with Cluster() as cluster:
        cluster.create_topic(TOPIC, partitions=3)
        start_ms = int(time.time() * 1000)
        configs = {"cron": "*/10 * * * * *", "topic": TOPIC, "catch.up": "all", "start.ms": str(start_ms)}
        names = [f"s{number:04}" for number in range(SCHEDULES)]
        with cluster.client() as client:
            for name in names:
                set_schedule(client, name, configs)
        began_s = time.monotonic()
        for number, node in enumerate((1, 2, 3), 1):
            fail_over(cluster, node, began_s + number * MINUTES * 20)
        end_ms = int(time.time() * 1000)
        times = range((start_ms // INTERVAL_MS + 1) * INTERVAL_MS, end_ms + 1, INTERVAL_MS)
        expected = set(product(names, times))
        cluster.wait_until(lambda: expected <= published(cluster).keys(), "all ticks are published", SETTLE_S)
        found = published(cluster)
        assert [tick for tick, count in found.items() if count > 1] == []
        print(f"{len(expected)} ticks of {SCHEDULES} schedules, once each")
