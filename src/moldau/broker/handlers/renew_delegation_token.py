"""RenewDelegationToken: extend the life of a token, up to its maximum."""

from moldau.broker.handlers.token_requests import TokenContext, check_request, find_token, limits
from moldau.wire.messages import RenewDelegationTokenRequest, RenewDelegationTokenResponse


async def handle(request: RenewDelegationTokenRequest, context: TokenContext) -> RenewDelegationTokenResponse:
    """Extend the token with this HMAC, for its owner or a renewer."""
    secret, period_ms = check_request(context), request.renew_period_ms
    token_id = find_token(context, secret, bytes(request.hmac))
    expires_at_ms = await context.broker.metadata.write(
        lambda machine: machine.decide_renew_token(
            token_id, context.principal, period_ms, limits(context), context.now_ms
        )
    )
    return RenewDelegationTokenResponse(expiry_timestamp_ms=expires_at_ms)
