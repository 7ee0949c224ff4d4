"""Confluent's REST API: subjects, versions, ids, deletion, settings, errors."""

import json
from typing import Any

import pytest
from served_registry import CONTENT_TYPE, RegistryClient, record

A = record("A", a="int")
B = record("A", a="int", b=(["null", "int"], None))
C = record("A", a="int", b=(["null", "int"], None), c=("string", ""))
DEFINED = '{"type":"record","name":"A","fields":[{"name":"a","type":"int"}]}'  # A in the canonical form


def test_versions_are_registered_once_and_found_by_schema_and_id(registry: RegistryClient) -> None:
    first = registry.register("one", A).body["id"]
    assert registry.register("one", A).body == {"id": first}
    assert registry.register(
        "one", '{"name":"A", "fields":[{"type":{"type":"int"},"name":"a"}], "type":"record"}'
    ).body == {"id": first}
    second = registry.register("one", B).body["id"]
    assert registry.get("/subjects/one/versions").body == [1, 2]
    assert registry.get("/subjects/one/versions/1").body == {
        "subject": "one",
        "version": 1,
        "id": first,
        "schema": DEFINED,
    }
    assert registry.get("/subjects/one/versions/latest").body["id"] == second
    assert registry.get("/subjects/one/versions/1/schema").body == json.loads(DEFINED)
    assert registry.look_up("one", A).body["version"] == 1
    assert registry.look_up("one", C).code == 40403
    assert registry.get(f"/schemas/ids/{first}").body == {"schema": DEFINED}
    assert registry.get(f"/schemas/ids/{first}/schema").body == json.loads(DEFINED)


@pytest.mark.proves("A6", part="ids given once")
def test_schema_has_one_id_in_all_subjects_of_a_context(registry: RegistryClient) -> None:
    schema = record("Shared", x="long")
    number = registry.register("shared-1", schema).body["id"]
    assert registry.register("shared-2", schema).body == {"id": number}
    assert registry.get(f"/schemas/ids/{number}/subjects").body == ["shared-1", "shared-2"]
    assert registry.get(f"/schemas/ids/{number}/versions").body == [
        {"subject": "shared-1", "version": 1},
        {"subject": "shared-2", "version": 1},
    ]


@pytest.mark.proves("A6", part="Confluent's API")
def test_subject_with_slash_and_percent_is_one_segment(registry: RegistryClient) -> None:
    registry.register("a/b%2Fc d", A)
    assert registry.get("/subjects/a%2Fb%252Fc%20d/versions").body == [1]
    assert "a/b%2Fc d" in registry.get("/subjects").body


def test_contexts_have_ids_and_subjects_of_their_own(registry: RegistryClient) -> None:
    schema = record("InContext", x="long")
    response = registry.call("POST", "/contexts/.lab/subjects/s/versions", {"schema": schema})
    assert response.body == {"id": 1}
    assert registry.register(":.lab:other", schema).body == {"id": 1}
    assert ".lab" in registry.get("/contexts").body
    assert registry.get("/contexts/.lab/subjects").body == [":.lab:other", ":.lab:s"]
    assert registry.get("/contexts/:.lab:/schemas/ids/1").body == {
        "schema": json.dumps(json.loads(schema)).replace(" ", "")
    }
    assert registry.get("/schemas/ids/1?subject=:.lab:").body == registry.get("/contexts/.lab/schemas/ids/1").body
    assert registry.get("/subjects/:.lab:s/versions").body == [1]
    assert registry.get("/subjects?subjectPrefix=:.lab:o").body == [":.lab:other"]


@pytest.mark.proves("A6", part="schemas are kept")
def test_deletion_is_soft_then_permanent(registry: RegistryClient) -> None:
    number = registry.register("gone", A).body["id"]
    registry.register("gone", B)
    assert registry.delete("/subjects/gone/versions/1?permanent=true").code == 40407
    assert registry.delete("/subjects/gone/versions/1").body == 1
    assert registry.delete("/subjects/gone/versions/1").code == 40406
    assert registry.get("/subjects/gone/versions").body == [2]
    assert registry.get("/subjects/gone/versions?deleted=true").body == [1, 2]
    assert registry.get("/subjects/gone/versions/1").code == 40402
    assert registry.get("/subjects/gone/versions/1?deleted=true").body["deleted"] is True
    assert registry.get(f"/schemas/ids/{number}").status == 200
    assert registry.delete("/subjects/gone?permanent=true").code == 40405
    assert registry.delete("/subjects/gone").body == [2]
    assert registry.delete("/subjects/gone").code == 40404
    assert "gone" not in registry.get("/subjects").body
    assert "gone" in registry.get("/subjects?deleted=true").body
    assert "gone" in registry.get("/subjects?deletedOnly=true").body
    assert registry.get("/subjects/gone/versions").code == 40401
    assert registry.delete("/subjects/gone?permanent=true").body == [1, 2]
    assert registry.delete("/subjects/gone").code == 40401


