"""Maps API keys to handlers. The table itself is in `handlers/table.py`."""

from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Flag
from functools import wraps
from typing import Any, Final, Protocol

from moldau.broker.controllers.controller_channel import ControllerChannel
from moldau.broker.requests.context import CloseConnection, ContextHost, OwnContext, RequestContext
from moldau.broker.requests.fast_path import FastPathFactory
from moldau.broker.runtime.meters import ApiMeter
from moldau.model.errors import ErrorCode, KafkaError, NotController, UnsupportedVersion
from moldau.wire.codec import request_decoder
from moldau.wire.framing import RequestHeader

THIS_NODE: Final = "this node"  # client id of requests that a node handles for itself

Handle = Callable[[Any, RequestContext[Any]], Coroutine[Any, Any, Any]]


class ErrorResponder(Protocol):
    """Builds the response that carries an error for the whole request."""

    def __call__(self, request: Any, error: KafkaError, version: int) -> Any: ...


class ServedOn(Flag):
    """The kinds of listeners: for clients and between brokers, or for controllers."""

    BROKER = 1
    CONTROLLER = 2
    BOTH = BROKER | CONTROLLER


@dataclass(slots=True)
class Api:
    """One API: the served and the advertised versions, and the handler."""

    key: int
    name: str
    oldest: int
    newest: int
    handle: Handle
    error_response: ErrorResponder
    advertised_from: int | None = None  # lower than `oldest` where some client needs it
    unsupported_version_response: Callable[[], Any] | None = (
        None  # response to an unsupported version, if the API has one
    )
    served_on: ServedOn = ServedOn.BROKER
    fast_path: FastPathFactory | None = None  # for requests that repeat an earlier one of their connection
    coalesces_writes: bool = False  # whether batches of several requests in one turn may be written together
    needs_task: bool = True  # whether its handler waits in a task; see `network.taskless_handler`
    decide: Handle | None = None  # for APIs of the active controller: handles the request locally
    feature: str | None = None  # a feature without which the API is neither served nor advertised
    meter: ApiMeter = field(default_factory=ApiMeter)

    @property
    def is_forwarded(self) -> bool:
        """Whether a broker forwards the request to the active controller."""
        return self.decide is not None

    def decoder(self, version: int) -> Callable[[memoryview, int], tuple[Any, int]]:
        return request_decoder(self.key, version)

    @property
    def advertised(self) -> tuple[int, int]:
        return (self.oldest if self.advertised_from is None else self.advertised_from), self.newest


def with_error_code(response: Callable[..., Any]) -> ErrorResponder:
    """Build error responses that have a top-level error code and perhaps a message."""

    def error_response(request: Any, error: KafkaError, version: int) -> Any:  # noqa: ARG001 - the common shape
        result = response(error_code=int(error.code))
        if "error_message" in result.__slots__ and error.code is not ErrorCode.NONE:
            result.error_message = error.message
        return result

    return error_response


class ForwardingHost(ContextHost, Protocol):
    """For requests that the active controller handles."""

    @property
    def controller(self) -> ControllerChannel: ...


ForwardingContext = RequestContext[ForwardingHost]


def forwarded(decide: Handle) -> Handle:
    """Handle the request on the active controller or on a controller listener; otherwise forward it."""

    def handle(request: Any, context: ForwardingContext) -> Coroutine[Any, Any, Any]:
        link = context.broker.controller
        if link.is_here or context.is_from_controllers:
            return decide(request, context)
        return link.forward(request, context)

    return handle


def requires_feature(api: Api, feature: str) -> Api:
    """Serve and advertise the API only while the feature is finalized at level 1 or above."""
    handle = api.handle

    @wraps(handle)
    async def checked(request: Any, context: RequestContext[Any]) -> Any:
        if not context.broker.image.features.get(feature, 0):
            raise UnsupportedVersion(f"{api.name} requires the feature {feature}, which is disabled.")
        return await handle(request, context)

    api.handle, api.feature = checked, feature
    return api


class MetadataReader(ContextHost, Protocol):
    """For requests whose response tells the client which broker to contact."""

    @property
    def is_metadata_stalled(self) -> bool: ...


def requires_current_metadata(api: Api) -> Api:
    """Close the connection while this broker's metadata cannot advance, so that the client asks another broker.

    With a failed log dir, a broker gives up its leaderships but cannot append the metadata records that name the new
    leaders. Clients, and librdkafka in particular, would ask it again and again, and get the old leaders.
    """
    handle = api.handle

    @wraps(handle)
    async def checked(request: Any, context: RequestContext[MetadataReader]) -> Any:
        if context.broker.is_metadata_stalled:
            raise CloseConnection("the metadata of this broker cannot advance, because its log dir is offline")
        return await handle(request, context)

    api.handle = checked
    return api


class Router:
    """The APIs of one kind of listener, by API key."""

    def __init__(self, apis: Iterable[Api], kind: ServedOn = ServedOn.BROKER) -> None:
        self._apis: dict[int, Api] = {api.key: api for api in apis if kind in api.served_on}
        self.api = self._apis.get

    @property
    def apis(self) -> Mapping[int, Api]:
        return self._apis


class Routers:
    """The routers of a node: one for its broker listeners, one for its controller listeners."""

    def __init__(self, apis: Sequence[Api], controller_listeners: Collection[str]) -> None:
        self.broker = Router(apis)
        self.controller = Router(apis, ServedOn.CONTROLLER)
        self._controller_listeners = controller_listeners

    def for_listener(self, listener: str) -> Router:
        return self.controller if listener in self._controller_listeners else self.broker


class LocalHandler:
    """Implements `LocalRequests` with the handlers of this node."""

    def __init__(self, broker: ContextHost, routers: Routers) -> None:
        self._broker = broker
        self._routers = routers

    async def handle(self, request: Any, *, version: int | None = None) -> Any:
        api = self._routers.broker.apis[request.API_KEY]
        header = RequestHeader(api.key, api.newest if version is None else version, 0, THIS_NODE)
        return await api.handle(request, OwnContext(self._broker, header))

    async def decide(self, request: Any) -> Any:
        api = self._routers.controller.apis[request.API_KEY]
        context = OwnContext(self._broker, RequestHeader(api.key, api.newest, 0, THIS_NODE))
        try:
            return await (api.decide or api.handle)(request, context)
        except NotController:
            raise
        except KafkaError as error:
            return api.error_response(request, error, api.newest)
