"""Write unavailability after the loss of a broker or its disk. One lost broker a day and 99.99 % leave 8.6 s for it.

`python -m moldau_dev.chaos.failover` measures the same many times over.
"""

from collections.abc import Iterator
from typing import Final

import pytest

from moldau_dev.chaos.failover import PARTITIONS, TOPIC, Victim, measure
from moldau_dev.chaos.faulty_cluster import FaultyCluster, faulty_cluster
from moldau_dev.chaos.faulty_disks import FaultyDisks

DAY_S: Final = 24 * 60 * 60
AVAILABLE: Final = 0.9999
FAILED_DISK_S_MAX: Final = 2.0
FAILED_DISKS: Final = (Victim.FAILING_DISK, Victim.FAILING_DISK_OF_CONTROLLER, Victim.FULL_DISK)
LOST: Final = (Victim.LEADER, Victim.LEADER_AND_CONTROLLER, Victim.CONTROLLER, Victim.STOPPED_LEADER)


@pytest.fixture(scope="module")
def cluster() -> Iterator[FaultyCluster]:
    with faulty_cluster(has_wires=False, has_disks=FaultyDisks.are_possible()) as cluster:
        cluster.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3, min_insync_replicas=2)
        yield cluster


@pytest.mark.proves("H9")
@pytest.mark.parametrize("victim", LOST, ids=lambda each: each.name.lower())
def test_loss_of_a_broker_leaves_four_nines_of_availability(cluster: FaultyCluster, victim: Victim) -> None:
    gaps_s = measure(cluster, victim, ["own", "librdkafka"])
    assert max(gaps_s.values()) < DAY_S * (1 - AVAILABLE), gaps_s


@pytest.mark.proves("S11", part="clients go on with other brokers")
@pytest.mark.skipif(not FaultyDisks.are_possible(), reason="faults of disks need gcc")
@pytest.mark.parametrize("victim", FAILED_DISKS, ids=lambda each: each.name.lower())
def test_writes_go_on_within_two_seconds_when_a_disk_fails(cluster: FaultyCluster, victim: Victim) -> None:
    assert measure(cluster, victim, ["librdkafka"])["librdkafka"] < FAILED_DISK_S_MAX
