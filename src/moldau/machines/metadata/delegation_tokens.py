"""Delegation tokens (KIP-48): their records, and the decisions that create, renew and expire them.

A token authenticates its owner until it expires. Its owner and its renewers may renew it, up to its maximum lifetime.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from moldau.machines.access.exchange import USER
from moldau.machines.decision import Decision, respond
from moldau.machines.metadata.image import DelegationToken, MetadataImage
from moldau.machines.metadata.records import Record
from moldau.machines.metadata.settings import RECORDS_PER_DECISION_MAX
from moldau.model.errors import (
    DelegationTokenExpired,
    DelegationTokenNotFound,
    DelegationTokenOwnerMismatch,
    InvalidPrincipalType,
)
from moldau.wire import messages


@dataclass(frozen=True, slots=True)
class TokenLimits:
    """Lifetimes by the settings of the controller."""

    lifetime_ms_max: int
    renewal_ms: int


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token that a client wants. Principals are `User:name`; a lifetime of 0 or less takes the longest."""

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...] = ()
    lifetime_ms: int = -1


def decide_create_token(wanted: NewToken, limits: TokenLimits, now_ms: int) -> Decision[Record, DelegationToken]:
    """Create the token; times are wall times."""
    if any(not each.startswith(f"{USER}:") for each in (wanted.owner, *wanted.renewers)):
        raise InvalidPrincipalType("Owner and renewers of a delegation token must be principals of type User.")
    lifetime_ms = limits.lifetime_ms_max
    if wanted.lifetime_ms > 0:
        lifetime_ms = min(lifetime_ms, wanted.lifetime_ms)
    token = DelegationToken(
        token_id=wanted.token_id,
        owner=wanted.owner,
        requester=wanted.requester,
        renewers=wanted.renewers,
        issued_at_ms=now_ms,
        expires_at_ms=min(now_ms + lifetime_ms, now_ms + limits.renewal_ms),
        expires_at_most_ms=now_ms + lifetime_ms,
    )
    return respond(token, [record_of_token(token)])


def decide_renew_token(
    image: MetadataImage, token_id: str | None, principal: str, period_ms: int, limits: TokenLimits, now_ms: int
) -> Decision[Record, int]:
    """Extend the token; the response is its new expiry time."""
    token = _usable(image, token_id, principal, now_ms)
    renewal_ms = min(limits.renewal_ms, period_ms) if period_ms > 0 else limits.renewal_ms
    expires_at_ms = min(token.expires_at_most_ms, now_ms + renewal_ms)
    return respond(expires_at_ms, [record_of_token(replace(token, expires_at_ms=expires_at_ms))])


def decide_expire_token(
    image: MetadataImage, token_id: str | None, principal: str, period_ms: int, now_ms: int
) -> Decision[Record, int]:
    """Let the token expire after a period, or remove it at once if the period is negative."""
    token = _usable(image, token_id, principal, now_ms)
    if period_ms < 0:
        return respond(period_ms, [messages.RemoveDelegationTokenRecord(token_id=token.token_id)])
    expires_at_ms = min(token.expires_at_most_ms, now_ms + period_ms)
    return respond(expires_at_ms, [record_of_token(replace(token, expires_at_ms=expires_at_ms))])


def decide_remove_expired_tokens(image: MetadataImage, now_ms: int) -> Decision[Record, None]:
    """Remove tokens that have expired; the rest of very many at the next check."""
    expired = [each.token_id for each in image.delegation_tokens.values() if each.expires_at_ms < now_ms]
    some: Sequence[str] = expired[:RECORDS_PER_DECISION_MAX]
    return respond(None, [messages.RemoveDelegationTokenRecord(token_id=each) for each in some])


def _usable(image: MetadataImage, token_id: str | None, principal: str, now_ms: int) -> DelegationToken:
    token = None if token_id is None else image.delegation_tokens.get(token_id)
    if token is None:
        raise DelegationTokenNotFound("There is no delegation token with this HMAC.")
    if token.expires_at_ms < now_ms:
        raise DelegationTokenExpired("The delegation token has expired.")
    if principal not in (token.owner, *token.renewers):
        raise DelegationTokenOwnerMismatch("Only its owner and its renewers may change a delegation token.")
    return token


def record_of_token(token: DelegationToken) -> messages.DelegationTokenRecord:
    return messages.DelegationTokenRecord(
        owner=token.owner,
        requester=token.requester,
        renewers=list(token.renewers),
        issue_timestamp=token.issued_at_ms,
        max_timestamp=token.expires_at_most_ms,
        expiration_timestamp=token.expires_at_ms,
        token_id=token.token_id,
    )


def token_of_record(record: messages.DelegationTokenRecord) -> DelegationToken:
    return DelegationToken(
        token_id=record.token_id,
        owner=record.owner,
        requester=record.requester,
        renewers=tuple(record.renewers),
        issued_at_ms=record.issue_timestamp,
        expires_at_ms=record.expiration_timestamp,
        expires_at_most_ms=record.max_timestamp,
    )
