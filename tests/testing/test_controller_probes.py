"""The probes of controller decisions find wrong elections, ISR joins and ISR members."""

from collections import Counter
from dataclasses import replace

import pytest
from disks_scene import TOPIC, Disks, batch
from test_world_probes import ALL_THREE, PARTITION, image, leader, replica_probe

from moldau.machines.metadata.image import BrokerImage, MetadataImage, PartitionImage
from moldau.model.ids import TopicPartition
from moldau_dev.simulation.cluster.image_probe import Changed, ImageProbe
from moldau_dev.simulation.cluster.isr_probe import IsrProbe
from moldau_dev.simulation.cluster.node_state import Replica
from moldau_dev.simulation.cluster.topology import FOLDER
from moldau_dev.simulation.cluster.unclean_probe import UncleanProbe
from moldau_dev.simulation.workload import Violation

FOLDER_0 = f"{TOPIC}-0"
OF_TWO = replace(PARTITION, isr=(1, 2))
NEXT = replace(PARTITION, partition_epoch=1)


def brokers(*epochs: int) -> MetadataImage:
    """Brokers 1, 2 …, each with its epoch."""
    known = {
        number: BrokerImage(broker_id=number, epoch=epoch, incarnation_id=b"%d" % epoch, listeners=(), features={})
        for number, epoch in enumerate(epochs, 1)
    }
    return MetadataImage(brokers=known)


# Elections


@pytest.mark.parametrize(
    ("before", "elected", "is_right"),
    [
        ({"isr": (1, 2)}, 2, True),
        ({"isr": (1, 2)}, 3, False),
        ({"isr": (1,), "eligible_leader_replicas": (3,)}, 3, True),
        ({"isr": (), "leader": -1, "last_known_elr": (3,)}, 3, True),
        ({"isr": (), "leader": -1, "last_known_elr": (3,)}, 2, False),
    ],
    ids=["in sync", "not in sync", "eligible", "led last", "neither led last"],
)
def test_probe_finds_a_leader_that_may_lack_committed_records(
    before: dict[str, object], elected: int, is_right: bool
) -> None:
    probe = ImageProbe(Counter())
    known = replace(PARTITION, **before)  # type: ignore[arg-type]
    probe.check(image(1, known))
    after = image(
        2,
        replace(known, isr=(elected,), eligible_leader_replicas=(), leader=elected, leader_epoch=1, partition_epoch=1),
    )
    if is_right:
        probe.check(after)
    else:
        with pytest.raises(Violation, match=f"{elected} was elected"):
            probe.check(after)


def test_probe_skips_elections_in_images_many_records_apart() -> None:
    probe = ImageProbe(Counter())
    probe.check(image(1, OF_TWO))
    probe.check(image(3, replace(PARTITION, leader=3, leader_epoch=1, partition_epoch=2)))


# Joining


def proposing(*members: tuple[int, int], partition_epoch: int = 0, leader_epoch: int = 0) -> Replica:
    now = leader(0, 0, (1, 2))
    return now._replace(proposed=members, proposed_in=partition_epoch, leader_epoch=leader_epoch)


def test_probe_accepts_a_join_requested_by_the_leader() -> None:
    probe = IsrProbe()
    probe.proposed(FOLDER_0, proposing((1, 7), (2, 8), (3, 9)))
    probe.take(Changed(FOLDER_0, NEXT, OF_TWO), brokers(7, 8, 9))
    assert probe.checks == 1


@pytest.mark.parametrize(
    "requested",
    [
        proposing((1, 7), (2, 8)),
        proposing((1, 7), (2, 8), (3, 9), partition_epoch=-1),
        proposing((1, 7), (2, 8), (3, 9), leader_epoch=-1),
        proposing(),
    ],
    ids=["for others", "in an older state", "in an older epoch", "for nothing"],
)
def test_probe_finds_a_join_that_was_not_requested(requested: Replica) -> None:
    probe = IsrProbe()
    probe.proposed(FOLDER_0, requested)
    with pytest.raises(Violation, match="its leader requested"):
        probe.take(Changed(FOLDER_0, NEXT, OF_TWO), brokers(7, 8, 9))


def test_probe_finds_a_join_with_an_old_broker_epoch() -> None:
    probe = IsrProbe()
    probe.proposed(FOLDER_0, proposing((1, 7), (2, 8), (3, 9)))
    with pytest.raises(Violation, match="by requests with old broker epochs"):
        probe.take(Changed(FOLDER_0, NEXT, OF_TWO), brokers(7, 8, 30))


def test_probe_finds_an_unrequested_change_of_the_partition_epoch() -> None:
    probe = IsrProbe()
    same = Changed(FOLDER_0, replace(OF_TWO, partition_epoch=1), OF_TWO)
    with pytest.raises(Violation, match="its leader requested"):
        probe.take(same, brokers(7, 8, 9))
    probe.proposed(FOLDER_0, proposing((1, -1), (2, -1)))
    probe.take(same, brokers(7, 8, 9))


