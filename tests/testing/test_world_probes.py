"""The probes of a simulated cluster find every violation, and accept correct states."""

from collections import Counter
from dataclasses import replace

import pytest
from disks_scene import TOPIC, Disks, batch

from moldau.broker.drivers.quorum_state import QuorumState, write_quorum_state
from moldau.machines.metadata.image import MetadataImage, PartitionImage, TopicImage
from moldau.machines.raft import ElectionState, ReplicaKey
from moldau.model.ids import NO_EPOCH, NodeId, TopicId, TopicPartition
from moldau_dev.simulation.cluster.acks_one_producer import ReadValues
from moldau_dev.simulation.cluster.group_members import GroupLedger
from moldau_dev.simulation.cluster.image_probe import ImageProbe
from moldau_dev.simulation.cluster.node_state import Quorum, Replica
from moldau_dev.simulation.cluster.quorum_probe import METADATA, QuorumProbe
from moldau_dev.simulation.cluster.replica_probe import ReplicaProbe
from moldau_dev.simulation.cluster.topology import BOTH, FOLDER, NodeSpec, Topology
from moldau_dev.simulation.workload import Violation

PARTITION = PartitionImage(replicas=(1, 2, 3), isr=(1, 2, 3), leader=1, leader_epoch=0, partition_epoch=0)


# Raft


def quorum_probe(disks: Disks) -> QuorumProbe:
    return QuorumProbe(Counter(), disks.hosts)


def test_two_leaders_of_one_epoch_are_found() -> None:
    probe = quorum_probe(Disks())
    probe.check("node-1", Quorum(5, True, 0), has_written=False)
    probe.check("node-2", Quorum(6, True, 0), has_written=False)
    with pytest.raises(Violation, match="lead the quorum in epoch 5"):
        probe.check("node-3", Quorum(5, True, 0), has_written=False)


def test_decrease_of_quorum_epoch_or_high_watermark_is_found() -> None:
    probe = quorum_probe(Disks())
    probe.check("node-1", Quorum(5, False, 7), has_written=False)
    with pytest.raises(Violation, match="epoch 5 became 4"):
        probe.check("node-1", Quorum(4, False, 7), has_written=False)
    probe = quorum_probe(Disks())
    probe.check("node-1", Quorum(5, False, 7), has_written=False)
    with pytest.raises(Violation, match="high watermark 7 became 6"):
        probe.check("node-1", Quorum(5, False, 6), has_written=False)


@pytest.mark.parametrize("is_synced", [False, True])
def test_vote_that_is_not_durable_is_found(is_synced: bool) -> None:
    disks = Disks()
    probe = quorum_probe(disks)
    disk = disks.hosts["node-1"].disk.mount()
    disk.make_directory(f"{FOLDER}/{METADATA}")
    disk.sync_directory(FOLDER)
    vote = ElectionState(5, voted=ReplicaKey(NodeId(2)))
    if is_synced:
        write_quorum_state(disk, f"{FOLDER}/{METADATA}", QuorumState(5, voted_id=2))
        probe.check("node-1", Quorum(5, False, 0, vote), has_written=False)
    else:
        disk.open(f"{FOLDER}/{METADATA}/quorum-state", create=True).pwrite(QuorumState(5, voted_id=2).encode(), 0)
    probe.check("node-1", Quorum(5, False, 0), has_written=False)  # while it is being written, it is not sent
    if not is_synced:
        with pytest.raises(Violation, match="voted for 2 in epoch 5, but its disk has"):
            probe.check("node-1", Quorum(5, False, 0, vote), has_written=False)


def test_new_process_may_have_an_older_state() -> None:
    probe = quorum_probe(Disks())
    probe.check("node-1", Quorum(5, False, 7), has_written=False)
    probe.begin("node-1")
    probe.check("node-1", Quorum(4, False, 0), has_written=False)


def test_quorum_leader_without_committed_records_is_found() -> None:
    disks = Disks()
    probe = quorum_probe(disks)
    disks.write("node-1", batch(0), batch(1), folder=METADATA)
    probe.check("node-1", Quorum(1, True, 2), has_written=True)
    disks.write("node-2", batch(0), folder=METADATA)
    with pytest.raises(Violation, match="ends at 1, but 2 is committed"):
        probe.check("node-2", Quorum(2, True, 1), has_written=True)


