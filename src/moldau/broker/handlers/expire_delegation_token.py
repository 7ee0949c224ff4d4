"""ExpireDelegationToken: let a token expire earlier, or at once."""

from moldau.broker.handlers.token_requests import TokenContext, check_request, find_token
from moldau.wire.messages import ExpireDelegationTokenRequest, ExpireDelegationTokenResponse


async def handle(request: ExpireDelegationTokenRequest, context: TokenContext) -> ExpireDelegationTokenResponse:
    """Let the token with this HMAC expire after a period; a negative period removes it."""
    secret, period_ms = check_request(context), request.expiry_time_period_ms
    token_id = find_token(context, secret, bytes(request.hmac))
    expires_at_ms = await context.broker.metadata.write(
        lambda machine: machine.decide_expire_token(token_id, context.principal, period_ms, context.now_ms)
    )
    return ExpireDelegationTokenResponse(expiry_timestamp_ms=expires_at_ms)