@pytest.mark.parametrize(
    "after",
    [
        replace(PARTITION, isr=(1,), partition_epoch=1),
        replace(OF_TWO, isr=(2, 3), leader=2, leader_epoch=1, partition_epoch=1),
        replace(OF_TWO, replicas=(2, 1, 3), partition_epoch=1),
        replace(PARTITION, partition_epoch=2),
    ],
    ids=["one left", "another leads", "another is preferred", "two steps"],
)
def test_probe_ignores_changes_made_by_the_controller(after: PartitionImage) -> None:
    probe = IsrProbe()
    probe.take(Changed(FOLDER_0, after, OF_TWO), brokers(7, 8, 9))
    assert probe.checks == 0


def test_replica_probe_passes_requested_isrs_on() -> None:
    probe, images = replica_probe(Disks(), OF_TWO)
    probe.check("node-1", [leader(0, 0, (1, 2))._replace(proposed=ALL_THREE, proposed_in=0)], has_written=False)
    probe.take(images.check(image(2, NEXT)))
    assert probe.isrs.checks == 1


# Epochs, and what followers believe


def follower(leader_epoch: int, *, high_watermark: int = 0) -> Replica:
    return Replica(TopicPartition(TOPIC, 0), leader_epoch, False, high_watermark, 1)


@pytest.mark.parametrize("epoch", [0, 1])
def test_probe_finds_a_leader_that_counts_a_follower_of_an_older_epoch(epoch: int) -> None:
    disks = Disks()
    probe, _ = replica_probe(disks, replace(PARTITION, leader_epoch=1))
    for host in disks.hosts:
        disks.write(host, batch(0))
    probe.check("node-2", [follower(1)], has_written=True)
    probe.check("node-3", [follower(epoch)], has_written=True)
    now = leader(0, 1)._replace(leader_epoch=1)
    probe.check("node-1", [now], has_written=True)
    if epoch:
        probe.check("node-1", [now._replace(high_watermark=1)], has_written=False)
    else:
        with pytest.raises(Violation, match="counting node-3 in epoch 0"):
            probe.check("node-1", [now._replace(high_watermark=1)], has_written=False)


def test_probe_finds_a_follower_with_a_different_committed_log() -> None:
    disks = Disks()
    probe, _ = replica_probe(disks, OF_TWO)
    for host in ("node-1", "node-2"):
        disks.write(host, batch(0))
    disks.write("node-3", batch(0, value=b"y"))
    probe.check("node-1", [leader(0, 1, (1, 2))], has_written=True)
    probe.check("node-1", [leader(1, 1, (1, 2))], has_written=False)
    probe.check("node-2", [follower(0, high_watermark=1)], has_written=True)
    probe.check("node-3", [follower(0)], has_written=True)
    with pytest.raises(Violation, match="was committed"):
        probe.check("node-3", [follower(0, high_watermark=1)], has_written=False)


# Power


def unclean_probe(disks: Disks) -> UncleanProbe:
    for host in disks.hosts.values():
        host.disk.prepare_folder(FOLDER)
    return UncleanProbe(disks.hosts, {"node-1": 1, "node-2": 2, "node-3": 3})


def known(partition: PartitionImage) -> MetadataImage:
    return replace(image(1, partition), brokers=brokers(7, 8, 9).brokers)


@pytest.mark.parametrize(
    "partition",
    [PARTITION, replace(PARTITION, isr=(1,), eligible_leader_replicas=(2,))],
    ids=["in sync", "eligible"],
)
def test_probe_finds_a_host_in_the_isr_after_a_power_loss(partition: PartitionImage) -> None:
    disks = Disks()
    probe = unclean_probe(disks)
    disks.hosts["node-2"].disk.power_loss()
    probe.begin("node-2")
    probe.check("node-2", b"of its new life", known(partition))  # so it is not registered yet
    with pytest.raises(Violation, match="node-2 lost power, but is still in the ISR"):
        probe.check("node-2", b"8", known(partition))


def test_probe_accepts_a_later_join_after_a_power_loss() -> None:
    disks = Disks()
    probe = unclean_probe(disks)
    disks.hosts["node-2"].disk.power_loss()
    probe.begin("node-2")
    probe.check("node-2", b"8", known(replace(PARTITION, isr=(1, 3))))
    probe.check("node-2", b"8", known(PARTITION))
    assert probe.checks == 1


@pytest.mark.parametrize("is_stopped_well", [False, True], ids=["killed", "stopped well"])
def test_probe_accepts_an_isr_member_after_a_crash_or_clean_shutdown(is_stopped_well: bool) -> None:
    disks = Disks()
    probe = unclean_probe(disks)
    disk = disks.hosts["node-2"].disk
    if is_stopped_well:
        disk.mount().open(f"{FOLDER}/.kafka_cleanshutdown", create=True).fsync()
        disk.mount().sync_directory(FOLDER)
        disk.power_loss()
    else:
        disk.crash()
    probe.begin("node-2")
    probe.check("node-2", b"8", known(PARTITION))
    assert probe.checks == 0
