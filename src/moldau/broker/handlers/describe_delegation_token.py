"""DescribeDelegationToken: the tokens that the client owns, may renew, or may describe."""

from moldau.broker.access import Operation, Resource, ResourceKind
from moldau.broker.authentication.mechanisms import token_hmac
from moldau.broker.handlers.token_requests import TokenContext, check_request, split_principal
from moldau.machines.metadata.image import DelegationToken
from moldau.wire.messages import DescribeDelegationTokenRequest, DescribeDelegationTokenResponse

Described = DescribeDelegationTokenResponse.DescribedDelegationToken
Renewer = DescribeDelegationTokenResponse.DescribedDelegationTokenRenewer


async def handle(request: DescribeDelegationTokenRequest, context: TokenContext) -> DescribeDelegationTokenResponse:
    """Describe tokens of the given owners, or of all."""
    secret = check_request(context)
    owners = None
    if request.owners is not None:
        owners = {f"{each.principal_type}:{each.principal_name}" for each in request.owners}
    tokens = context.broker.image.delegation_tokens.values()
    return DescribeDelegationTokenResponse(
        tokens=[
            _described(each, token_hmac(secret, each.token_id))
            for each in tokens
            if (owners is None or each.owner in owners) and _is_visible(each, context)
        ]
    )


def _is_visible(token: DelegationToken, context: TokenContext) -> bool:
    if context.principal in (token.owner, token.requester, *token.renewers):
        return True
    by_token = Resource(ResourceKind.DELEGATION_TOKEN, token.token_id)
    by_owner = Resource(ResourceKind.USER, token.owner)
    return context.is_allowed(Operation.DESCRIBE, by_token, is_audited=False) or context.is_allowed(
        Operation.DESCRIBE_TOKENS, by_owner, is_audited=False
    )


def _described(token: DelegationToken, token_hmac: bytes) -> Described:
    (kind, name), (requester_kind, requester_name) = split_principal(token.owner), split_principal(token.requester)
    renewers = [split_principal(each) for each in token.renewers]
    return Described(
        principal_type=kind,
        principal_name=name,
        token_requester_principal_type=requester_kind,
        token_requester_principal_name=requester_name,
        issue_timestamp=token.issued_at_ms,
        expiry_timestamp=token.expires_at_ms,
        max_timestamp=token.expires_at_most_ms,
        token_id=token.token_id,
        hmac=token_hmac,
        renewers=[Renewer(principal_type=kind, principal_name=name) for kind, name in renewers],
    )
