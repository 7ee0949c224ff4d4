"""The channel to the active controller: this node itself, or another one that is discovered."""

import asyncio
from math import inf
from typing import TYPE_CHECKING, Final, Protocol

from moldau.broker.cluster.local_requests import LocalRequests
from moldau.broker.cluster.peers import Peers
from moldau.broker.controllers.forwarded_client import encode_address, encode_principal
from moldau.broker.runtime.log_dirs import LogDirs
from moldau.client.errors import error_of
from moldau.model.errors import (
    ClusterAuthorizationFailed,
    ErrorCode,
    KafkaError,
    NotController,
    RequestTimedOut,
    UnknownServerFailure,
)
from moldau.model.ids import Address
from moldau.model.units import SECOND_MS
from moldau.wire.codec import response_decoder
from moldau.wire.framing import RequestHeader, frame_request, in_one_buffer, parse_response_header
from moldau.wire.messages import AddRaftVoterRequest, CreateTopicsResponse, EnvelopeRequest, Request, Response

if TYPE_CHECKING:
    from moldau.broker.configs.broker_settings import BrokerSettings
    from moldau.broker.drivers.metadata import MetadataDriver
    from moldau.model.ports import Clock

TIMEOUT_MS: Final = 20 * SECOND_MS  # shorter than most client timeouts, so that clients get the error
RETRY_FIRST_MS: Final = 10.0
RETRY_LONGEST_MS: Final = 200.0
OFFLINE_ATTEMPT_MS: Final = SECOND_MS  # per controller while the log dir is offline
CONTROLLER: Final = "controller"  # the connection for the broker's own requests
FORWARDED: Final = "forwarded"  # the connection for forwarded client requests
NEW_VOTERS: Final = (
    "forwarded, new voters"  # responses wait until the new voter has caught up, so they get a connection of their own
)


class ForwardedRequest(Protocol):
    """The client's request that is forwarded to the active controller under the client's principal."""

    @property
    def api_version(self) -> int: ...

    @property
    def correlation_id(self) -> int: ...

    @property
    def client_id(self) -> str | None: ...

    @property
    def principal(self) -> str: ...

    @property
    def is_token_authenticated(self) -> bool: ...

    @property
    def peer(self) -> str: ...


class ControllerHost(Protocol):
    """The parts of the node that the channel uses."""

    @property
    def clock(self) -> "Clock": ...

    @property
    def settings(self) -> "BrokerSettings": ...

    @property
    def metadata(self) -> "MetadataDriver": ...

    @property
    def local(self) -> LocalRequests: ...

    @property
    def log_dirs(self) -> LogDirs: ...


