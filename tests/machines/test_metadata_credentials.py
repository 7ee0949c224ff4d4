"""SCRAM credentials in the metadata: decisions, records, and the snapshot."""

import pytest
from metadata_scene import Rules, Scene

from moldau.machines.access.scram import ScramMechanism, ScramUser, derive_credential, salted_password
from moldau.machines.metadata.credentials import CredentialAltered, NewCredential
from moldau.machines.metadata.image import DelegationToken
from moldau.machines.metadata.machine import MetadataMachine
from moldau.machines.metadata.settings import MetadataSettings
from moldau.machines.metadata.snapshot import records_of
from moldau.model.errors import ErrorCode
from moldau.wire import messages

SHA_256, SHA_512 = ScramMechanism
ALICE = ScramUser("alice", SHA_256)


def wanted(name: str = "alice", iterations: int = 4096, mechanism: int = SHA_256) -> NewCredential:
    salted = salted_password(ScramMechanism.SCRAM_SHA_256, "pw", b"salt", 4096)
    return NewCredential(ScramUser(name, mechanism), iterations, b"salt", salted)


def alter(scene: Scene, deletions: list[ScramUser], upsertions: list[NewCredential]) -> list[CredentialAltered]:
    return scene.run(scene.machine.decide_alter_credentials(deletions, upsertions))


def test_credential_is_derived_from_the_salted_password_and_stored() -> None:
    scene = Scene()
    assert alter(scene, [], [wanted()]) == [CredentialAltered("alice")]
    assert scene.machine.image.scram_credentials == {ALICE: derive_credential(SHA_256, "pw", b"salt", 4096)}


def test_credential_is_deleted_for_one_mechanism() -> None:
    scene = Scene()
    alter(scene, [], [wanted()])
    alter(scene, [], [wanted(mechanism=SHA_512)])
    assert alter(scene, [ALICE], []) == [CredentialAltered("alice")]
    assert list(scene.machine.image.scram_credentials) == [ScramUser("alice", SHA_512)]


@pytest.mark.parametrize(
    ("credential", "error"),
    [
        (wanted(""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (wanted(iterations=4095), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (wanted(iterations=16_385), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (wanted(mechanism=0), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (wanted(mechanism=3), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (NewCredential(ALICE, 4096, b"s", b""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
    ],
)
def test_unacceptable_credential_is_rejected_alone(credential: NewCredential, error: ErrorCode) -> None:
    scene = Scene()
    outcomes = alter(scene, [], [credential, wanted("bob", 16_384)])
    assert {each.name: each.error for each in outcomes} == {"bob": ErrorCode.NONE, credential.user.name: error}
    assert list(scene.machine.image.scram_credentials) == [ScramUser("bob", SHA_256)]


def test_user_that_appears_twice_is_not_altered() -> None:
    scene = Scene()
    alter(scene, [], [wanted("bob")])
    bob = ScramUser("bob", SHA_256)
    outcomes = alter(scene, [bob], [wanted("bob", 5000), wanted(), wanted(mechanism=SHA_512), wanted()])
    assert {each.name: each.error for each in outcomes} == {
        "alice": ErrorCode.DUPLICATE_RESOURCE,
        "bob": ErrorCode.DUPLICATE_RESOURCE,
    }
    assert scene.machine.image.scram_credentials[bob].iterations == 4096


def test_credential_that_does_not_exist_cannot_be_deleted() -> None:
    (outcome,) = alter(Scene(), [ALICE], [])
    assert outcome.error is ErrorCode.RESOURCE_NOT_FOUND


def test_snapshot_holds_credentials_and_tokens() -> None:
    scene = Scene()
    alter(scene, [], [wanted(), wanted("bob")])
    token = DelegationToken("id", "User:alice", "User:bob", ("User:c",), 1, 2, 3)
    for offset, record in enumerate(list(records_of(scene.machine.image))[-1:], 80):
        assert isinstance(record, messages.UserScramCredentialRecord)
        scene.machine.apply(record, offset)
    scene.machine.apply(
        messages.DelegationTokenRecord(
            token_id="id",
            owner="User:alice",
            requester="User:bob",
            renewers=["User:c"],
            issue_timestamp=1,
            expiration_timestamp=2,
            max_timestamp=3,
        ),
        90,
    )
    image = scene.machine.image
    assert image.delegation_tokens == {"id": token}
    copy = MetadataMachine(MetadataSettings(), Rules())
    for offset, record in enumerate(records_of(image)):
        copy.apply(record, offset)
    assert copy.image.scram_credentials == image.scram_credentials
    assert copy.image.delegation_tokens == image.delegation_tokens
    copy.apply(messages.RemoveDelegationTokenRecord(token_id="id"), 91)
    assert not copy.image.delegation_tokens