def test_commit_of_metadata_by_an_older_epoch_is_found() -> None:
    disks = Disks()
    probe = quorum_probe(disks)
    disks.write("node-1", batch(0, epoch=1), batch(1, epoch=1), batch(2, epoch=3), folder=METADATA)
    probe.check("node-1", Quorum(3, True, 0), has_written=True)
    with pytest.raises(Violation, match="of an older epoch"):
        probe.check("node-1", Quorum(3, True, 2), has_written=False)
    probe.check("node-1", Quorum(3, True, 3), has_written=False)


def test_commit_of_metadata_without_a_durable_majority_is_found() -> None:
    disks = Disks()
    probe = QuorumProbe(Counter(), disks.hosts, list(disks.hosts))
    for host in ("node-1", "node-2"):
        disks.write(host, batch(0, epoch=1), folder=METADATA)
    disks.sync("node-1", folder=METADATA)
    probe.check("node-1", Quorum(1, True, 0), has_written=True)
    with pytest.raises(Violation, match="commits metadata up to 1"):
        probe.check("node-1", Quorum(1, True, 1), has_written=False)


@pytest.mark.parametrize("is_synced", [False, True])
def test_metadata_missing_in_log_and_snapshot_is_found(is_synced: bool) -> None:
    disks = Disks()
    probe = quorum_probe(disks)
    disks.write("node-1", batch(5, epoch=1), folder=METADATA, segment=5)
    disk = disks.hosts["node-1"].disk.mount()
    disk.open(f"{FOLDER}/{METADATA}/{5:020d}-{1:010d}.checkpoint", create=True).pwrite(b"all of it", 0)
    if is_synced:
        disks.sync("node-1", folder=METADATA)
        probe.check("node-1", Quorum(1, False, 5), has_written=True)
    else:
        with pytest.raises(Violation, match="starts at 5, but its durable snapshots end at 0"):
            probe.check("node-1", Quorum(1, False, 5), has_written=True)


def test_commit_of_metadata_with_a_durable_majority_is_accepted() -> None:
    disks = Disks()
    probe = QuorumProbe(Counter(), disks.hosts, list(disks.hosts))
    for host in ("node-1", "node-2"):
        disks.write(host, batch(0, epoch=1), folder=METADATA)
        disks.sync(host, folder=METADATA)
    probe.check("node-1", Quorum(1, True, 0), has_written=True)
    probe.check("node-1", Quorum(1, True, 1), has_written=False)


# Images


