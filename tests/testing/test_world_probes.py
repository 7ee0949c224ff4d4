"""The probes of a simulated cluster raise an alarm over each broken promise, and none over what is right."""

from collections import Counter
from dataclasses import replace

import pytest
from disks_scene import TOPIC, Disks, batch

from moldau.broker.drivers.quorum_state import QuorumState, write_quorum_state
from moldau.machines.metadata.image import MetadataImage, PartitionImage, TopicImage
from moldau.machines.raft import ElectionState, ReplicaKey
from moldau.model.ids import NO_EPOCH, NodeId, TopicId, TopicPartition
from moldau_dev.simulation.cluster.acks_one_producer import Heard
from moldau_dev.simulation.cluster.group_members import GroupLedger
from moldau_dev.simulation.cluster.image_probe import ImageProbe
from moldau_dev.simulation.cluster.node_state import Quorum, Replica
from moldau_dev.simulation.cluster.quorum_probe import METADATA, QuorumProbe
from moldau_dev.simulation.cluster.replica_probe import ReplicaProbe
from moldau_dev.simulation.cluster.roster import BOTH, FOLDER, Roster, Seat
from moldau_dev.simulation.workload import Violation

PARTITION = PartitionImage(replicas=(1, 2, 3), isr=(1, 2, 3), leader=1, leader_epoch=0, partition_epoch=0)


# Raft


def quorum_probe(disks: Disks) -> QuorumProbe:
    return QuorumProbe(Counter(), disks.hosts)


def test_two_leaders_of_one_epoch_are_found() -> None:
    probe = quorum_probe(Disks())
    probe.look("node-1", Quorum(5, True, 0), has_written=False)
    probe.look("node-2", Quorum(6, True, 0), has_written=False)
    with pytest.raises(Violation, match="lead the quorum in epoch 5"):
        probe.look("node-3", Quorum(5, True, 0), has_written=False)


def test_a_quorum_whose_epoch_or_high_watermark_goes_back_is_found() -> None:
    probe = quorum_probe(Disks())
    probe.look("node-1", Quorum(5, False, 7), has_written=False)
    with pytest.raises(Violation, match="epoch 5 became 4"):
        probe.look("node-1", Quorum(4, False, 7), has_written=False)
    probe = quorum_probe(Disks())
    probe.look("node-1", Quorum(5, False, 7), has_written=False)
    with pytest.raises(Violation, match="high watermark 7 became 6"):
        probe.look("node-1", Quorum(5, False, 6), has_written=False)


@pytest.mark.parametrize("is_synced", [False, True])
def test_a_vote_that_a_power_loss_could_take_is_found(is_synced: bool) -> None:
    disks = Disks()
    probe = quorum_probe(disks)
    disk = disks.hosts["node-1"].disk.mount()
    disk.make_directory(f"{FOLDER}/{METADATA}")
    disk.sync_directory(FOLDER)
    vote = ElectionState(5, voted=ReplicaKey(NodeId(2)))
    if is_synced:
        write_quorum_state(disk, f"{FOLDER}/{METADATA}", QuorumState(5, voted_id=2))
        probe.look("node-1", Quorum(5, False, 0, vote), has_written=False)
    else:
        disk.open(f"{FOLDER}/{METADATA}/quorum-state", create=True).pwrite(QuorumState(5, voted_id=2).encode(), 0)
    probe.look("node-1", Quorum(5, False, 0), has_written=False)  # while it writes, nobody has heard of it
    if not is_synced:
        with pytest.raises(Violation, match="has voted for 2 in epoch 5, on its disk is"):
            probe.look("node-1", Quorum(5, False, 0, vote), has_written=False)


def test_a_new_process_may_know_less() -> None:
    probe = quorum_probe(Disks())
    probe.look("node-1", Quorum(5, False, 7), has_written=False)
    probe.begin("node-1")
    probe.look("node-1", Quorum(4, False, 0), has_written=False)


def test_a_leader_that_lacks_what_was_committed_is_found() -> None:
    disks = Disks()
    probe = quorum_probe(disks)
    disks.write("node-1", batch(0), batch(1), folder=METADATA)
    probe.look("node-1", Quorum(1, True, 2), has_written=True)
    disks.write("node-2", batch(0), folder=METADATA)
    with pytest.raises(Violation, match="ends at 1, 2 are committed"):
        probe.look("node-2", Quorum(2, True, 1), has_written=True)


