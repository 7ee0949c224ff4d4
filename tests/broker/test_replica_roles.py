"""The role a partition takes for an image, and what becomes of its waiters."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from moldau.broker.configs.replica_settings import ReplicaSettings
from moldau.broker.fetch.replica_sessions import ReplicaFetchSession, SessionPartition
from moldau.broker.partitions.partition import Partition
from moldau.broker.partitions.write_coalescer import WriteCoalescer
from moldau.broker.replicas.replicas import Replicas
from moldau.broker.runtime.log_dir_monitor import LogDirMonitor
from moldau.broker.runtime.log_dirs import LogDirs
from moldau.broker.runtime.meters import TrafficMeter
from moldau.machines.metadata.image import BrokerImage, ListenerImage, MetadataImage, PartitionImage
from moldau.model.errors import KafkaError, NotEnoughReplicas, NotLeaderOrFollower
from moldau.model.ids import Address, DirectoryId, TopicId, TopicPartition
from moldau.records.builder import build_batch
from moldau.records.header import read_header
from moldau.storage.log import Log
from moldau.storage.settings import LogSettings
from moldau.testing.disk import SimulatedDisk
from moldau.wire.messages import AlterPartitionResponse, FetchRequest
from moldau_dev.simulation.simulation import Simulation

ME = 1
LIFE = b"this life of it."


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1000.0

    def monotonic_ms(self) -> float:
        return self.now_ms

    def wall_ms(self) -> int:
        return 1_700_000_000_000


class SilentPeers:
    """Peers, flusher and controller: none responds, unless a response is prepared."""

    def __init__(self) -> None:
        self.requested: list[Any] = []
        self.responses: list[Any] = []

    def request(self, partition: Partition) -> None: ...

    async def ask(self, *requested: Any, **_: Any) -> Any:
        self.requested.append(requested[0] if requested else None)
        if not self.responses:
            raise ConnectionError("unreachable")
        return self.responses.pop(0)


class Stage:
    """One partition and the registry that assigns its roles."""

    def __init__(self, *, incarnation_id: bytes = LIFE, **settings: Any) -> None:
        self.disk = SimulatedDisk(seed=1)
        self.disk.prepare_folder("/data")
        self.clock = Clock()
        self.write_coalescer = WriteCoalescer()
        self.disk_errors = 0
        log = Log.open(self.disk.mount(), "/data/t-0", LogSettings(**settings), now_ms=0)
        silent: Any = SilentPeers()
        self.controller: SilentPeers = silent
        self.partition = Partition(
            TopicPartition("t", 0),
            TopicId(b"t" * 16),
            log,
            0,
            TrafficMeter(),
            silent.request,
            self._disk_failed,
            self.write_coalescer,
            0,
        )
        log_dir = LogDirMonitor("/data", silent, silent, self.clock, silent)
        self.replicas = Replicas(
            ME,
            incarnation_id,
            "PLAINTEXT",
            silent,
            self.clock,
            silent,
            ReplicaSettings,
            silent.ask,
            silent.ask,
            _raise,
            LogDirs([log_dir], {"/data": DirectoryId(b"d" * 16)}, log_dir, {}),
            lambda partition, offset: None,  # noqa: ARG005
        )
        self.see()

    def _disk_failed(self, partition: Partition, error: OSError) -> None:  # noqa: ARG002
        self.disk_errors += 1

    def see(self, *, registered_as: bytes = LIFE) -> None:
        brokers = {
            each: BrokerImage(
                each,
                100 + each,
                registered_as if each == ME else b"x" * 16,
                (ListenerImage("PLAINTEXT", Address(f"n{each}", 9092), 0),),
                {},
                is_fenced=False,
            )
            for each in (1, 2, 3)
        }
        self.replicas.update_image(MetadataImage(offset=1, brokers=brokers))

    def place(self, leader: int, epoch: int, replicas: Sequence[int] = (1, 2, 3), **fields: Any) -> None:
        isr = fields.pop("isr", replicas)
        where = PartitionImage(tuple(replicas), tuple(isr), leader, epoch, fields.pop("partition_epoch", epoch))
        self.replicas.assign_role(self.partition, where)

    def append(self, value: bytes = b"x") -> int:
        batch = memoryview(build_batch([(1, None, value, ())]))
        return self.partition.append(batch, read_header(batch), 1).last_offset + 1


def _raise(*words: Any) -> None:
    raise AssertionError(words)


def run(play: Coroutine[Any, Any, None]) -> None:
    """Run on virtual time."""
    Simulation(seed=1).run(lambda _: play)


def test_single_replica_is_a_leader_alone() -> None:
    async def play() -> None:
        stage = Stage()
        stage.place(ME, 3, [ME])
        partition = stage.partition
        assert (partition.role.is_leader, partition.role.leads_alone, partition.role.leading) == (True, True, None)
        assert partition.role.leader_epoch == 3
        assert stage.append() == partition.high_watermark == 1

    run(play())


@pytest.mark.proves("H1")
def test_leader_with_followers_commits_nothing_on_its_own() -> None:
    async def play() -> None:
        stage = Stage()
        stage.place(ME, 3)
        partition = stage.partition
        assert (partition.role.is_leader, partition.role.leads_alone) == (True, False)
        assert stage.append() == 1
        assert partition.high_watermark == 0

    run(play())


@pytest.mark.proves("H5")
def test_image_of_an_earlier_incarnation_assigns_no_leader_role() -> None:
    async def play() -> None:
        stage = Stage()
        stage.see(registered_as=b"an earlier life.")
        stage.place(ME, 3)
        assert not stage.partition.role.is_leader
        assert stage.replicas.broker_epoch == -1
        stage.see()
        stage.place(ME, 4)
        assert stage.partition.role.is_leader
        assert stage.replicas.broker_epoch == 101

    run(play())


@pytest.mark.proves("H5")
def test_leader_epoch_below_the_logs_epoch_assigns_no_leader_role() -> None:
    async def play() -> None:
        stage = Stage()
        stage.place(ME, 7)
        stage.append()
        stage.place(2, 8)
        stage.place(ME, 6)
        assert not stage.partition.role.is_leader

    run(play())


def test_leader_machine_lives_as_long_as_its_epoch() -> None:
    async def play() -> None:
        stage = Stage()
        stage.place(ME, 3)
        first = stage.partition.role.leading
        assert first is not None
        stage.place(ME, 3, isr=[1, 2], partition_epoch=9)
        assert stage.partition.role.leading is first
        assert (first.machine.isr, first.machine.partition_epoch) == ((1, 2), 9)
        stage.place(ME, 4)
        assert stage.partition.role.leading is not first

    run(play())


@pytest.mark.proves("H5")
def test_leader_epoch_is_recorded_at_once_and_removed_if_nothing_is_written() -> None:
    async def play() -> None:
        stage = Stage()
        stage.place(ME, 3)
        assert stage.partition.log.epochs.latest == 3
        stage.append()
        stage.place(ME, 4)
        assert stage.partition.log.epochs.latest == 4
        stage.place(2, 5)
        assert stage.partition.log.epochs.latest == 3

    run(play())


@pytest.mark.parametrize("leader", [2, -1], ids=["another leader", "no leader"])
@pytest.mark.proves("H3")
def test_commit_waiter_fails_when_the_partition_loses_its_role(leader: int) -> None:
    async def play() -> None:
        stage = Stage()
        stage.place(ME, 3)
        wait = stage.partition.waiters.commit_wait(stage.append())
        stage.place(ME, 4)
        assert not wait.done()  # the same leader continues
        stage.place(leader, 5)
        assert isinstance(wait.exception(), NotLeaderOrFollower)
        late = stage.partition.waiters.commit_wait(1)
        assert isinstance(late.exception(), NotLeaderOrFollower)

    run(play())


def test_partition_that_loses_its_followers_commits_its_log() -> None:
    async def play() -> None:
        stage = Stage()
        stage.place(ME, 3)
        wait = stage.partition.waiters.commit_wait(stage.append())
        stage.place(ME, 4, [ME])
        assert wait.done()
        assert stage.partition.high_watermark == 1

    run(play())


@pytest.mark.proves("H2")
def test_append_is_rejected_below_min_isr_before_any_write() -> None:
    async def play() -> None:
        stage = Stage(min_insync_replicas=2)
        stage.place(ME, 3, isr=[ME])
        leading = stage.partition.role.leading
        assert leading is not None
        with pytest.raises(NotEnoughReplicas):
            leading.check_enough()
        stage.append()
        assert stage.partition.high_watermark == 0
        stage.partition.log.adopt(LogSettings(min_insync_replicas=1))
        stage.replicas.settings_changed(stage.partition)
        leading.check_enough()
        assert stage.partition.high_watermark == 1

    run(play())


@pytest.mark.proves("S6")
def test_leader_counts_only_synced_records_of_its_own_when_configured() -> None:
    async def play() -> None:
        stage = Stage(flush_messages=1)
        stage.place(ME, 3, isr=[ME])
        partition = stage.partition
        here, everywhere = partition.waiters.sync_wait(stage.append()), partition.waiters.commit_wait(1)
        assert partition.high_watermark == 0
        partition.log.flush(0)
        partition.synced_to(1, 0)
        assert partition.high_watermark == 1
        assert here.done()
        assert everywhere.done()

    run(play())


@pytest.mark.proves("H2", part="committed records are on every in-sync replica")
@pytest.mark.parametrize("leader", [ME, 2], ids=["led", "followed"])
def test_final_sync_at_the_stop_commits_nothing(leader: int) -> None:
    async def play() -> None:
        stage = Stage(flush_messages=1)
        stage.place(ME, 3, isr=[ME, 2])
        stage.append()
        stage.place(leader, 4, isr=[ME, 2])
        partition = stage.partition
        partition.close()
        partition.log.flush(0)
        partition.synced_to(1, 0)  # which was in progress
        assert partition.high_watermark == 0

    run(play())


def test_records_that_fail_to_be_written_are_not_counted() -> None:
    async def play() -> None:
        stage = Stage()
        stage.place(ME, 3, isr=[ME])
        partition = stage.partition
        assert stage.append() == partition.high_watermark == 1
        coalescer = stage.write_coalescer
        for fails in (False, True):
            coalescer.is_open = True
            before = partition.high_watermark
            stage.append(b"gathered")
            assert partition.high_watermark == before
            if fails:
                stage.disk.fail("pwrite")
            failure = coalescer.end()
            assert (failure is not None) is fails
            assert partition.high_watermark == partition.log.end_offset == 2

    run(play())


@pytest.mark.proves("H1", part="the high watermark")
def test_followers_are_notified_of_the_written_part_of_a_failed_flush() -> None:
    async def play() -> None:
        stage = Stage(segment_bytes=1024)
        stage.place(ME, 3, [ME, 2])
        followed = _followed(stage, 2)
        waiting = asyncio.ensure_future(followed.session.wait(1, 60_000, has_news=False))
        await asyncio.sleep(0)
        stage.write_coalescer.is_open = True
        stage.append(b"x" * 600)
        stage.append(b"x" * 600)  # in another segment, so the first is written
        stage.disk.fail("pwrite")
        followed.session.ready.clear()
        assert stage.write_coalescer.end() is not None
        assert stage.partition.log.end_offset == 1
        await asyncio.wait_for(waiting, 1)
        assert list(followed.session.ready) == [followed]
        followed.offset = 1
        assert stage.partition.role.leading is not None
        stage.partition.role.leading.fetched(followed)
        assert stage.partition.high_watermark == 1
        await stage.replicas.close()

    run(play())


def test_high_watermark_never_exceeds_the_log_end() -> None:
    async def play() -> None:
        stage = Stage()
        partition = stage.partition
        again = Partition(
            partition.name, partition.topic_id, partition.log, 0, TrafficMeter(), _raise, _raise, None, 100
        )
        assert again.high_watermark == partition.log.end_offset == 0

    run(play())


def test_closed_partition_has_no_role_and_fails_its_waiters() -> None:
    async def play() -> None:
        stage = Stage()
        stage.place(ME, 3)
        wait = stage.partition.waiters.commit_wait(stage.append())
        stage.replicas.remove(stage.partition)
        stage.partition.close()
        assert isinstance(wait.exception(), KafkaError)
        assert not stage.partition.role.is_leader
        assert stage.replicas.led == []

    run(play())


@pytest.mark.proves("H1")
def test_isr_is_proposed_until_the_controller_responds() -> None:
    async def play() -> None:
        stage = Stage()
        stage.place(ME, 3)
        leading = stage.partition.role.leading
        assert leading is not None
        stage.append()
        stage.clock.now_ms += 60_000
        leading.ticked()
        await asyncio.sleep(1.0)
        assert len(stage.controller.requested) >= 3
        proposed = stage.controller.requested[-1].topics[0].partitions[0]
        assert [each.broker_id for each in proposed.new_isr_with_epochs] == [ME]
        assert (proposed.leader_epoch, proposed.partition_epoch) == (3, 3)
        response = AlterPartitionResponse.PartitionData(partition_index=0, leader_epoch=3, isr=[ME], partition_epoch=4)
        topic = AlterPartitionResponse.TopicData(topic_id=b"t" * 16, partitions=[response])
        of_a_later_version = AlterPartitionResponse(error_code=999)
        stage.controller.responses += [of_a_later_version, AlterPartitionResponse(topics=[topic])]
        await asyncio.sleep(2.5)
        assert leading.machine.isr == (ME,)
        assert leading.machine.partition_epoch == 4
        assert stage.partition.high_watermark == 1
        await stage.replicas.close()

    run(play())


def _followed(stage: Stage, replica: int) -> SessionPartition:
    """Return a follower that has just fetched at the log end offset."""
    session = ReplicaFetchSession(replica, replica)
    session.broker_epoch, session.fetched_ms = 100 + replica, stage.clock.now_ms
    requested = FetchRequest.FetchPartition(
        current_leader_epoch=stage.partition.role.leader_epoch, fetch_offset=stage.partition.log.end_offset
    )
    session.update([FetchRequest.FetchTopic(topic_id=b"t" * 16, partitions=[requested])], lambda *_: stage.partition)
    (followed,) = session.ready
    assert stage.partition.role.leading is not None
    stage.partition.role.leading.fetched(followed)
    return followed


@pytest.mark.parametrize(("is_alive", "is_left_out"), [(True, False), (False, True)], ids=["idle", "silent"])
@pytest.mark.proves("H1")
def test_idle_follower_stays_in_the_isr_while_it_fetches(is_alive: bool, is_left_out: bool) -> None:
    async def play() -> None:
        stage = Stage()
        stage.place(ME, 3, [ME, 2])
        followed = _followed(stage, 2)
        leading = stage.partition.role.leading
        assert leading is not None
        stage.clock.now_ms += 3_600_000
        if is_alive:  # it fetched a moment ago, without naming this partition
            followed.session.fetched_ms = stage.clock.now_ms - 100
        stage.append()
        leading.ticked()
        assert (leading.machine.proposal is not None) is is_left_out
        await stage.replicas.close()

    run(play())
