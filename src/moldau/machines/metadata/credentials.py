"""SCRAM credentials of users: their records, and the decisions that change them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from moldau.machines.access.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    ScramCredential,
    ScramMechanism,
    ScramUser,
    credential_of,
)
from moldau.machines.decision import Decision, respond
from moldau.machines.metadata.image import MetadataImage
from moldau.machines.metadata.records import Record
from moldau.model.errors import (
    DuplicateResource,
    ErrorCode,
    KafkaError,
    ResourceNotFound,
    UnacceptableCredential,
    UnsupportedSaslMechanism,
)
from moldau.wire import messages


@dataclass(frozen=True, slots=True)
class NewCredential:
    """A credential that a client wants stored: it derived the salted password itself."""

    user: ScramUser
    iterations: int
    salt: bytes = field(repr=False)
    salted_password: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class CredentialAltered:
    """The outcome for one user."""

    name: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


def decide_alter_credentials(
    image: MetadataImage, deletions: Sequence[ScramUser], upsertions: Sequence[NewCredential]
) -> Decision[Record, list[CredentialAltered]]:
    """Alter the credentials; each user has an error of its own, and may appear once."""
    records: dict[str, Record] = {}
    errors: dict[str, KafkaError] = {}
    changes = [(each, None) for each in deletions] + [(each.user, each) for each in upsertions]
    for user, wanted in changes:
        if user.name in errors:
            continue
        try:
            if records.pop(user.name, None) is not None:
                raise DuplicateResource("A request may alter each user once.")
            records[user.name] = _removal(image.scram_credentials, user) if wanted is None else _record(wanted)
        except KafkaError as error:
            errors[user.name] = error
    outcomes = [CredentialAltered(name) for name in records]
    outcomes += [CredentialAltered(name, error.code, error.message) for name, error in errors.items()]
    return respond(outcomes, list(records.values()))


def _check_user(user: ScramUser) -> ScramMechanism:
    if not user.name:
        raise UnacceptableCredential("The user name must not be empty.")
    if user.mechanism not in ScramMechanism.__members__.values():
        raise UnsupportedSaslMechanism(
            f"Unknown SCRAM mechanism {user.mechanism}: 1 is SCRAM-SHA-256, 2 is SCRAM-SHA-512."
        )
    return ScramMechanism(user.mechanism)


def _removal(present: Mapping[ScramUser, ScramCredential], user: ScramUser) -> Record:
    _check_user(user)
    if user not in present:
        raise ResourceNotFound(f"User {user.name} has no credential for this mechanism.")
    return messages.RemoveUserScramCredentialRecord(name=user.name, mechanism=user.mechanism)


def _record(wanted: NewCredential) -> Record:
    mechanism = _check_user(wanted.user)
    if wanted.iterations < ITERATIONS_MIN:
        raise UnacceptableCredential(f"Too few iterations: {wanted.iterations}, the minimum is {ITERATIONS_MIN}.")
    if wanted.iterations > ITERATIONS_MAX:
        raise UnacceptableCredential(f"Too many iterations: {wanted.iterations}, the maximum is {ITERATIONS_MAX}.")
    if not wanted.salted_password:
        raise UnacceptableCredential("The salted password must not be empty.")
    credential = credential_of(mechanism, wanted.salted_password, wanted.salt, wanted.iterations)
    return record_of_credential(wanted.user, credential)


def record_of_credential(user: ScramUser, credential: ScramCredential) -> messages.UserScramCredentialRecord:
    return messages.UserScramCredentialRecord(
        name=user.name,
        mechanism=user.mechanism,
        salt=credential.salt,
        stored_key=credential.stored_key,
        server_key=credential.server_key,
        iterations=credential.iterations,
    )


def credential_of_record(record: messages.UserScramCredentialRecord) -> ScramCredential:
    return ScramCredential(bytes(record.salt), bytes(record.stored_key), bytes(record.server_key), record.iterations)
