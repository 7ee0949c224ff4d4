"""Records of `_schemas` as Confluent's registry and Karapace write them, and what they amount to."""

import json
from typing import Any

import pytest

from moldau.registry.model import Compatibility, Mode, Reference, Schema
from moldau.registry.records import (
    InvalidRecord,
    SchemaVersion,
    config_record,
    delete_subject_record,
    mode_record,
    schema_record,
    schema_tombstone,
)
from moldau.registry.state import RegistryState
from moldau.schemas.types import AVRO

# As Confluent's registry writes them.
CONFLUENT = [
    ('{"keytype":"NOOP","magic":0}', None),
    ('{"keytype":"CONFIG","subject":null,"magic":0}', '{"compatibilityLevel":"FULL"}'),
    (
        '{"keytype":"SCHEMA","subject":"a","version":1,"magic":1}',
        '{"subject":"a","version":1,"id":1,"md5":"x","schema":"\\"string\\"","deleted":false}',
    ),
    (
        '{"keytype":"SCHEMA","subject":"b","version":1,"magic":1}',
        '{"subject":"b","version":1,"id":2,"schemaType":"JSON",'
        '"references":[{"name":"r","subject":"a","version":1}],"schema":"{}","deleted":false}',
    ),
    ('{"keytype":"DELETE_SUBJECT","subject":"b","magic":0}', '{"subject":"b","version":1}'),
    ('{"keytype":"MODE","subject":"a","magic":0}', '{"mode":"READONLY"}'),
    ('{"keytype":"CONTEXT","tenant":"default","context":".x","magic":0}', '{"tenant":"default","context":".x"}'),
]
# As Karapace writes them: other order of fields, spaces.
KARAPACE = [
    ('{"subject": null, "magic": 0, "keytype": "CONFIG"}', '{"compatibilityLevel": "FULL"}'),
    (
        '{"subject": "a", "version": 1, "magic": 1, "keytype": "SCHEMA"}',
        '{"subject": "a", "version": 1, "id": 1, "schema": "\\"string\\"", "deleted": false, "schemaType": "AVRO"}',
    ),
    (
        '{"keytype": "SCHEMA", "magic": 1, "subject": "b", "version": 1}',
        '{"deleted": true, "id": 2, "references": [{"name": "r", "subject": "a", "version": 1}], "schema": "{}", '
        '"schemaType": "JSON", "subject": "b", "version": 1}',
    ),
    ('{"keytype": "MODE", "magic": 0, "subject": "a"}', '{"mode": "READONLY"}'),
]


def replayed(records: list[Any]) -> RegistryState:
    state = RegistryState()
    for key, value in records:
        state.apply(key.encode() if isinstance(key, str) else key, value.encode() if isinstance(value, str) else value)
    return state


@pytest.mark.parametrize("records", [CONFLUENT, KARAPACE])
def test_records_of_other_registries_are_understood(records: list[Any]) -> None:
    state = replayed(records)
    assert state.schema(".", 1) == Schema(AVRO, '"string"')
    assert state.schema(".", 2) == Schema("JSON", "{}", (Reference("r", "a", 1),))
    assert list(state.versions("a")) == [1]
    assert (list(state.versions("b")), list(state.versions("b", with_deleted=True))) == ([], [1])
    assert state.compatibility("a") is Compatibility.FULL
    assert (state.mode("a"), state.mode("b")) == (Mode.READONLY, Mode.READWRITE)
    assert state.next_id(".") == 3