def test_metadata_that_is_committed_by_way_of_an_older_epoch_is_found() -> None:
    disks = Disks()
    probe = quorum_probe(disks)
    disks.write("node-1", batch(0, epoch=1), batch(1, epoch=1), batch(2, epoch=3), folder=METADATA)
    probe.look("node-1", Quorum(3, True, 0), has_written=True)
    with pytest.raises(Violation, match="of an older one"):
        probe.look("node-1", Quorum(3, True, 2), has_written=False)
    probe.look("node-1", Quorum(3, True, 3), has_written=False)


def test_metadata_that_is_committed_before_a_majority_has_it_on_disk_is_found() -> None:
    disks = Disks()
    probe = QuorumProbe(Counter(), disks.hosts, list(disks.hosts))
    for host in ("node-1", "node-2"):
        disks.write(host, batch(0, epoch=1), folder=METADATA)
    disks.sync("node-1", folder=METADATA)
    probe.look("node-1", Quorum(1, True, 0), has_written=True)
    with pytest.raises(Violation, match="commits metadata up to 1"):
        probe.look("node-1", Quorum(1, True, 1), has_written=False)


@pytest.mark.parametrize("is_synced", [False, True])
def test_metadata_that_is_neither_in_the_log_nor_in_a_snapshot_is_found(is_synced: bool) -> None:
    disks = Disks()
    probe = quorum_probe(disks)
    disks.write("node-1", batch(5, epoch=1), folder=METADATA, segment=5)
    disk = disks.hosts["node-1"].disk.mount()
    disk.open(f"{FOLDER}/{METADATA}/{5:020d}-{1:010d}.checkpoint", create=True).pwrite(b"all of it", 0)
    if is_synced:
        disks.sync("node-1", folder=METADATA)
        probe.look("node-1", Quorum(1, False, 5), has_written=True)
    else:
        with pytest.raises(Violation, match="begins at 5, the snapshots on its disk end at 0"):
            probe.look("node-1", Quorum(1, False, 5), has_written=True)


def test_metadata_that_is_on_the_disks_of_a_majority_may_be_committed() -> None:
    disks = Disks()
    probe = QuorumProbe(Counter(), disks.hosts, list(disks.hosts))
    for host in ("node-1", "node-2"):
        disks.write(host, batch(0, epoch=1), folder=METADATA)
        disks.sync(host, folder=METADATA)
    probe.look("node-1", Quorum(1, True, 0), has_written=True)
    probe.look("node-1", Quorum(1, True, 1), has_written=False)


# Images


def image(offset: int, partition: PartitionImage) -> MetadataImage:
    topic = TopicImage(TOPIC, TopicId(bytes(16)), (partition,))
    return MetadataImage(offset=offset, topics={TOPIC: topic})


