"""CreateDelegationToken: a token by which others may authenticate as its owner (KIP-48)."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from moldau.broker.access import Operation, Resource, ResourceKind
from moldau.broker.authentication.mechanisms import token_hmac
from moldau.broker.handlers.token_requests import TokenContext, check_request, limits, split_principal
from moldau.machines.metadata.delegation_tokens import NewToken
from moldau.model.errors import DelegationTokenAuthorizationFailed, KafkaError
from moldau.model.ids import NO_TIMESTAMP
from moldau.storage.log_dir import encode_id
from moldau.wire.messages import CreateDelegationTokenRequest, CreateDelegationTokenResponse


async def handle(request: CreateDelegationTokenRequest, context: TokenContext) -> CreateDelegationTokenResponse:
    """Create a token for the client itself, or for an owner for whom it may create tokens."""
    secret = check_request(context)
    broker, requester, owner = context.broker, context.principal, _owner(request, context)
    if owner != requester and not context.is_allowed(Operation.CREATE_TOKENS, Resource(ResourceKind.USER, owner)):
        error = DelegationTokenAuthorizationFailed(f"Not authorized to create delegation tokens for {owner}.")
        return rejected(request, context, error)
    wanted = NewToken(
        token_id=_new_id(broker.random.randbytes),
        owner=owner,
        requester=requester,
        renewers=tuple(f"{each.principal_type}:{each.principal_name}" for each in request.renewers),
        lifetime_ms=request.max_lifetime_ms,
    )
    token = await broker.metadata.write(
        lambda machine: machine.decide_create_token(wanted, limits(context), context.now_ms)
    )
    return _response(
        owner,
        requester,
        issue_timestamp_ms=token.issued_at_ms,
        expiry_timestamp_ms=token.expires_at_ms,
        max_timestamp_ms=token.expires_at_most_ms,
        token_id=token.token_id,
        hmac=token_hmac(secret, token.token_id),
    )


def rejected(
    request: CreateDelegationTokenRequest, context: TokenContext, error: KafkaError
) -> CreateDelegationTokenResponse:
    """There is no token: name owner and requester beside the error, as Kafka does."""
    return _response(
        _owner(request, context),
        context.principal,
        error_code=int(error.code),
        issue_timestamp_ms=NO_TIMESTAMP,
        expiry_timestamp_ms=NO_TIMESTAMP,
        max_timestamp_ms=NO_TIMESTAMP,
    )


def _owner(request: CreateDelegationTokenRequest, context: TokenContext) -> str:
    if request.owner_principal_name:
        return f"{request.owner_principal_type}:{request.owner_principal_name}"
    return context.principal


def _response(owner: str, requester: str, **fields: Any) -> CreateDelegationTokenResponse:
    (kind, name), (requester_kind, requester_name) = split_principal(owner), split_principal(requester)
    return CreateDelegationTokenResponse(
        principal_type=kind,
        principal_name=name,
        token_requester_principal_type=requester_kind,
        token_requester_principal_name=requester_name,
        **fields,
    )


def _new_id(randbytes: Callable[[int], bytes]) -> str:
    """A random id without a leading dash, as in Kafka: a command would take it for an option."""
    while (token_id := encode_id(UUID(bytes=randbytes(16), version=4).bytes)).startswith("-"):
        pass
    return token_id
