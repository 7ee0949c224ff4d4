"""Shared by the requests about delegation tokens: their permissions, and the lookup of the token."""

import hmac
from collections.abc import Callable
from typing import Any

from moldau.broker.access import ANONYMOUS
from moldau.broker.authentication.mechanisms import token_hmac
from moldau.broker.handlers.contexts import ClusterHost
from moldau.broker.requests.context import RequestContext
from moldau.broker.requests.router import Handle
from moldau.machines.metadata.delegation_tokens import TokenLimits
from moldau.model.errors import DelegationTokenAuthDisabled, DelegationTokenRequestNotAllowed, KafkaError

TokenContext = RequestContext[ClusterHost]
Rejected = Callable[[Any, TokenContext, KafkaError], Any]


def check_request(context: TokenContext) -> str:
    """Return the key that signs tokens, if the request is allowed and there are tokens.

    As in Kafka, a client that has authenticated by a token must not make or extend tokens, and an anonymous one cannot.
    """
    connection = context.connection
    if context.principal == ANONYMOUS or (connection is not None and connection.is_token_authenticated):
        raise DelegationTokenRequestNotAllowed(
            "Delegation tokens are not managed over connections without authentication, or authenticated by a token."
        )
    secret = context.broker.settings.delegation_token_secret_key
    if secret is None:
        raise DelegationTokenAuthDisabled("Delegation tokens are disabled: delegation.token.secret.key is not set.")
    return secret


def checked(handle: Handle, rejected: Rejected | None = None) -> Handle:
    """Check the request where the client is connected, before it is forwarded."""

    async def checked_handle(request: Any, context: TokenContext) -> Any:
        try:
            check_request(context)
        except KafkaError as error:
            if rejected is None:
                raise
            return rejected(request, context, error)
        return await handle(request, context)

    return checked_handle


def find_token(context: TokenContext, secret: str, wanted: bytes) -> str | None:
    """Return the id of the token with this HMAC."""
    for token_id in context.broker.image.delegation_tokens:
        if hmac.compare_digest(token_hmac(secret, token_id), wanted):
            return token_id
    return None


def limits(context: TokenContext) -> TokenLimits:
    settings = context.broker.settings
    return TokenLimits(settings.delegation_token_max_lifetime_ms, settings.delegation_token_expiry_time_ms)


def split_principal(principal: str) -> tuple[str, str]:
    """Return type and name."""
    kind, _, name = principal.partition(":")
    return kind, name
