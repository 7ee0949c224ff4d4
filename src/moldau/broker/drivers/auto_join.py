"""Auto-join (KIP-1186): an observer controller requests to become a voter, if the settings allow it."""

import asyncio
import logging
from typing import Any, Final

from moldau.broker.cluster.peers import Peers
from moldau.broker.drivers.membership import Membership
from moldau.machines.raft import RaftMachine, RoleName
from moldau.model.errors import ErrorCode, KafkaError
from moldau.model.ids import Address
from moldau.wire.messages import AddRaftVoterRequest, RemoveRaftVoterRequest

log = logging.getLogger(__name__)

JOIN_TIMEOUT_MS: Final = 30_000
JOIN_PURPOSE: Final = "quorum joining"  # its own connection: the response comes only once the new voter has caught up


class AutoJoin:
    """Checks periodically whether this controller should join, and sends the request to the leader."""

    def __init__(self, membership: Membership, machine: RaftMachine, peers: Peers) -> None:
        self._membership = membership
        self._machine = machine
        self._peers = peers
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._membership.member.quorum_auto_join_enable and self._membership.me.endpoints:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._membership.settings.fetch_timeout_ms / 1000)
            endpoints = self._machine.leadership.endpoints
            if endpoints and (request := self._request()) is not None:
                await self._send(endpoints[0][1], request)

    def _request(self) -> AddRaftVoterRequest | RemoveRaftVoterRequest | None:
        """If this node is a voter with an older directory id, remove that voter first."""
        voters, me = self._machine.voters, self._membership.me
        has_directory_ids = any(each.directory_id != bytes(len(each.directory_id)) for each in voters)
        if self._machine.role is not RoleName.OBSERVER or not has_directory_ids:
            return None
        known = voters.get(me.node_id)
        if known is not None:
            return RemoveRaftVoterRequest(
                cluster_id=self._membership.cluster_id,
                voter_id=known.node_id,
                voter_directory_id=known.directory_id,
            )
        return AddRaftVoterRequest(
            cluster_id=self._membership.cluster_id,
            timeout_ms=JOIN_TIMEOUT_MS,
            voter_id=me.node_id,
            voter_directory_id=me.directory_id,
            listeners=[
                AddRaftVoterRequest.Listener(name=name, host=address.host, port=address.port)
                for name, address in me.endpoints
            ],
            ack_when_committed=False,  # it must fetch while the change is pending, to count for it
        )

    async def _send(self, address: Address, request: Any) -> None:
        try:
            response = await self._peers.ask(address, request, timeout_ms=JOIN_TIMEOUT_MS, purpose=JOIN_PURPOSE)
        except (OSError, KafkaError) as error:
            log.debug("AddRaftVoter could not be sent: %s", error)
            return
        if response.error_code != ErrorCode.NONE:
            log.info("AddRaftVoter rejected: %s", response.error_message)