def test_deleted_schema_gets_a_new_version_and_its_old_id(registry: RegistryClient) -> None:
    schema = record("Again", x="int")
    number = registry.register("again", schema).body["id"]
    registry.delete("/subjects/again")
    assert registry.register("again", schema).body == {"id": number}
    assert registry.get("/subjects/again/versions").body == [2]


@pytest.mark.proves("A6", part="schemas are kept")
def test_references_are_resolved_and_protect_what_they_name(registry: RegistryClient) -> None:
    registry.register("address", record("shop.Address", street="string"))
    order = record("shop.Order", to="shop.Address")
    assert registry.register("order", order).code == 42201
    references = [{"name": "shop.Address", "subject": "address", "version": -1}]
    number = registry.register("order", order, references=references).body["id"]
    stored = registry.get("/subjects/order/versions/1").body
    assert stored["references"] == [{"name": "shop.Address", "subject": "address", "version": 1}]
    assert registry.get("/subjects/address/versions/1/referencedby").body == [number]
    assert registry.delete("/subjects/address").code == 42206
    registry.delete("/subjects/order")
    assert registry.delete("/subjects/address").body == [1]


LEVELS = [  # level, whether B → A (a field dropped), A → B (an optional field added), A → required field added
    ("NONE", True, True, True),
    ("BACKWARD", True, True, False),
    ("FORWARD", True, True, True),
    ("FULL", True, True, False),
]


@pytest.mark.proves("A6", part="compatibility levels")
@pytest.mark.parametrize(("level", "drops", "adds_optional", "adds_required"), LEVELS)
def test_level_of_a_subject_decides_what_is_compatible(
    registry: RegistryClient, level: str, drops: bool, adds_optional: bool, adds_required: bool
) -> None:
    for name, earlier, later, expected in [
        ("drops", B, A, drops),
        ("optional", A, B, adds_optional),
        ("required", A, record("A", a="int", b="int"), adds_required),
    ]:
        subject = f"level-{level}-{name}"
        registry.register(subject, earlier)
        assert registry.put(f"/config/{subject}", compatibility=level).body == {"compatibility": level}
        response = registry.check(subject, later)
        assert response.body["is_compatible"] is expected, (name, response)
        assert bool(response.body["messages"]) is not expected
        assert (registry.register(subject, later).status == 200) is expected


@pytest.mark.proves("A6", part="compatibility levels")
def test_transitive_level_compares_with_all_versions(registry: RegistryClient) -> None:
    registry.put("/config/transitive", compatibility="NONE")
    for schema in (record("A", a="int"), record("A", a="string")):
        registry.register("transitive", schema)
    later = record("A", a="bytes")
    registry.put("/config/transitive", compatibility="BACKWARD")
    path = "/compatibility/subjects/transitive/versions"
    assert registry.call("POST", path, {"schema": later}).body == {"is_compatible": True}
    registry.put("/config/transitive", compatibility="BACKWARD_TRANSITIVE")
    assert registry.call("POST", path, {"schema": later}).body == {"is_compatible": False}
    assert registry.register("transitive", later).code == 409


def test_config_of_a_subject_falls_back_to_the_global_one(registry: RegistryClient) -> None:
    assert registry.get("/config/plain").code == 40408
    assert registry.get("/config/plain?defaultToGlobal=true").body == registry.get("/config").body
    assert registry.put("/config/plain", compatibility="sideways").code == 42203
    registry.put("/config/plain", compatibility="FULL")
    assert registry.get("/config/plain").body == {"compatibilityLevel": "FULL"}
    assert registry.delete("/config/plain").body == {"compatibilityLevel": "FULL"}
    assert registry.get("/config/plain").code == 40408


@pytest.mark.proves("A6", part="compatibility levels")
def test_mode_restricts_writes(registry: RegistryClient) -> None:
    assert registry.get("/mode/frozen").code == 40409
    assert registry.put("/mode/frozen", mode="SIDEWAYS").code == 42204
    assert registry.put("/mode/frozen", mode="READONLY").body == {"mode": "READONLY"}
    assert registry.register("frozen", A).code == 42205
    assert registry.delete("/mode/frozen").body == {"mode": "READONLY"}
    assert registry.register("frozen", A).status == 200
    assert registry.put("/mode/frozen", mode="IMPORT").code == 42205