class ControllerChannel:
    """Sends requests to the active controller, retrying with the next one until there is a response or a timeout."""

    def __init__(self, broker: ControllerHost, peers: Peers) -> None:
        self._broker = broker
        self._peers = peers
        self._attempts = 0  # while the log dir is offline
        self._last_response_ms = -inf  # when a controller last responded

    @property
    def is_here(self) -> bool:
        """Whether this node is the active controller."""
        return self._broker.metadata.is_active

    @property
    def is_in_touch(self) -> bool:
        """Whether a controller has responded within the broker session timeout."""
        silent_ms = self._broker.clock.monotonic_ms() - self._last_response_ms
        return silent_ms < self._broker.settings.broker_session_timeout_ms

    async def ask(
        self, request: Request[Response], *, timeout_ms: float = TIMEOUT_MS, purpose: str = CONTROLLER
    ) -> Response:
        """Return the response, errors included except NOT_CONTROLLER; raises `RequestTimedOut` without one.

        A request may have been applied although its response was lost, and is then sent again.
        """
        clock = self._broker.clock
        deadline_ms = clock.monotonic_ms() + timeout_ms
        wait_ms, why = RETRY_FIRST_MS, self._why_unknown
        while True:
            left_ms = deadline_ms - clock.monotonic_ms()
            try:
                response = await self._send_once(request, left_ms, purpose)
                if response is not None and not _is_from_inactive(response):
                    self._last_response_ms = clock.monotonic_ms()
                    return response
            except (NotController, OSError) as error:
                why = str(error) or why
            if clock.monotonic_ms() + wait_ms >= deadline_ms:
                raise RequestTimedOut(f"The active controller did not respond in time: {why}")
            await asyncio.sleep(wait_ms / 1000)
            wait_ms = min(wait_ms * 2, RETRY_LONGEST_MS)

    @property
    def _why_unknown(self) -> str:
        settings = self._broker.settings
        known = settings.quorum_voters or settings.quorum_bootstrap_servers
        where = f" (check that a majority of {', '.join(known)} is running)" if known else ""
        return f"no active controller is known{where}"

    async def _send_once(self, request: Request[Response], timeout_ms: float, purpose: str) -> Response | None:
        """None if the active controller is unknown."""
        if not self._broker.log_dirs.metadata.is_online and (others := self._broker.metadata.other_controllers):
            return await self._send_to_any(others, request, timeout_ms, purpose)
        if self.is_here:
            response: Response = await self._broker.local.decide(request)
            return response
        address = self._broker.metadata.controller_address
        if address is None:
            return None
        return await self._peers.ask(address, request, timeout_ms=timeout_ms, purpose=purpose)

    async def _send_to_any(
        self, controllers: list[Address], request: Request[Response], timeout_ms: float, purpose: str
    ) -> Response:
        """Without its metadata log this node may not learn of a new controller: try one after the other."""
        known = self._broker.metadata.controller_address
        if known is not None and not self.is_here and self._attempts % 2 == 0:
            address = known
        else:
            address = controllers[self._attempts // 2 % len(controllers)]
        self._attempts += 1
        timeout_ms = min(timeout_ms, OFFLINE_ATTEMPT_MS)
        response = await self._peers.ask(address, request, timeout_ms=timeout_ms, purpose=purpose)
        if not _is_from_inactive(response):
            self._attempts -= 1  # this is the one to ask next
        return response

    async def forward(
        self, request: Request[Response], context: ForwardedRequest, *, version: int | None = None
    ) -> Response:
        """Forward a client's request to the active controller and return the response; raises if there is none.

        `version` is for requests that the client did not send itself.
        """
        version = context.api_version if version is None else version
        header = RequestHeader(request.API_KEY, version, context.correlation_id, context.client_id)
        pieces = frame_request(header, request)  # before the first await: its buffers are borrowed
        envelope = EnvelopeRequest(
            request_data=in_one_buffer(pieces),
            request_principal=encode_principal(
                context.principal, is_token_authenticated=context.is_token_authenticated
            ),
            client_host_address=encode_address(context.peer),
        )
        purpose = NEW_VOTERS if isinstance(request, AddRaftVoterRequest) else FORWARDED
        response = await self.ask(envelope, purpose=purpose)
        if response.error_code != ErrorCode.NONE:
            raise _map_error(response.error_code)
        frame = memoryview(response.response_data or b"")
        _, position = parse_response_header(request.API_KEY, version, frame)
        decoded: Response = response_decoder(request.API_KEY, version)(frame, position)[0]
        return decoded


def _is_from_inactive(response: object) -> bool:
    """Whether the response is that of a controller which is not the active one."""
    if isinstance(response, CreateTopicsResponse):  # has errors of topics only
        return any(each.error_code == ErrorCode.NOT_CONTROLLER for each in response.topics)
    return bool(getattr(response, "error_code", ErrorCode.NONE) == ErrorCode.NOT_CONTROLLER)


def _map_error(code: int) -> KafkaError:
    """The broker's missing authorization is not the client's error."""
    if code == ClusterAuthorizationFailed.code:
        return UnknownServerFailure("The broker is not authorized at the active controller.")
    return error_of(code)
