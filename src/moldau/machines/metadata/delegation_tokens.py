"""Delegation tokens: their records."""

from moldau.machines.metadata.image import DelegationToken
from moldau.wire import messages


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