@pytest.mark.parametrize(
    ("changes", "words"),
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
def test_an_image_that_may_not_be_is_found(changes: dict[str, object], words: str) -> None:
    probe = ImageProbe(Counter())
    probe.look(image(1, PARTITION))
    with pytest.raises(Violation, match=words):
        probe.look(image(2, replace(PARTITION, **{"partition_epoch": 1, **changes})))  # type: ignore[arg-type]


def test_elections_and_changes_of_the_isr_are_counted_once() -> None:
    tally: Counter[str] = Counter()
    probe = ImageProbe(tally)
    probe.look(image(1, PARTITION))
    changed = image(2, replace(PARTITION, isr=(2, 3), leader=2, leader_epoch=1, partition_epoch=1))
    assert [each.folder for each in probe.look(changed)] == ["t-0"]
    assert probe.look(changed) == []
    assert probe.look(image(1, PARTITION)) == [], "an older one, of a node that lags"
    assert tally == {"partition elections": 1, "ISR changes": 1}


# Replicas


def replica_probe(
    disks: Disks, partition: PartitionImage = PARTITION, *, syncs: bool = False
) -> tuple[ReplicaProbe, ImageProbe]:
    seats = tuple(Seat(number, BOTH) for number in (1, 2, 3))
    roster = Roster(seats, {}, {}, partitions=1, min_isr=2, members=1, syncs=syncs)
    images = ImageProbe(Counter())
    images.look(image(1, partition))
    return ReplicaProbe(Counter(), roster, disks.hosts, images), images


def leader(high_watermark: int, end_offset: int, isr: tuple[int, ...] = (1, 2, 3)) -> Replica:
    return Replica(TopicPartition(TOPIC, 0), 0, True, high_watermark, end_offset, isr)


def test_a_high_watermark_that_a_member_of_the_isr_has_not_reached_is_found() -> None:
    disks = Disks()
    probe, _ = replica_probe(disks)
    for host in disks.hosts:
        disks.write(host, batch(0))
    probe.look("node-1", [leader(0, 1)], has_written=True)
    probe.look("node-1", [leader(1, 1)], has_written=True)
    disks.write("node-1", batch(1))
    disks.write("node-2", batch(1))
    with pytest.raises(Violation, match="node-3 ends at 1, 2 are committed"):
        probe.look("node-1", [leader(2, 2)], has_written=True)


def test_a_high_watermark_that_moves_below_min_isr_is_found() -> None:
    disks = Disks()
    probe, _ = replica_probe(disks, replace(PARTITION, isr=(1,)))
    disks.write("node-1", batch(0))
    probe.look("node-1", [leader(0, 1, (1,))], has_written=True)
    with pytest.raises(Violation, match=r"moved to 1, ISR \(1,\)"):
        probe.look("node-1", [leader(1, 1, (1,))], has_written=False)


def test_a_high_watermark_that_goes_back_is_found() -> None:
    disks = Disks()
    probe, _ = replica_probe(disks)
    probe.look("node-1", [leader(5, 5)], has_written=False)
    with pytest.raises(Violation, match="went back: 5 became 4"):
        probe.look("node-1", [leader(4, 5)], has_written=False)


def test_a_member_of_the_isr_that_cuts_committed_records_is_found() -> None:
    disks = Disks()
    probe, _ = replica_probe(disks)
    for host in disks.hosts:
        disks.write(host, batch(0), batch(1))
    follower = Replica(TopicPartition(TOPIC, 0), 0, False, 1, 2)
    probe.look("node-2", [follower], has_written=True)
    probe.look("node-1", [leader(0, 2)], has_written=True)
    probe.look("node-1", [leader(2, 2)], has_written=False)
    disks.truncate("node-2", len(batch(0)))
    with pytest.raises(Violation, match="node-2 ends at 1"):
        probe.look("node-2", [follower._replace(end_offset=1)], has_written=True)


def test_a_replica_that_joins_the_isr_too_early_is_found() -> None:
    disks = Disks()
    probe, images = replica_probe(disks, replace(PARTITION, isr=(1, 2)))
    disks.write("node-1", batch(0))
    disks.write("node-2", batch(0))
    probe.look("node-1", [leader(0, 1, (1, 2))], has_written=True)
    probe.look("node-1", [leader(1, 1, (1, 2))], has_written=False)
    with pytest.raises(Violation, match="node-3 ends at 0, 1 are committed"):
        probe.take(images.look(image(2, replace(PARTITION, partition_epoch=1))))


def test_a_replica_that_is_eligible_and_lacks_what_is_committed_is_found() -> None:
    disks = Disks()
    partition = replace(PARTITION, isr=(1, 2), eligible_leader_replicas=(3,))
    probe, _ = replica_probe(disks, partition)
    disks.write("node-1", batch(0))
    disks.write("node-2", batch(0))
    probe.look("node-1", [leader(0, 1, (1, 2))], has_written=True)
    with pytest.raises(Violation, match="node-3 ends at 0, 1 are committed"):
        probe.look("node-1", [leader(1, 1, (1, 2))], has_written=False)


ALL_THREE = ((1, NO_EPOCH), (2, NO_EPOCH), (3, NO_EPOCH))  # in a cluster where nobody is registered


def test_a_high_watermark_that_does_not_wait_for_whom_the_leader_wants_to_join_is_found() -> None:
    disks = Disks()
    probe, _ = replica_probe(disks, replace(PARTITION, isr=(1, 2)))
    disks.write("node-1", batch(0))
    disks.write("node-2", batch(0))
    probe.look("node-1", [leader(0, 1, (1, 2))], has_written=True)
    with pytest.raises(Violation, match="node-3, which it wants to join, has 0"):
        probe.look("node-1", [leader(1, 1, (1, 2))._replace(proposed=ALL_THREE)], has_written=False)


def test_a_replica_that_is_to_join_without_what_there_was_when_the_epoch_began_is_found() -> None:
    disks = Disks()
    probe, _ = replica_probe(disks, replace(PARTITION, isr=(1, 2), leader_epoch=1))
    for host in ("node-1", "node-2"):
        disks.write(host, batch(0), batch(1), batch(2, epoch=1))
    disks.write("node-3", batch(0))
    now = leader(0, 3, (1, 2))._replace(leader_epoch=1)
    probe.look("node-1", [now], has_written=True)
    with pytest.raises(Violation, match="wants node-3 to join, which has 1, and its epoch began at 2"):
        probe.look("node-1", [now._replace(proposed=ALL_THREE)], has_written=False)
    of_another_life = ((1, NO_EPOCH), (2, NO_EPOCH), (3, 7))
    probe.look("node-1", [now._replace(proposed=of_another_life)], has_written=False)
    probe.look("node-1", [now._replace(isr=(1, 3), proposed=ALL_THREE)], has_written=False)  # has not heard who left
    disks.write("node-3", batch(1))
    probe.look("node-1", [now._replace(proposed=ALL_THREE)], has_written=True)


@pytest.mark.parametrize("syncs", [False, True])
def test_where_records_are_synced_a_high_watermark_beyond_what_is_on_the_disks_is_found(syncs: bool) -> None:
    disks = Disks()
    probe, _ = replica_probe(disks, syncs=syncs)
    for host in disks.hosts:
        disks.write(host, batch(0))
    disks.sync("node-1")
    disks.sync("node-2")
    probe.look("node-1", [leader(0, 1)], has_written=True)
    if syncs:
        with pytest.raises(Violation, match="on the disk of node-3 is 0"):
            probe.look("node-1", [leader(1, 1)], has_written=False)
    else:
        probe.look("node-1", [leader(1, 1)], has_written=False)


def test_a_host_that_lost_power_counts_for_nothing_until_it_has_registered_again() -> None:
    disks = Disks()
    probe, _ = replica_probe(disks)
    for host in disks.hosts:
        disks.write(host, batch(0))
    probe.look("node-1", [leader(0, 1)], has_written=True)
    probe.look("node-1", [leader(1, 1)], has_written=False)
    disks.hosts["node-2"].disk.power_loss()
    disks.write("node-1", batch(1))
    disks.write("node-3", batch(1))
    probe.look("node-1", [leader(2, 2)], has_written=True)
    assert probe.is_doubtful("node-2")
    assert not probe.is_doubtful("node-3")


def test_copies_that_differ_in_the_end_are_found() -> None:
    disks = Disks()
    probe, _ = replica_probe(disks)
    for host in disks.hosts:
        disks.write(host, batch(0))
    probe.compare("t-0", list(disks.hosts))
    disks.write("node-3", batch(1))
    with pytest.raises(Violation, match="node-3 at 2"):
        probe.compare("t-0", list(disks.hosts))


# Ledgers of clients


def test_two_owners_of_a_partition_in_one_generation_are_found() -> None:
    group = GroupLedger()
    group.own("a", 1, [0, 1])
    group.own("b", 2, [0])
    with pytest.raises(Violation, match="generation 1: a and b"):
        group.own("b", 1, [1])


def test_a_committed_offset_that_goes_back_or_ahead_is_found() -> None:
    group = GroupLedger()
    group.read(0, 5)
    group.commit(0, 5)
    group.resume(0, 5, 5)
    with pytest.raises(Violation, match="5 was committed, 4 came back"):
        group.resume(0, 4, 5)
    with pytest.raises(Violation, match="only 5 were read"):
        group.resume(0, 6, 5)


def test_a_record_that_changes_after_it_was_read_is_found() -> None:
    heard = Heard()
    heard.hear(0, 10)
    heard.hear(1, 11)
    heard.hear(0, 10)
    with pytest.raises(Violation, match="10 was read at 0, and 12 later"):
        heard.hear(0, 12)
    with pytest.raises(Violation, match="after offset 1 a reader got 3"):
        heard.hear(3, 13)
