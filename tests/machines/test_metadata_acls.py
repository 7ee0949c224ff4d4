"""ACLs in the metadata: created once, deleted by filters, kept in snapshots."""

import pytest
from metadata_scene import Scene, replayed

from moldau.machines.access.acls import AclBinding, AclFilter, Operation, PatternType, Permission, ResourceKind
from moldau.machines.metadata.acls import AclCreated, AclsDeleted, acl_record
from moldau.machines.metadata.builder import ImageBuilder, ImpossibleRecord
from moldau.machines.metadata.delta import delta_between
from moldau.machines.metadata.image import MetadataImage
from moldau.machines.metadata.snapshot import records_of
from moldau.model.errors import ErrorCode, PolicyViolation
from moldau.wire import messages

READ = AclBinding(
    ResourceKind.TOPIC, "orders", PatternType.LITERAL, "User:alice", "*", Operation.READ, Permission.ALLOW
)
WRITE = READ._replace(operation=Operation.WRITE)
DENY = READ._replace(permission=Permission.DENY, pattern=PatternType.PREFIXED, principal="User:*", host="10.0.0.1")


def create(scene: Scene, *acls: AclBinding) -> list[AclCreated]:
    start = scene.machine.image.offset
    randomness = [bytes([number + 1]) * 8 + (start + 2).to_bytes(8, "big") for number in range(len(acls))]
    return scene.run(scene.machine.decide_create_acls(acls, randomness=randomness))


def delete(scene: Scene, *filters: AclFilter) -> list[AclsDeleted]:
    return scene.run(scene.machine.decide_delete_acls(filters))


def test_created_acls_are_in_the_image() -> None:
    scene = Scene()
    assert create(scene, READ, WRITE, DENY) == [AclCreated()] * 3
    assert set(scene.machine.image.acls.values()) == {READ, WRITE, DENY}


def test_existing_acl_is_not_created_again() -> None:
    scene = Scene()
    assert create(scene, READ, READ) == [AclCreated()] * 2
    before = scene.machine.image.acls
    assert create(scene, READ) == [AclCreated()]
    assert scene.machine.image.acls is before
    assert list(before.values()) == [READ]


@pytest.mark.parametrize(
    ("invalid", "message"),
    [
        (READ._replace(kind=ResourceKind.ANY), "Invalid resourceType ANY"),
        (READ._replace(kind=ResourceKind.UNKNOWN), "Invalid resourceType UNKNOWN"),
        (READ._replace(pattern=PatternType.MATCH), "Invalid patternType MATCH"),
        (READ._replace(pattern=PatternType.ANY), "Invalid patternType ANY"),
        (READ._replace(operation=Operation.ANY), "Invalid operation ANY"),
        (READ._replace(operation=Operation.UNKNOWN), "Invalid operation UNKNOWN"),
        (READ._replace(permission=Permission.ANY), "Invalid permissionType ANY"),
        (READ._replace(name=""), "Resource name should not be empty"),
        (READ._replace(kind=ResourceKind.CLUSTER), "The only valid name for the CLUSTER resource is kafka-cluster"),
        (READ._replace(principal="alice"), "no colon is present"),
        (READ._replace(host="h" * 40_000), "limited to"),
    ],
)
def test_invalid_acl_is_rejected_and_others_are_created(invalid: AclBinding, message: str) -> None:
    scene = Scene()
    rejected, created = create(scene, invalid, WRITE)
    assert rejected.error == ErrorCode.INVALID_REQUEST
    assert message in (rejected.message or "")
    assert created == AclCreated()
    assert list(scene.machine.image.acls.values()) == [WRITE]


def test_each_filter_deletes_what_it_matches() -> None:
    scene = Scene()
    create(scene, READ, WRITE, DENY)
    by_operation, everything_of_alice, nothing = delete(
        scene, AclFilter(operation=Operation.WRITE), AclFilter(principal="User:alice"), AclFilter(name="x")
    )
    assert by_operation.acls == [WRITE]
    assert set(everything_of_alice.acls) == {READ, WRITE}
    assert nothing.acls == []
    assert list(scene.machine.image.acls.values()) == [DENY]


def test_invalid_filter_is_rejected_and_others_delete() -> None:
    scene = Scene()
    create(scene, READ)
    rejected, deleted = delete(scene, AclFilter(kind=ResourceKind.UNKNOWN), AclFilter())
    assert (rejected.error, rejected.acls) == (ErrorCode.INVALID_REQUEST, ())
    assert deleted.acls == [READ]
    assert not scene.machine.image.acls


def test_request_with_too_many_characters_is_rejected() -> None:
    scene = Scene()
    with pytest.raises(PolicyViolation):
        create(scene, *(READ._replace(name=f"{number:03}" + "n" * 30_000) for number in range(100)))


def test_snapshot_restores_the_acls_with_their_ids() -> None:
    scene = Scene()
    create(scene, READ, WRITE, DENY)
    delete(scene, AclFilter(operation=Operation.WRITE))
    image = scene.machine.image
    assert replayed(list(records_of(image))).image.acls == image.acls


def test_delta_states_that_acls_changed() -> None:
    builder = ImageBuilder(MetadataImage())
    builder.apply(acl_record(b"1" * 16, READ), 1)
    first, delta = builder.finish()
    assert delta
    assert delta.has_new_acls
    assert delta_between(MetadataImage(), first).has_new_acls
    builder.apply(messages.NoOpRecord(), 2)
    second, delta = builder.finish()
    assert not delta
    assert second.acls is first.acls
    assert not delta_between(first, second).has_new_acls


def test_removal_of_an_unknown_acl_is_impossible() -> None:
    builder = ImageBuilder(MetadataImage())
    with pytest.raises(ImpossibleRecord, match="removal of ACL"):
        builder.apply(messages.RemoveAccessControlEntryRecord(id=b"1" * 16), 1)


def test_acl_of_a_later_version_is_kept_and_allows_nothing_new() -> None:
    builder = ImageBuilder(MetadataImage())
    record = acl_record(b"1" * 16, READ)
    record.operation = 99
    builder.apply(record, 1)
    (acl,) = builder.finish()[0].acls.values()
    assert acl.operation == Operation.UNKNOWN