def test_written_records_have_confluents_keys_and_values() -> None:
    stored = SchemaVersion("s", 3, 7, Schema("JSON", "{}", (Reference("r", "a", 1),)), False)
    record = schema_record(stored)
    assert record.key == b'{"keytype":"SCHEMA","subject":"s","version":3,"magic":1}'
    assert json.loads(record.value or b"") == {
        "subject": "s",
        "version": 3,
        "id": 7,
        "schemaType": "JSON",
        "references": [{"name": "r", "subject": "a", "version": 1}],
        "schema": "{}",
        "deleted": False,
    }
    assert schema_tombstone("s", 3) == (record.key, None)
    assert config_record(None, {"compatibilityLevel": "NONE"}) == (
        b'{"keytype":"CONFIG","subject":null,"magic":0}',
        b'{"compatibilityLevel":"NONE"}',
    )
    assert mode_record("s", Mode.IMPORT) == (b'{"keytype":"MODE","subject":"s","magic":0}', b'{"mode":"IMPORT"}')
    assert delete_subject_record("s", 3).value == b'{"subject":"s","version":3}'


def version(subject: str, number: int, schema_id: int, text: str, *, is_deleted: bool = False) -> Any:
    return schema_record(SchemaVersion(subject, number, schema_id, Schema(AVRO, text), is_deleted))


@pytest.mark.proves("A6", part="ids given once")
def test_schema_is_deleted_with_its_last_version_but_its_id_is_not_reused() -> None:
    state = replayed([version("a", 1, 1, '"int"'), version("b", 1, 1, '"int"'), schema_tombstone("a", 1)])
    assert state.schema(".", 1) is not None
    state.apply(*schema_tombstone("b", 1))
    assert state.schema(".", 1) is None
    assert state.id_of(".", Schema(AVRO, '"int"')) is None
    assert (state.subjects, state.next_id(".")) == ({}, 2)


@pytest.mark.proves("A6", part="in-place migration")
def test_deletion_of_a_subject_ends_at_its_version() -> None:
    records = [version("a", number, number, f'"{kind}"') for number, kind in ((1, "int"), (2, "long"), (3, "float"))]
    state = replayed([*records, delete_subject_record("a", 2)])
    assert list(state.versions("a")) == [3]
    cleared = (b'{"keytype":"CLEAR_SUBJECT","subject":"a","magic":0}', b'{"subject":"a"}')
    state.apply(*cleared)
    assert list(state.versions("a", with_deleted=True)) == [3]


def test_replay_of_a_compacted_log_gives_the_same_state() -> None:
    records = [
        version("a", 1, 1, '"int"'),
        version("a", 2, 2, '"long"'),
        config_record("a", {"compatibilityLevel": "NONE"}),
        version("a", 1, 1, '"int"', is_deleted=True),
        config_record("a", {"compatibilityLevel": "FULL"}),
        version("b", 1, 1, '"int"'),
    ]
    newest = dict(records)
    compacted = [(key, value) for key, value in records if newest[key] is value]
    assert len(compacted) == 4
    whole, short = replayed(records), replayed(compacted)
    assert whole.subjects == short.subjects
    assert whole.configs == short.configs
    assert whole.uses(".", 1) == short.uses(".", 1) == [("b", 1)]


@pytest.mark.proves("A6", part="in-place migration")
@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"{}"),
        (b"x", b"{}"),
        (b"[]", b"{}"),
        (b"{}", b"{}"),
        (b'{"keytype":"SCHEMA","subject":"a","version":1,"magic":1}', b"x"),
        (b'{"keytype":"SCHEMA","subject":"a","version":1,"magic":1}', b'{"subject":"a","version":1}'),
        (b'{"keytype":"CONFIG","subject":null,"magic":0}', b'{"compatibilityLevel":"NOPE"}'),
        (b'{"keytype":"MODE","subject":null,"magic":0}', b'{"mode":"NOPE"}'),
    ],
)
def test_invalid_record_is_rejected_and_changes_nothing(key: bytes | None, value: bytes) -> None:
    state = RegistryState()
    with pytest.raises(InvalidRecord):
        state.apply(key, value)
    assert (state.subjects, state.configs, state.modes) == ({}, {}, {})


def test_record_of_an_unknown_type_is_ignored() -> None:
    state = replayed([('{"keytype":"NEW","magic":9}', "{}")])
    assert state.subjects == {}