def test_import_mode_takes_ids_from_the_request(registry: RegistryClient) -> None:
    assert registry.register("imported", A, id=77_000).code == 42205
    registry.put("/mode/imported", mode="IMPORT")
    schema = record("Imported", x="int")
    assert registry.register("imported", schema, id=77_000, version=5).body == {"id": 77_000}
    assert registry.get("/subjects/imported/versions").body == [5]
    assert registry.register("imported", record("Imported", y="int"), id=77_000).code == 42207
    assert registry.register("after-import", record("After", y="int")).body["id"] > 77_000


def test_json_schema_is_normalized_on_request(registry: RegistryClient) -> None:
    text, sorted_text = '{"type":"object","title":"T"}', '{"title":"T","type":"object"}'
    registry.register("normal", text, query="?normalize=true", schemaType="JSON")
    stored = registry.get("/subjects/normal/versions/1").body
    assert (stored["schema"], stored["schemaType"]) == (sorted_text, "JSON")
    assert registry.look_up("normal", text, schemaType="JSON").code == 40403
    assert registry.look_up("normal", text, query="?normalize=true", schemaType="JSON").body["version"] == 1


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("/subjects/bad/versions", {"schema": "{"}, 42201),
        ("/subjects/bad/versions", {"schema": '{"type":"nope"}'}, 42201),
        ("/subjects/bad/versions", {"schema": ""}, 42201),
        ("/subjects/bad/versions", {}, 42201),
        ("/subjects/bad/versions", {"schema": "[" * 50_000}, 42201),
        ("/subjects/bad/versions", {"schema": "message", "schemaType": "PROTOBUF"}, 42201),
        ("/subjects/bad/versions", {"schema": '{"$ref":"#/x"}', "schemaType": "JSON"}, 42201),
        ("/subjects/bad/versions", {"schema": "{}", "schemaType": "XML"}, 42201),
        ("/subjects/bad/versions", {"schema": A, "references": [{"name": 1}]}, 42201),
        ("/subjects/bad/versions", {"schema": A, "references": 7}, 42201),
        ("/subjects/bad%01/versions", {"schema": A}, 42208),
        ("/subjects/__GLOBAL/versions", {"schema": A}, 42208),
        ("/subjects/none", {"schema": A}, 40401),
        ("/compatibility/subjects/none/versions/latest", {"schema": A}, 40401),
        ("/compatibility/subjects/none/versions/x", {"schema": A}, 42202),
        ("/subjects/bad/versions", [], 400),
        ("/subjects/bad/versions", b"{", 400),
    ],
)
def test_invalid_request_has_confluents_error_code(registry: RegistryClient, path: str, body: Any, code: int) -> None:
    response = registry.call("POST", path, body)
    assert response.code == code, response
    assert response.body["message"]
    assert response.status == (code if code < 1_000 else code // 100)


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/subjects/none/versions", 404, 40401),
        ("/subjects/none/versions/0", 422, 42202),
        ("/schemas/ids/999999", 404, 40403),
        ("/schemas/ids/x", 404, 404),
        ("/nothing", 404, 404),
    ],
)
def test_missing_resource_has_confluents_error_code(
    registry: RegistryClient, path: str, status: int, code: int
) -> None:
    response = registry.get(path)
    assert (response.status, response.code) == (status, code)


@pytest.mark.proves("A6", part="Confluent's API")
def test_body_size_and_content_types_are_checked(registry: RegistryClient) -> None:
    assert registry.call("POST", "/subjects/s/versions", b" " * (1024 * 1024 + 1)).status == 413
    assert registry.call("POST", "/subjects/s/versions", {}, Content_Type="text/plain").status == 415
    assert registry.get("/subjects").content_type == CONTENT_TYPE
    assert registry.call("GET", "/subjects", Accept="application/json").content_type == "application/json"
    assert registry.call("PATCH", "/subjects").status == 405


def test_types_root_and_cluster_are_shown(registry: RegistryClient) -> None:
    assert registry.get("/").body == {}
    assert registry.get("/schemas/types").body == ["JSON", "PROTOBUF", "AVRO"]
    assert registry.get("/v1/metadata/id").body["scope"]["clusters"]["kafka-cluster"]
    assert registry.get("/health").body["status"] == "ok"


def test_schemas_are_listed_by_prefix_and_page(registry: RegistryClient) -> None:
    for name, schema in (("list-1", A), ("list-1", B), ("list-2", A)):
        registry.register(name, schema)
    listed = registry.get("/schemas?subjectPrefix=list-").body
    assert [(each["subject"], each["version"]) for each in listed] == [("list-1", 1), ("list-1", 2), ("list-2", 1)]
    latest = registry.get("/schemas?subjectPrefix=list-&latestOnly=true&offset=1&limit=5").body
    assert [(each["subject"], each["version"]) for each in latest] == [("list-2", 1)]
    assert registry.get("/subjects?subjectPrefix=list-&offset=1").body == ["list-2"]
