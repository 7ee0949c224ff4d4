"""Envelope: a broker passes on what its client asks of the active controller. The answer travels back whole."""

from collections.abc import Mapping
from typing import Any

from moldau.broker.access import CLUSTER, Operation
from moldau.broker.requests.context import RequestContext
from moldau.broker.requests.router import Api
from moldau.model.errors import ErrorCode, InvalidRequest, KafkaError, NotController
from moldau.wire.codec import Malformed
from moldau.wire.framing import RequestHeader, frame_response, in_one_buffer, parse_request_header
from moldau.wire.messages import EnvelopeRequest, EnvelopeResponse


class _UnknownPrincipal(KafkaError):
    """Who asks cannot be read."""

    code = ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE


async def handle(request: EnvelopeRequest, context: RequestContext, apis: Mapping[int, Api]) -> EnvelopeResponse:
    """Decided as if the client had come here itself, with its own name and rights."""
    context.authorize(Operation.CLUSTER_ACTION, CLUSTER)
    api, header, asked = _open(request, apis)
    inner = _client(request, header, context)
    if not context.broker.controller.is_here:
        raise NotController("The active controller is another node.")
    assert api.decide is not None
    try:
        answer = await api.decide(asked, inner)
    except NotController:  # not any more: whoever passed it on finds the next one
        raise
    except KafkaError as error:
        answer = api.refuse(asked, error, header.api_version)
    pieces = frame_response(api.key, header.api_version, header.correlation_id, answer)
    return EnvelopeResponse(response_data=in_one_buffer(pieces))


def _open(request: EnvelopeRequest, apis: Mapping[int, Api]) -> tuple[Api, RequestHeader, Any]:
    """What is inside. The bytes are lent, so it is read before anything is awaited."""
    frame = memoryview(request.request_data)
    try:
        header, position = parse_request_header(frame)
        api = apis.get(header.api_key)
        if api is None or not api.is_forwarded or not api.oldest <= header.api_version <= api.newest:
            raise InvalidRequest(f"API {header.api_key} in version {header.api_version} is not passed on.")
        asked, _ = api.decoder(header.api_version)(frame, position)
    except Malformed as error:
        raise InvalidRequest(f"The request inside cannot be read: {error}") from None
    return api, header, asked


def _client(request: EnvelopeRequest, header: RequestHeader, context: RequestContext) -> RequestContext:
    try:
        principal = bytes(request.request_principal or b"").decode()
        peer = bytes(request.client_host_address).decode()
    except UnicodeDecodeError:
        raise _UnknownPrincipal("Who asks cannot be read.") from None
    return RequestContext(context.broker, context.listener, peer, principal, header, context.started_ms)
