"""Write unavailability after the loss of a broker. One lost broker a day and 99.99 % leave 8.6 s for it.

`python -m moldau_dev.chaos.failover` measures the same many times over.
"""

from collections.abc import Iterator
from typing import Final

import pytest

from moldau.testing import Cluster
from moldau_dev.chaos.failover import PARTITIONS, TOPIC, Victim, measure

DAY_S: Final = 24 * 60 * 60
AVAILABLE: Final = 0.9999
LOST: Final = (Victim.LEADER, Victim.LEADER_AND_CONTROLLER, Victim.CONTROLLER, Victim.STOPPED_LEADER)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3) as cluster:
        cluster.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3, min_insync_replicas=2)
        yield cluster


@pytest.mark.proves("H9")
@pytest.mark.parametrize("victim", LOST, ids=lambda each: each.name.lower())
def test_loss_of_a_broker_leaves_four_nines_of_availability(cluster: Cluster, victim: Victim) -> None:
    gaps_s = measure(cluster, victim, ["own", "librdkafka"])
    assert max(gaps_s.values()) < DAY_S * (1 - AVAILABLE), gaps_s
