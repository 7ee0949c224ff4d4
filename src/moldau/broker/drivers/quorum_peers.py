"""The other members of the quorum: sends the raft machine's requests and detects crashed leaders."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from moldau.broker.cluster.peers import Peers
from moldau.broker.drivers.membership import Membership
from moldau.broker.drivers.metadata_snapshots import CorruptSnapshot, SnapshotId
from moldau.broker.drivers.quorum_messages import QuorumMessages, response_event
from moldau.broker.drivers.snapshot_store import IncomingSnapshot, SnapshotStore
from moldau.machines.raft import (
    Endpoints,
    Event,
    FetchResponseReceived,
    FetchSnapshotResponseReceived,
    PeerStopped,
    RequestFailed,
    Send,
    SendEndQuorum,
    SendFetch,
    SendFetchSnapshot,
    Voter,
)
from moldau.model.errors import ErrorCode, KafkaError
from moldau.model.ids import NO_NODE, Address, NodeId

log = logging.getLogger(__name__)

REFUSED_PROBES: Final = 2  # in a row: then the process is gone
PROBES_MAX: Final = 20  # a dying process closes its ports one by one, so the first probe may be too early
PROBE_PAUSE_S: Final = 0.01
FETCHING: Final = "quorum fetch"  # has its own connection: a fetch waits at the leader, a vote must not
VOTING: Final = "quorum"


class Post(Protocol):
    """Hands an event to the machine, with its records if any."""

    def __call__(self, event: Event, records: memoryview | bytes | None = None) -> None: ...


class QuorumPeers:
    """Carries out the sends of the raft machine."""

    def __init__(
        self,
        membership: Membership,
        peers: Peers,
        snapshots: SnapshotStore,
        post: Post,
        failed: Callable[[BaseException], None],
    ) -> None:
        me = membership.me
        self._messages = QuorumMessages(me, membership.cluster_id, membership.member)
        self._mine = [address for _, address in me.endpoints]
        self._peers = peers
        self._bootstrap_servers = [each for each in membership.bootstrap_servers if each not in self._mine]
        self._timeout_ms = membership.settings.request_timeout_ms
        self._next_server = 0
        self._snapshots = snapshots
        self._post = post
        self._failed = failed
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._resignations: dict[asyncio.Task[None], None] = {}
        self._fetching: asyncio.Task[None] | None = None
        self._suspects: dict[NodeId, None] = {}
        self._foreign_addresses: dict[Address, None] = {}
        self.incoming: IncomingSnapshot | None = None

    def send(self, send: Send) -> None:
        task = self._start_task(self._send(send))
        if isinstance(send, SendFetch | SendFetchSnapshot):
            if self._fetching is not None:
                self._fetching.cancel()  # its response is obsolete
            self._fetching = task
        elif isinstance(send, SendEndQuorum):
            self._resignations[task] = None
            task.add_done_callback(lambda done: self._resignations.pop(done, None))

    async def wait_for_resignation(self) -> None:
        """Wait until every EndQuorumEpoch has a response or has failed."""
        if self._resignations:
            await asyncio.wait(list(self._resignations))

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.drop_incoming()

    def take_incoming(self, snapshot: SnapshotId) -> IncomingSnapshot:
        """The received snapshot; raises `CorruptSnapshot` if it is incomplete."""
        incoming, self.incoming = self.incoming, None
        if incoming is None or incoming.snapshot != snapshot or not incoming.is_whole:
            if incoming is not None:
                incoming.drop()
            raise CorruptSnapshot(f"{snapshot.name} is incomplete")
        return incoming

    def drop_incoming(self) -> None:
        if self.incoming is not None:
            self.incoming.drop()
            self.incoming = None

    def _start_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    # Requests

    async def _send(self, send: Send) -> None:
        address = self._address(send)
        if address is None:
            self._post(RequestFailed(send))
            return
        purpose = FETCHING if isinstance(send, SendFetch | SendFetchSnapshot) else VOTING
        try:
            response = await self._peers.ask(
                address, self._messages.request(send), timeout_ms=self._timeout_ms, purpose=purpose
            )
        except (OSError, KafkaError) as error:
            log.debug("%s to %s failed: %s", type(send).__name__, address, error)
            self._start_probe(send, address)
            self._post(RequestFailed(send))
            return
        self._receive(send, response_event(send, response), response, address)

    def _receive(self, send: Send, event: Event, response: Any, address: Address) -> None:
        if isinstance(event, FetchResponseReceived):
            records = response.responses[0].partitions[0].records if event.has_records else None
            self._log_foreign_cluster(event.error, address)
            self._post(event, records)
        elif isinstance(event, FetchSnapshotResponseReceived) and event.error is ErrorCode.NONE:
            assert isinstance(send, SendFetchSnapshot)
            self._post(self._keep_piece(send, event, response))
        else:
            self._log_foreign_cluster(getattr(event, "error", ErrorCode.NONE), address)
            self._post(event)

    def _log_foreign_cluster(self, error: ErrorCode, address: Address) -> None:
        if error is ErrorCode.INCONSISTENT_CLUSTER_ID and address not in self._foreign_addresses:
            self._foreign_addresses[address] = None
            log.error("%s belongs to another cluster; check cluster ids and controller addresses", address)

    def _keep_piece(self, send: SendFetchSnapshot, event: FetchSnapshotResponseReceived, response: Any) -> Event:
        snapshot = SnapshotId(*send.snapshot)
        found = response.topics[0].partitions[0]
        try:
            if send.position == 0:
                self.drop_incoming()
                self.incoming = self._snapshots.receive(snapshot)
            if self.incoming is None or self.incoming.snapshot != snapshot:
                return RequestFailed(send)
            self.incoming.add(found.position, found.size, found.unaligned_records or b"")
        except (CorruptSnapshot, OSError) as error:
            log.debug("Cannot store a piece of the metadata snapshot: %s", error)
            self.drop_incoming()
            return RequestFailed(send)
        return event

    # Addresses

    def _address(self, send: Send) -> Address | None:
        if isinstance(send, SendFetch | SendFetchSnapshot) and send.to == NO_NODE:
            return self._next_bootstrap_server()
        endpoints: Endpoints = send.to.endpoints if isinstance(send.to, Voter) else send.endpoints
        return endpoints[0][1] if endpoints else None

    def _next_bootstrap_server(self) -> Address | None:
        if not self._bootstrap_servers:
            return None
        self._next_server += 1
        return self._bootstrap_servers[self._next_server % len(self._bootstrap_servers)]

    # Crash detection

    def _start_probe(self, send: Send, address: Address) -> None:
        """A leader that does not respond may have crashed: refused connections on its host prove it."""
        if isinstance(send, SendFetch | SendFetchSnapshot) and send.to != NO_NODE and send.to not in self._suspects:
            self._suspects[send.to] = None
            self._start_task(self._probe(send.to, address))

    async def _probe(self, node_id: NodeId, address: Address) -> None:
        try:
            refused_count = 0
            for attempt in range(PROBES_MAX):
                if attempt:
                    await asyncio.sleep(PROBE_PAUSE_S)
                refused_count = refused_count + 1 if await self._peers.is_refused(address) else 0
                if refused_count == REFUSED_PROBES:
                    self._post(PeerStopped(node_id))
                    return
        finally:
            self._suspects.pop(node_id, None)
