"""The cluster metadata on this node: its log, replicated by the quorum, and the committed images built from it.

The leader of the quorum runs the metadata machine on the log: it is the active controller. All other nodes follow.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import TypeVar

from moldau.broker.cluster.peers import Peers
from moldau.broker.configs.broker_settings import MetadataLogSettings
from moldau.broker.drivers.auto_join import AutoJoin
from moldau.broker.drivers.bootstrap_file import read_bootstrap, replayed_credentials
from moldau.broker.drivers.image_follower import ImageFollower
from moldau.broker.drivers.image_publisher import ImagePublisher, Subscriber
from moldau.broker.drivers.membership import Membership, first_voters, read_election_state
from moldau.broker.drivers.metadata_log import MetadataLog
from moldau.broker.drivers.quorum import Quorum
from moldau.broker.drivers.quorum_peers import QuorumPeers
from moldau.broker.drivers.replicated import ReplicatedDriver, UnavailableErrors
from moldau.broker.drivers.snapshot_store import SnapshotStore
from moldau.broker.runtime.log_dir_monitor import WriteObserver
from moldau.machines.access.scram import ScramCredential, ScramUser
from moldau.machines.decision import Decision
from moldau.machines.metadata.configs import ConfigRules
from moldau.machines.metadata.delta import MetadataDelta
from moldau.machines.metadata.image import MetadataImage
from moldau.machines.metadata.machine import MetadataMachine
from moldau.machines.metadata.records import Record
from moldau.machines.metadata.settings import MetadataSettings
from moldau.machines.raft import (
    Endpoints,
    Leadership,
    QuorumDescription,
    RaftMachine,
    ResignRequested,
    VotersAt,
    VoterSet,
)
from moldau.model.errors import KafkaError, NotController
from moldau.model.ids import NO_EPOCH, NO_NODE, Address
from moldau.model.ports import Clock, Disk, Executor, Random

log = logging.getLogger(__name__)

Response = TypeVar("Response")


class MetadataDriver:
    """The cluster metadata on one node. `subscribe`, `start`, use, `close`."""

    local_credentials: Mapping[ScramUser, ScramCredential] = MappingProxyType({})  # of the log, until there is an image
    _bootstrap: Sequence[Record] = ()

    def __init__(
        self,
        data_folder: str,
        membership: Membership,
        *,
        disk: Disk,
        executor: Executor,
        clock: Clock,
        random: Random,
        peers: Peers,
        rules: ConfigRules,
        log_settings: MetadataLogSettings,
        machine_settings: Callable[[], MetadataSettings],
        failed: Callable[[BaseException], None],
        has_lost_power: bool = False,
        has_sync_failure: bool = False,
        observer: WriteObserver | None = None,
    ) -> None:
        """`machine_settings` is called whenever a machine is created; `failed` is called with a fatal error."""
        self._log = MetadataLog(
            data_folder,
            disk,
            executor,
            clock,
            log_settings,
            self._fail,
            has_lost_power=has_lost_power,
            has_sync_failure=has_sync_failure,
            observer=observer,
        )
        self.on_leader_changed: list[Callable[[], None]] = []  # called when `is_active` or `leader_id` has changed
        self._membership = membership
        self._disk, self._executor, self._clock, self._data_folder = disk, executor, clock, data_folder
        self._random, self._peers, self._rules = random, peers, rules
        self._settings = log_settings
        self._machine_settings = machine_settings
        self._failed = failed
        self._failure: BaseException | None = None
        self._publisher = ImagePublisher()
        self._publisher.subscribe(self._plan_snapshot)
        self._driver: ReplicatedDriver[MetadataMachine, Record] = ReplicatedDriver(
            self._log,
            self._new_machine,
            clock,
            errors=UnavailableErrors(lost=NotController, loading=NotController, busy=NotController),
            failed=self._fail,
            observer=self._publisher,
            on_write_failed=self._hand_over,
        )
        self._follower = ImageFollower(self._log, self._publisher, clock, self._fail)
        self._log.watch(lambda _: self._follower.wake())
        self._quorum: Quorum | None = None
        self._auto_join: AutoJoin | None = None
        self._leading: asyncio.Task[None] | None = None
        self._is_closing = False
        self._known: tuple[bool, int] = (False, NO_NODE)  # (is_active, leader_id) as last notified
        self._last_logged: tuple[int, int] = (NO_NODE, NO_EPOCH)  # leader and epoch, as last logged
        self._waiters: list[asyncio.Future[None]] = []
        self._snapshot_timer: asyncio.TimerHandle | None = None
        self._snapshotting: asyncio.Task[None] | None = None

    # Lifecycle

    async def start(self, endpoints: Endpoints | None = None, *, needs_local_credentials: bool = False) -> None:
        """Open the log and join the quorum; a controller is reachable at `endpoints`.

        If this node is the only voter, it is the leader when this returns, and its committed image has been published.
        With `needs_local_credentials`, controllers authenticate to each other before they can form a quorum.
        """
        if endpoints is not None:
            self._membership = replace(self._membership, me=replace(self._membership.me, endpoints=endpoints))
        self._log.open()
        self._bootstrap = read_bootstrap(self._disk, self._data_folder)
        if needs_local_credentials:
            self.local_credentials = await replayed_credentials(self._bootstrap, self._log.replay())
        written = await self._log.voter_sets()
        known = read_election_state(self._disk, self._log, self._membership, written)
        voter_sets, static_voters = first_voters(self._log, self._membership, written, is_to_join=known.is_to_join)
        if not self._is_alone(voter_sets, static_voters):
            await self._log.synced(self._log.end_offset)  # other nodes will count on this end offset
        machine = RaftMachine(
            self._membership.me,
            self._log,
            self._membership.settings,
            self._random.random,
            static_voters=static_voters,
        )
        self._quorum = Quorum(
            machine,
            self._log,
            self._make_peers,
            self,
            disk=self._disk,
            executor=self._executor,
            clock=self._clock,
            static_voters=static_voters,
            failed=self._fail,
            observer=self._log.observer,
        )
        self._quorum.start(known.state, voter_sets)
        self._auto_join = AutoJoin(self._membership, machine, self._peers)
        self._auto_join.start()
        if machine.is_voter and len(machine.voters) == 1:
            await self._wait_until(lambda: self.is_active)
            await self._driver.read(lambda machine: machine.image)
        elif not machine.is_leader:
            self._follower.start()
        await self._drop_obsolete()  # a crash may have prevented it after the last snapshot

    async def _drop_obsolete(self) -> None:
        try:
            await self._log.drop_obsolete()
        except OSError as error:  # it only takes up space
            log.error("Cannot remove old metadata snapshots and segments: %s", error)

    def _is_alone(self, voter_sets: Sequence[VotersAt], static_voters: VoterSet | None) -> bool:
        """If this node is the only voter, the first flush in its own epoch makes everything before it durable too."""
        voters = voter_sets[-1].voters if voter_sets else static_voters
        return voters is not None and voters.ids == (self._membership.me.node_id,)

    def _hand_over(self) -> None:
        """A controller that cannot write must not lead: let a voter with free disk space take over, if there is one."""
        if self._quorum is not None and len(self._quorum.machine.voters) > 1:
            log.warning("Metadata log cannot be written; resigning leadership")
            self._quorum.post(ResignRequested())

    def give_up(self) -> None:
        """Resign if this node is the active controller and another voter can take over."""
        if self.is_active:
            self._hand_over()

    def _make_peers(self, post: Callable[..., None]) -> QuorumPeers:
        return QuorumPeers(self._membership, self._peers, self._log.snapshots, post, self._fail)

    async def close(self) -> None:
        """On return, all decisions are on disk and another controller has been notified that it may lead."""
        timeout_s = self._membership.settings.request_timeout_ms / 1000
        with suppress(KafkaError, TimeoutError):  # without a quorum nothing can be committed
            async with asyncio.timeout(timeout_s):
                await self._driver.read(lambda machine: None)  # noqa: ARG005
        self._is_closing = True
        await self._driver.close()
        self._follower.stop()
        if self._auto_join is not None:
            await self._auto_join.close()
        if self._quorum is not None:
            with suppress(TimeoutError):  # a full disk may prevent the resignation
                async with asyncio.timeout(timeout_s):
                    await self._quorum.resign()
            await self._quorum.close()
        if self._snapshot_timer is not None:
            self._snapshot_timer.cancel()
        if self._snapshotting is not None:
            await asyncio.wait([self._snapshotting])
        await self._log.close()

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._driver.resign()  # waiters for a commit would wait forever
        self._follower.stop()
        if self._quorum is not None:
            self._quorum.stop()
        self._notify_waiters()
        self._failed(error)

    # Callbacks of the quorum

    def lead(self, epoch: int) -> None:
        log.info("Metadata quorum: this node is the leader in epoch %d", epoch)
        self._follower.stop()
        self._leading = asyncio.get_running_loop().create_task(self._load_and_lead())

    async def _load_and_lead(self) -> None:
        try:
            await self._driver.lead()
        except Exception as error:
            self._fail(error)
        self._notify_waiters()

    def _new_machine(self) -> MetadataMachine:
        """Create a machine that continues from the last published image, if the log reaches back to it."""
        settings, shown = self._machine_settings(), self._publisher.end_offset
        if shown > 0 and shown >= self._log.start_offset:
            self._log.replays_from = shown
            return MetadataMachine(settings, self._rules, self._publisher.image, self._bootstrap)
        if shown > 0:
            self._publisher.restart()
        self._log.replays_from = 0
        return MetadataMachine(settings, self._rules, bootstrap=self._bootstrap)

    def flush(self) -> None:
        self._driver.flush()

    def lose(self) -> None:
        if self._leading is not None:
            self._leading.cancel()  # it may not have started yet
            self._leading = None
        self._driver.resign()
        self._notify_waiters()

    def follow(self, leadership: Leadership) -> None:
        if leadership.is_known and (leadership.leader_id, leadership.epoch) != self._last_logged:
            log.info("Metadata quorum: node %d is the leader in epoch %d", leadership.leader_id, leadership.epoch)
            self._last_logged = leadership.leader_id, leadership.epoch
        if not self._is_closing:
            self._follower.start()
        self._notify_waiters()

    def on_snapshot_loaded(self) -> None:
        self._follower.wake()

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if self._failure is not None:
                raise self._failure
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def _notify_waiters(self) -> None:
        known = self.is_active, self.leader_id
        if known != self._known:
            self._known = known
            for listener in list(self.on_leader_changed):
                listener()
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # Use

    @property
    def image(self) -> MetadataImage:
        """The newest committed image."""
        return self._publisher.image

    @property
    def is_caught_up(self) -> bool:
        """Whether the newest image holds every record that is known to be committed."""
        return 0 < self._log.high_watermark <= self._publisher.end_offset

    @property
    def is_stalled(self) -> bool:
        """Whether this node cannot write what the quorum decides, so that its images stay behind."""
        return self._quorum is not None and self._quorum.is_stalled and not self.is_active

    @property
    def quorum(self) -> Quorum:
        """The quorum member that handles requests of other members."""
        if self._quorum is None:
            raise NotController("The metadata log is not open yet.")
        return self._quorum

    @property
    def snapshots(self) -> SnapshotStore:
        return self._log.snapshots

    @property
    def epoch(self) -> int:
        """The quorum's epoch."""
        return self._quorum.machine.epoch if self._quorum is not None else NO_EPOCH

    @property
    def is_active(self) -> bool:
        """Whether this node is the active controller: it leads, and has applied all earlier decisions."""
        return self._driver.is_leading

    @property
    def leader_id(self) -> int:
        """The active controller, -1 if unknown."""
        return self._quorum.machine.leadership.leader_id if self._quorum is not None else NO_NODE

    @property
    def controller_address(self) -> Address | None:
        """The address of the active controller, None if unknown."""
        endpoints = self._quorum.machine.leadership.endpoints if self._quorum is not None else ()
        return endpoints[0][1] if endpoints else None

    @property
    def other_controllers(self) -> list[Address]:
        """The addresses of all other voters."""
        voters = self._quorum.machine.voters if self._quorum is not None else ()
        me = self._membership.me.node_id
        return [each.endpoints[0][1] for each in voters if each.node_id != me and each.endpoints]

    async def wait_for_leader(self) -> None:
        """Wait until the quorum has a leader."""
        await self._wait_until(lambda: self.leader_id != NO_NODE)

    def describe(self) -> QuorumDescription:
        """Describe the quorum as seen by this node; only the leader knows the progress of the other replicas."""
        return self.quorum.machine.describe(self._clock.monotonic_ms())

    @property
    def next_offset(self) -> int:
        """The offset of the next decision's first record; only valid inside `decide`."""
        return self._driver.next_offset

    @property
    def high_watermark(self) -> int:
        return self._log.high_watermark

    @property
    def end_offset(self) -> int:
        """The log end offset on this node, committed or not."""
        return self._log.end_offset

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call `subscriber(image, delta)` for every committed image from now on, before writers get their responses."""
        self._publisher.subscribe(subscriber)

    async def write(self, decide: Callable[[MetadataMachine], Decision[Record, Response]]) -> Response:
        """Decide, and return once the decision is committed and published; raises `NotController` elsewhere."""
        return await self._driver.write(decide)

    async def read(self, query: Callable[[MetadataMachine], Response]) -> Response:
        """Query the newest state, once it is committed; for less strict reads `image` is enough."""
        return await self._driver.read(query)

    # Snapshots

    def _plan_snapshot(self, image: MetadataImage, delta: MetadataDelta) -> None:  # noqa: ARG002
        if self._snapshotting is not None or self._is_closing:
            return
        if self._log.bytes_since_snapshot >= self._settings.metadata_log_max_record_bytes_between_snapshots:
            self._begin_snapshot()
        elif self._snapshot_timer is None and self._settings.metadata_log_max_snapshot_interval_ms:
            delay = self._settings.metadata_log_max_snapshot_interval_ms / 1000
            self._snapshot_timer = asyncio.get_running_loop().call_later(delay, self._begin_snapshot)

    def _begin_snapshot(self) -> None:
        if self._snapshot_timer is not None:
            self._snapshot_timer.cancel()
            self._snapshot_timer = None
        if self._snapshotting is None:
            self._snapshotting = asyncio.get_running_loop().create_task(self.take_snapshot())

    async def take_snapshot(self) -> None:
        """Write the committed image to a snapshot. On a full disk the log is merely kept longer."""
        end_offset = self._publisher.end_offset
        try:
            voters = self.quorum.machine.voters_at(end_offset)
            await self._log.take_snapshot(self._publisher.image, end_offset, voters)
        except OSError as error:
            log.error("Cannot write metadata snapshot: %s", error)
        except Exception as error:  # a failed fsync, or a bug
            self._fail(error)
        finally:
            self._snapshotting = None
