"""Envelope: a broker forwards a client's request to the active controller and returns the response unchanged."""

from collections.abc import Mapping
from typing import Any

from moldau.broker.access import CLUSTER, Operation
from moldau.broker.controllers.forwarded_client import decode_address, decode_principal
from moldau.broker.requests.context import RequestContext
from moldau.broker.requests.router import Api, ForwardingContext
from moldau.model.errors import InvalidRequest, KafkaError, NotController
from moldau.wire.codec import Malformed
from moldau.wire.framing import RequestHeader, frame_response, in_one_buffer, parse_request_header
from moldau.wire.messages import EnvelopeRequest, EnvelopeResponse


async def handle(request: EnvelopeRequest, context: ForwardingContext, apis: Mapping[int, Api]) -> EnvelopeResponse:
    """Handle the inner request as if the client had sent it here, with the client's principal."""
    context.authorize(Operation.CLUSTER_ACTION, CLUSTER)
    api, header, requested = _open(request, apis)
    if not context.broker.controller.is_here:
        raise NotController("The active controller is another node.")
    inner = _client(request, header, context)
    _, inner.is_by_token = decode_principal(request.request_principal)
    assert api.decide is not None
    try:
        response = await api.decide(requested, inner)
    except NotController:  # no longer active: the forwarding broker finds the next controller
        raise
    except KafkaError as error:
        response = api.error_response(requested, error, header.api_version)
    pieces = frame_response(api.key, header.api_version, header.correlation_id, response)
    return EnvelopeResponse(response_data=in_one_buffer(pieces))


def _open(request: EnvelopeRequest, apis: Mapping[int, Api]) -> tuple[Api, RequestHeader, Any]:
    """Decode the inner request. Its buffer is only borrowed, so decode it before the first await."""
    frame = memoryview(request.request_data)
    try:
        header, position = parse_request_header(frame)
        api = apis.get(header.api_key)
        if api is None or not api.is_forwarded or not api.oldest <= header.api_version <= api.newest:
            raise InvalidRequest(f"API {header.api_key} in version {header.api_version} cannot be forwarded.")
        requested, _ = api.decoder(header.api_version)(frame, position)
    except Malformed as error:
        raise InvalidRequest(f"Cannot decode the forwarded request: {error}") from None
    return api, header, requested


def _client(request: EnvelopeRequest, header: RequestHeader, context: ForwardingContext) -> ForwardingContext:
    """The context in which the client's request is authorized: its own principal and address."""
    principal, _ = decode_principal(request.request_principal)
    peer = decode_address(request.client_host_address, context.peer)
    return RequestContext(context.broker, context.listener, peer, principal, header, context.started_ms)
