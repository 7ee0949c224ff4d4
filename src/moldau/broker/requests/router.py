"""From an API's number to the code that answers it. The table itself is in `handlers/table.py`."""

from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Flag
from typing import TYPE_CHECKING, Any, Final, Protocol

from moldau.broker.requests.context import OwnContext, RequestContext
from moldau.broker.runtime.meters import ApiMeter
from moldau.model.errors import ErrorCode, KafkaError, NotController
from moldau.wire.codec import request_decoder
from moldau.wire.framing import RequestHeader

if TYPE_CHECKING:
    from moldau.broker.broker import Broker

THIS_NODE: Final = "this node"  # the client id of a node that asks itself

Handle = Callable[[Any, RequestContext], Coroutine[Any, Any, Any]]


class Refuse(Protocol):
    """Builds the answer that carries an error for the whole request."""

    def __call__(self, request: Any, error: KafkaError, version: int) -> Any: ...


class Recurs(Protocol):
    """How a request that was answered is done again, given the time: whether its answer is the same then."""

    def __call__(self, request: Any, context: RequestContext, response: Any) -> Callable[[float], bool] | None: ...


class ServedOn(Flag):
    """The kinds of listeners: one is for clients and for brokers among themselves, one is the controllers' own."""

    BROKER = 1
    CONTROLLER = 2
    BOTH = BROKER | CONTROLLER


@dataclass(slots=True)
class Api:
    """One API: what is served, what is advertised, and who answers."""

    key: int
    name: str
    oldest: int
    newest: int
    handle: Handle
    refuse: Refuse
    advertised_from: int | None = None  # lower than `oldest` where clients take offence otherwise
    unserved: Callable[[], Any] | None = None  # the answer to a version that is not served, if there is one
    served_on: ServedOn = ServedOn.BROKER
    recurs: Recurs | None = None  # for what is asked again and again in the same words
    needs_task: bool = True  # where its handler waits; see `network.unfinished`
    decide: Handle | None = None  # for what the active controller decides: answers here, whoever leads
    meter: ApiMeter = field(default_factory=ApiMeter)

    @property
    def is_forwarded(self) -> bool:
        """Whether a broker that does not lead the controllers passes the request on to the one that does."""
        return self.decide is not None

    def decoder(self, version: int) -> Callable[[memoryview, int], tuple[Any, int]]:
        return request_decoder(self.key, version)

    @property
    def advertised(self) -> tuple[int, int]:
        return (self.oldest if self.advertised_from is None else self.advertised_from), self.newest


def with_error_code(response: Callable[..., Any]) -> Refuse:
    """For responses that have one error code at their top, and perhaps a message."""

    def refuse(request: Any, error: KafkaError, version: int) -> Any:  # noqa: ARG001 - the common shape
        answer = response(error_code=int(error.code))
        if "error_message" in answer.__slots__ and error.code is not ErrorCode.NONE:
            answer.error_message = error.message
        return answer

    return refuse


def forwarded(decide: Handle) -> Handle:
    """Answers here what comes to the active controller or through a controllers' listener, and passes on the rest."""

    def handle(request: Any, context: RequestContext) -> Coroutine[Any, Any, Any]:
        link = context.broker.controller
        if link.is_here or context.is_from_controllers:
            return decide(request, context)
        return link.forward(request, context)

    return handle


class Router:
    """The APIs of one listener kind, by number."""

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

    def __init__(self, broker: "Broker", routers: Routers) -> None:
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
            return api.refuse(request, error, api.newest)
