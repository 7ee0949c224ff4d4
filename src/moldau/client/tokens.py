"""Delegation tokens of any Kafka cluster (KIP-48): create, describe, renew and expire them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from moldau.client.async_client import AsyncClient
from moldau.client.errors import NO_ACTIVE_CONTROLLER, Checked, check
from moldau.model.errors import DelegationTokenNotFound
from moldau.wire.messages import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
    Request,
)

if TYPE_CHECKING:
    from moldau.wire.messages import DescribeDelegationTokenResponse

USER: Final = "User"


@dataclass(frozen=True, slots=True)
class DelegationToken:
    """A token. Times are wall times; `hmac` is its secret."""

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_at_ms: int
    expires_at_ms: int
    expires_at_most_ms: int
    hmac: bytes = field(repr=False)


class Tokens:
    """The delegation tokens of a cluster."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def create(self, owner: str | None, renewers: Iterable[str], lifetime_ms: int) -> DelegationToken:
        """Create a token of the client's user, or of `owner`. A negative lifetime is the longest allowed."""
        by = tuple(_user_name(each) for each in renewers)
        kind = CreateDelegationTokenRequest.CreatableRenewers
        request = CreateDelegationTokenRequest(
            owner_principal_type=None if owner is None else USER,
            owner_principal_name=None if owner is None else _user_name(owner),
            renewers=[kind(principal_type=USER, principal_name=each) for each in by],
            max_lifetime_ms=lifetime_ms,
        )
        # Before version 3 a token always belongs to the client itself.
        response = await self._send(request, version_at_least=0 if owner is None else 3, is_idempotent=False)
        own = f"{response.principal_type}:{response.principal_name}"
        requester = f"{response.token_requester_principal_type}:{response.token_requester_principal_name}"
        return DelegationToken(
            token_id=response.token_id,
            owner=own,
            requester=requester if response.token_requester_principal_name else own,
            renewers=tuple(f"{USER}:{each}" for each in by),
            issued_at_ms=response.issue_timestamp_ms,
            expires_at_ms=response.expiry_timestamp_ms,
            expires_at_most_ms=response.max_timestamp_ms,
            hmac=bytes(response.hmac),
        )

    async def describe(self, owners: Sequence[str] | None = None) -> list[DelegationToken]:
        """Return the tokens that the client may see, of some owners or of all; the oldest first."""
        kind = DescribeDelegationTokenRequest.DescribeDelegationTokenOwner
        wanted = None
        if owners:
            wanted = [kind(principal_type=USER, principal_name=_user_name(each)) for each in owners]
        response = await self._send(DescribeDelegationTokenRequest(owners=wanted))
        return sorted(map(_described, response.tokens), key=lambda each: (each.issued_at_ms, each.token_id))

    async def find(self, token_id: str) -> DelegationToken:
        """Return a token by its id; `DelegationTokenNotFound` if the client may not see it."""
        for each in await self.describe():
            if each.token_id == token_id:
                return each
        raise DelegationTokenNotFound(f"There is no delegation token {token_id} that the client may see.")

    async def renew(self, token: DelegationToken, period_ms: int) -> int:
        """Let the token expire later; return when. A negative period is that of the brokers."""
        response = await self._send(RenewDelegationTokenRequest(hmac=token.hmac, renew_period_ms=period_ms))
        return int(response.expiry_timestamp_ms)

    async def expire(self, token: DelegationToken, period_ms: int) -> int:
        """Let the token expire after a period; a negative one deletes it. Return when it expires."""
        response = await self._send(ExpireDelegationTokenRequest(hmac=token.hmac, expiry_time_period_ms=period_ms))
        return int(response.expiry_timestamp_ms)

    async def _send(
        self, request: Request[Checked], *, version_at_least: int = 0, is_idempotent: bool = True
    ) -> Checked:
        async def attempt() -> Checked:
            response = await self._client.send(request, version_at_least=version_at_least)
            check(response.error_code)
            return response

        return await self._client.retry(attempt, is_idempotent=is_idempotent, final=NO_ACTIVE_CONTROLLER)


def _user_name(text: str) -> str:
    """Accept `alice` and `User:alice`: tokens belong to users."""
    return text.removeprefix(f"{USER}:")


def _described(each: "DescribeDelegationTokenResponse.DescribedDelegationToken") -> DelegationToken:
    owner = f"{each.principal_type}:{each.principal_name}"
    requester = f"{each.token_requester_principal_type}:{each.token_requester_principal_name}"
    return DelegationToken(
        token_id=each.token_id,
        owner=owner,
        requester=requester if each.token_requester_principal_name else owner,
        renewers=tuple(f"{renewer.principal_type}:{renewer.principal_name}" for renewer in each.renewers),
        issued_at_ms=each.issue_timestamp,
        expires_at_ms=each.expiry_timestamp,
        expires_at_most_ms=each.max_timestamp,
        hmac=bytes(each.hmac),
    )
