"""The context of a request: its client, listener and version, and the broker that handles it."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from moldau.broker.access import (
    ANONYMOUS,
    CLUSTER,
    CLUSTER_OPERATIONS,
    Authorizer,
    Client,
    Operation,
    Resource,
    ResourceKind,
    authorization_error,
)
from moldau.broker.audit_log import AuditLog
from moldau.broker.runtime.rate_limited_logger import RateLimitedLogger
from moldau.broker.runtime.record_sampler import RecordSampler
from moldau.machines.access.acls import canonical_host
from moldau.model.ports import Clock
from moldau.wire.framing import RequestHeader
from moldau.wire.messages import SaslHandshakeRequest, SaslHandshakeResponse

if TYPE_CHECKING:
    from moldau.broker.requests.fast_path import RequestUsage
    from moldau.broker.requests.leader_hints import LeaderHints


ALLOWED_TOPICS_MAX: Final = 10_000  # per connection


class CloseConnection(Exception):
    """Raised by a handler that cannot respond: the connection is closed and the reason logged."""


class AllowedTopics:
    """Operations on topics that the authorizer has allowed to a connection, until the ACLs change.

    Only what was allowed is kept: a denial is decided, and audited, each time.
    """

    __slots__ = ("generation", "operations")

    def __init__(self) -> None:
        self.generation = 0
        self.operations: set[tuple[Operation, str]] = set()

    def restart(self, generation: int) -> None:
        self.operations.clear()
        self.generation = generation


class ClientConnection(Protocol):
    """The connection of a request, as a handler sees it."""

    allowed_topics: "AllowedTopics"
    client_software: tuple[str, str]
    has_requested_metadata: bool
    record_sampler: RecordSampler | None
    is_token_authenticated: bool
    when_lost: Callable[[], None] | None

    @property
    def peer_port(self) -> int: ...

    def reauthenticate(self, request: SaslHandshakeRequest, version: int) -> SaslHandshakeResponse | None:
        """Begin a re-authentication; None if this connection must not authenticate again now."""
        ...


class ContextHost(Protocol):
    """The parts of the broker that every request needs."""

    @property
    def clock(self) -> Clock: ...

    @property
    def limited_logger(self) -> RateLimitedLogger: ...

    @property
    def authorizer(self) -> Authorizer: ...

    @property
    def allows_all(self) -> bool: ...

    @property
    def audit_log(self) -> AuditLog: ...

    @property
    def controller_listeners(self) -> tuple[str, ...]: ...


HostT_co = TypeVar("HostT_co", bound=ContextHost, covariant=True)


class RequestContext(Generic[HostT_co]):
    """The client, listener and version of a request, and the parts of the broker that its handler may use."""

    __slots__ = (
        "_client",
        "api_key",
        "api_version",
        "broker",
        "client_id",
        "connection",
        "correlation_id",
        "is_by_token",
        "leader_hints",
        "listener",
        "peer",
        "principal",
        "started_ms",
        "throttle_ms",
        "usage",
        "weight",
    )

    def __init__(
        self,
        broker: HostT_co,
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
        self.api_key, self.api_version, self.correlation_id, self.client_id = header
        self._client: Client | None = None
        self.is_by_token = False  # set for a forwarded request of a client that a delegation token authenticated
        self.started_ms = started_ms  # monotonic
        self.connection = connection  # None for requests forwarded by another node or made by this one
        self.usage: RequestUsage | None = None  # of quotas; None without quotas and for forwarded requests
        self.throttle_ms = 0  # set by a handler; the connection is muted for this long after the response
        self.leader_hints: LeaderHints | None = None  # for a client that sent the request to the wrong broker
        self.weight = 1  # its share of the connection's limit while it waits; up to `time_slice.ALONE`

    def is_repeated_on_connection(self) -> bool:
        """Whether the connection has requested metadata before; marks it as having done so."""
        connection = self.connection
        if connection is None:
            return False
        was, connection.has_requested_metadata = connection.has_requested_metadata, True
        return was

    @property
    def clock(self) -> Clock:
        return self.broker.clock

    @property
    def now_ms(self) -> int:
        return self.broker.clock.wall_ms()

    @property
    def is_from_controllers(self) -> bool:
        """Whether the request came through a controller listener."""
        return self.listener in self.broker.controller_listeners

    @property
    def client_host(self) -> str:
        """The client's address in the form that Kafka stores in group members and shows in its tools."""
        return f"/{self.peer}"

    def log_rejection(self, what: str, where: str, reason: str | None) -> None:
        """Log at a limited rate which request of which client was rejected, and why."""
        limited_logger = self.broker.limited_logger
        if limited_logger.allows(what):
            client = f"{self.peer} ({self.client_id})"
            limited_logger.write(what, f"Rejected {what} of {client} for {where}: {reason}", logging.INFO)

    @property
    def is_token_authenticated(self) -> bool:
        """Whether a delegation token authenticated the client: it must not create other tokens."""
        return self.is_by_token if self.connection is None else self.connection.is_token_authenticated

    @property
    def client(self) -> Client:
        """The client, as ACLs see it."""
        client = self._client
        if client is None:
            client = self._client = Client(self.principal, canonical_host(self.peer))
        return client

    def is_allowed(self, operation: Operation, resource: Resource, *, is_audited: bool = True) -> bool:
        """Whether the operation is allowed. `is_audited` is False where the client did not name the resource."""
        broker = self.broker
        if broker.allows_all:
            return True
        is_allowed = broker.authorizer.is_allowed(self.client, operation, resource)
        if is_audited and (not is_allowed or broker.audit_log.records_allowed):
            broker.audit_log.write(self, self.client, operation, resource, is_allowed=is_allowed)
        return is_allowed

    def may(self, operation: Operation, topic: str, *, is_audited: bool = True) -> bool:
        """Whether the operation is allowed on a topic; the produce and fetch paths use this check."""
        broker = self.broker
        if broker.allows_all:
            return True
        connection = self.connection
        if connection is None or broker.audit_log.records_allowed:
            return self.is_allowed(operation, Resource(ResourceKind.TOPIC, topic), is_audited=is_audited)
        known = connection.allowed_topics
        if known.generation != broker.authorizer.generation or len(known.operations) >= ALLOWED_TOPICS_MAX:
            known.restart(broker.authorizer.generation)
        if (operation, topic) in known.operations:
            return True
        is_allowed = self.is_allowed(operation, Resource(ResourceKind.TOPIC, topic), is_audited=is_audited)
        if is_allowed:
            known.operations.add((operation, topic))
        return is_allowed

    def may_some(self, operation: Operation, kind: ResourceKind) -> bool:
        """Whether the operation is allowed on some resource of a kind."""
        return self.broker.allows_all or self.broker.authorizer.allows_any(self.client, operation, kind)

    def authorize(self, operation: Operation, resource: Resource) -> None:
        """Raise the authorization error of the resource unless the operation is allowed."""
        if not self.is_allowed(operation, resource):
            raise authorization_error(resource)

    def authorize_group(self, operation: Operation, group_id: str) -> None:
        """Raise unless the operation is allowed on the group."""
        if not self.broker.allows_all:
            self.authorize(operation, Resource(ResourceKind.GROUP, group_id))

    def cluster_operations(self) -> int:
        """The allowed operations on the cluster; none for a client that may not describe it."""
        if not self.is_allowed(Operation.DESCRIBE, CLUSTER, is_audited=False):
            return 0
        return self.operations(CLUSTER, CLUSTER_OPERATIONS)

    def operations(self, resource: Resource, among: tuple[Operation, ...]) -> int:
        """The allowed operations as the bit set of Metadata and DescribeCluster responses."""
        bits = 0
        for operation in among:
            if self.is_allowed(operation, resource, is_audited=False):
                bits |= 1 << operation.value
        return bits


class OwnContext(RequestContext[HostT_co]):
    """A request that a node makes to itself: everything is allowed, and there is no connection."""

    __slots__ = ()

    def __init__(self, broker: HostT_co, header: RequestHeader) -> None:
        listener = next(iter(broker.controller_listeners), "")
        super().__init__(broker, listener, "this node", ANONYMOUS, header, broker.clock.monotonic_ms())

    def is_allowed(
        self,
        operation: Operation,  # noqa: ARG002 - the common shape
        resource: Resource,  # noqa: ARG002
        *,
        is_audited: bool = True,  # noqa: ARG002
    ) -> bool:
        return True

    def may(self, operation: Operation, topic: str, *, is_audited: bool = True) -> bool:  # noqa: ARG002
        return True

    def may_some(self, operation: Operation, kind: ResourceKind) -> bool:  # noqa: ARG002 - the common shape
        return True

    def authorize_group(self, operation: Operation, group_id: str) -> None:
        """Allow everything."""