def image(offset: int, partition: PartitionImage) -> MetadataImage:
    topic = TopicImage(TOPIC, TopicId(bytes(16)), (partition,))
    return MetadataImage(offset=offset, topics={TOPIC: topic})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"leader": 1, "isr": (2, 3)}, "is not in the ISR"),
        ({"isr": (1, 4)}, "is not among the replicas"),
        ({"isr": (1, 2), "eligible_leader_replicas": (2,)}, "eligible and in the ISR"),
        ({"isr": (1, 2), "partition_epoch": 0}, "partition epoch 0 became 0"),
        ({"leader_epoch": -1}, "leader epoch 0 became -1"),
        ({"leader": 2}, "1 and 2 lead in epoch 0"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_invalid_image_is_found(changes: dict[str, object], message: str) -> None:
    probe = ImageProbe(Counter())
    probe.check(image(1, PARTITION))
    with pytest.raises(Violation, match=message):
        probe.check(image(2, replace(PARTITION, **{"partition_epoch": 1, **changes})))  # type: ignore[arg-type]


def test_elections_and_isr_changes_are_counted_once() -> None:
    tally: Counter[str] = Counter()
    probe = ImageProbe(tally)
    probe.check(image(1, PARTITION))
    changed = image(2, replace(PARTITION, isr=(2, 3), leader=2, leader_epoch=1, partition_epoch=1))
    assert [each.folder for each in probe.check(changed)] == ["t-0"]
    assert probe.check(changed) == []
    assert probe.check(image(1, PARTITION)) == [], "an older one, of a node that lags"
    assert tally == {"partition elections": 1, "ISR changes": 1}


# Replicas


def replica_probe(
    disks: Disks, partition: PartitionImage = PARTITION, *, syncs: bool = False
) -> tuple[ReplicaProbe, ImageProbe]:
    specs = tuple(NodeSpec(number, BOTH) for number in (1, 2, 3))
    topology = Topology(specs, {}, {}, partitions=1, min_isr=2, members=1, syncs=syncs)
    images = ImageProbe(Counter())
    images.check(image(1, partition))
    return ReplicaProbe(Counter(), topology, disks.hosts, images), images


def leader(high_watermark: int, end_offset: int, isr: tuple[int, ...] = (1, 2, 3)) -> Replica:
    return Replica(TopicPartition(TOPIC, 0), 0, True, high_watermark, end_offset, isr)


def test_high_watermark_above_an_isr_member_is_found() -> None:
    disks = Disks()
    probe, _ = replica_probe(disks)
    for host in disks.hosts:
        disks.write(host, batch(0))
    probe.check("node-1", [leader(0, 1)], has_written=True)
    probe.check("node-1", [leader(1, 1)], has_written=True)
    disks.write("node-1", batch(1))
    disks.write("node-2", batch(1))
    with pytest.raises(Violation, match="node-3 ends at 1, but 2 is committed"):
        probe.check("node-1", [leader(2, 2)], has_written=True)


def test_high_watermark_that_advances_below_min_isr_is_found() -> None:
    disks = Disks()
    probe, _ = replica_probe(disks, replace(PARTITION, isr=(1,)))
    disks.write("node-1", batch(0))
    probe.check("node-1", [leader(0, 1, (1,))], has_written=True)
    with pytest.raises(Violation, match=r"advanced to 1 with ISR \(1,\)"):
        probe.check("node-1", [leader(1, 1, (1,))], has_written=False)


def test_decrease_of_the_high_watermark_is_found() -> None:
    disks = Disks()
    probe, _ = replica_probe(disks)
    probe.check("node-1", [leader(5, 5)], has_written=False)
    with pytest.raises(Violation, match="decreased: 5 became 4"):
        probe.check("node-1", [leader(4, 5)], has_written=False)


def test_isr_member_that_truncates_committed_records_is_found() -> None:
    disks = Disks()
    probe, _ = replica_probe(disks)
    for host in disks.hosts:
        disks.write(host, batch(0), batch(1))
    follower = Replica(TopicPartition(TOPIC, 0), 0, False, 1, 2)
    probe.check("node-2", [follower], has_written=True)
    probe.check("node-1", [leader(0, 2)], has_written=True)
    probe.check("node-1", [leader(2, 2)], has_written=False)
    disks.truncate("node-2", len(batch(0)))
    with pytest.raises(Violation, match="node-2 ends at 1"):
        probe.check("node-2", [follower._replace(end_offset=1)], has_written=True)


def test_replica_that_joins_the_isr_too_early_is_found() -> None:
    disks = Disks()
    probe, images = replica_probe(disks, replace(PARTITION, isr=(1, 2)))
    disks.write("node-1", batch(0))
    disks.write("node-2", batch(0))
    probe.check("node-1", [leader(0, 1, (1, 2))], has_written=True)
    probe.check("node-1", [leader(1, 1, (1, 2))], has_written=False)
    with pytest.raises(Violation, match="node-3 ends at 0, but 1 is committed"):
        probe.take(images.check(image(2, replace(PARTITION, partition_epoch=1))))


def test_eligible_replica_without_committed_records_is_found() -> None:
    disks = Disks()
    partition = replace(PARTITION, isr=(1, 2), eligible_leader_replicas=(3,))
    probe, _ = replica_probe(disks, partition)
    disks.write("node-1", batch(0))
    disks.write("node-2", batch(0))
    probe.check("node-1", [leader(0, 1, (1, 2))], has_written=True)
    with pytest.raises(Violation, match="node-3 ends at 0, but 1 is committed"):
        probe.check("node-1", [leader(1, 1, (1, 2))], has_written=False)


ALL_THREE = ((1, NO_EPOCH), (2, NO_EPOCH), (3, NO_EPOCH))  # no broker is registered


def test_high_watermark_above_a_joining_replica_is_found() -> None:
    disks = Disks()
    probe, _ = replica_probe(disks, replace(PARTITION, isr=(1, 2)))
    disks.write("node-1", batch(0))
    disks.write("node-2", batch(0))
    probe.check("node-1", [leader(0, 1, (1, 2))], has_written=True)
    with pytest.raises(Violation, match="the joining node-3 ends at 0"):
        probe.check("node-1", [leader(1, 1, (1, 2))._replace(proposed=ALL_THREE)], has_written=False)


def test_join_of_a_replica_behind_the_epoch_start_is_found() -> None:
    disks = Disks()
    probe, _ = replica_probe(disks, replace(PARTITION, isr=(1, 2), leader_epoch=1))
    for host in ("node-1", "node-2"):
        disks.write(host, batch(0), batch(1), batch(2, epoch=1))
    disks.write("node-3", batch(0))
    now = leader(0, 3, (1, 2))._replace(leader_epoch=1)
    probe.check("node-1", [now], has_written=True)
    with pytest.raises(Violation, match="requests to add node-3, which ends at 1, before the start of the epoch at 2"):
        probe.check("node-1", [now._replace(proposed=ALL_THREE)], has_written=False)
    of_old_process = ((1, NO_EPOCH), (2, NO_EPOCH), (3, 7))
    probe.check("node-1", [now._replace(proposed=of_old_process)], has_written=False)
    probe.check("node-1", [now._replace(isr=(1, 3), proposed=ALL_THREE)], has_written=False)  # 2 has left
    disks.write("node-3", batch(1))
    probe.check("node-1", [now._replace(proposed=ALL_THREE)], has_written=True)


@pytest.mark.parametrize("syncs", [False, True])
def test_high_watermark_above_durable_records_is_found_in_synced_topics(syncs: bool) -> None:
    disks = Disks()
    probe, _ = replica_probe(disks, syncs=syncs)
    for host in disks.hosts:
        disks.write(host, batch(0))
    disks.sync("node-1")
    disks.sync("node-2")
    probe.check("node-1", [leader(0, 1)], has_written=True)
    if syncs:
        with pytest.raises(Violation, match="the disk of node-3 has 0"):
            probe.check("node-1", [leader(1, 1)], has_written=False)
    else:
        probe.check("node-1", [leader(1, 1)], has_written=False)


def test_replicas_are_ignored_between_power_loss_and_registration() -> None:
    disks = Disks()
    probe, _ = replica_probe(disks)
    for host in disks.hosts:
        disks.write(host, batch(0))
    probe.check("node-1", [leader(0, 1)], has_written=True)
    probe.check("node-1", [leader(1, 1)], has_written=False)
    disks.hosts["node-2"].disk.power_loss()
    disks.write("node-1", batch(1))
    disks.write("node-3", batch(1))
    probe.check("node-1", [leader(2, 2)], has_written=True)
    assert probe.is_doubtful("node-2")
    assert not probe.is_doubtful("node-3")


def test_different_replicas_at_the_end_are_found() -> None:
    disks = Disks()
    probe, _ = replica_probe(disks)
    for host in disks.hosts:
        disks.write(host, batch(0))
    probe.compare("t-0", list(disks.hosts))
    disks.write("node-3", batch(1))
    with pytest.raises(Violation, match=r"node-3 \(end 2\)"):
        probe.compare("t-0", list(disks.hosts))


# Ledgers of clients


def test_two_owners_of_a_partition_in_one_generation_are_found() -> None:
    group = GroupLedger()
    group.own("a", 1, [0, 1])
    group.own("b", 2, [0])
    with pytest.raises(Violation, match="generation 1: a and b"):
        group.own("b", 1, [1])


def test_wrong_committed_offset_is_found() -> None:
    group = GroupLedger()
    group.read(0, 5)
    group.commit(0, 5)
    group.resume(0, 5, 5)
    with pytest.raises(Violation, match="4 was fetched, but 5 was committed"):
        group.resume(0, 4, 5)
    with pytest.raises(Violation, match="only 5 records were read"):
        group.resume(0, 6, 5)


def test_record_that_changes_after_a_read_is_found() -> None:
    seen = ReadValues()
    seen.check_record(0, 10)
    seen.check_record(1, 11)
    seen.check_record(0, 10)
    with pytest.raises(Violation, match="10 was read at offset 0, and 12 later"):
        seen.check_record(0, 12)
    with pytest.raises(Violation, match="a reader got offset 3 after 1"):
        seen.check_record(3, 13)
