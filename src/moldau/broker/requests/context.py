"""What a handler knows about the request it answers."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from moldau.broker.access import ANONYMOUS, Operation, Resource, ResourceKind, refusal
from moldau.model.ports import Clock
from moldau.wire.framing import RequestHeader

if TYPE_CHECKING:
    from moldau.broker.broker import Broker
    from moldau.broker.requests.leader_hints import LeaderHints


class CloseConnection(Exception):
    """Raised by a handler that cannot answer: the connection is closed and the reason logged."""


class ClientConnection(Protocol):
    """What a handler sees of the connection that a request came over."""

    has_asked_for_metadata: bool
    when_lost: Callable[[], None] | None


class RequestContext:
    """Who asks, where, in which version; and the broker that is asked."""

    __slots__ = (
        "api_version",
        "broker",
        "client_id",
        "connection",
        "correlation_id",
        "leader_hints",
        "listener",
        "peer",
        "principal",
        "started_ms",
        "throttle_ms",
        "weight",
    )

    def __init__(
        self,
        broker: "Broker",
        listener: str,
        peer: str,
        principal: str,
        header: RequestHeader,
        started_ms: float,
        connection: "ClientConnection | None" = None,
    ) -> None:
        self.broker = broker
        self.listener = listener
        self.peer = peer
        self.principal = principal
        _, self.api_version, self.correlation_id, self.client_id = header
        self.started_ms = started_ms  # monotonic
        self.connection = connection  # None for what another node passed on, and for what this one asks itself
        self.throttle_ms = 0  # a handler sets it; the connection is then muted for so long after the answer
        self.leader_hints: LeaderHints | None = None  # for a client that asked the wrong broker
        self.weight = 1  # what it takes, while it waits, of its connection's share; up to `turns.ALONE`

    def is_asked_again_on_connection(self) -> bool:
        """Whether its connection has asked for metadata before; from now on it has."""
        connection = self.connection
        if connection is None:
            return False
        was, connection.has_asked_for_metadata = connection.has_asked_for_metadata, True
        return was

    @property
    def clock(self) -> Clock:
        return self.broker.clock

    @property
    def now_ms(self) -> int:
        return self.broker.clock.wall_ms()

    @property
    def is_from_controllers(self) -> bool:
        """Whether it came through a listener of the controllers."""
        return self.listener in self.broker.controller_listeners

    @property
    def client_host(self) -> str:
        """Where the client is, as Kafka writes it into group members: its tools show it so."""
        return f"/{self.peer}"

    def note_refusal(self, what: str, where: str, words: str | None) -> None:
        """A line in the log, at a bounded rate: who was refused what, where and why."""
        complaints = self.broker.complaints
        if complaints.admits(what):
            who = f"{self.peer} ({self.client_id})"
            complaints.write(what, f"Refused {what} of {who} for {where}: {words}", logging.INFO)

    def is_allowed(self, operation: Operation, resource: Resource) -> bool:
        return self.broker.authorizer.is_allowed(self.principal, operation, resource)

    def may(self, operation: Operation, topic: str) -> bool:
        """Whether this is allowed on a topic: the question of the produce and fetch paths."""
        return self.broker.allows_all or self.is_allowed(operation, Resource(ResourceKind.TOPIC, topic))

    def authorize(self, operation: Operation, resource: Resource) -> None:
        """Raises the refusal that belongs to the resource."""
        if not self.is_allowed(operation, resource):
            raise refusal(resource)

    def authorize_group(self, operation: Operation, group_id: str) -> None:
        """Raises if this is not allowed on a group."""
        if not self.broker.allows_all:
            self.authorize(operation, Resource(ResourceKind.GROUP, group_id))

    def operations(self, resource: Resource, among: tuple[Operation, ...]) -> int:
        """The allowed ones as the bit set that Metadata and DescribeCluster answer."""
        bits = 0
        for operation in among:
            if self.is_allowed(operation, resource):
                bits |= 1 << operation.value
        return bits


class OwnContext(RequestContext):
    """A node asks itself: it may do everything, and there is no connection."""

    __slots__ = ()

    def __init__(self, broker: "Broker", header: RequestHeader) -> None:
        listener = next(iter(broker.controller_listeners), "")
        super().__init__(broker, listener, "this node", ANONYMOUS, header, broker.clock.monotonic_ms())

    def is_allowed(self, operation: Operation, resource: Resource) -> bool:  # noqa: ARG002 - the common shape
        return True

    def may(self, operation: Operation, topic: str) -> bool:  # noqa: ARG002 - the common shape
        return True

    def authorize_group(self, operation: Operation, group_id: str) -> None:
        """Nothing is refused."""
