"""Client quotas in the metadata machine: validated, altered, described and kept in snapshots."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from metadata_scene import Scene, replayed

from moldau.machines.metadata.builder import ImageBuilder
from moldau.machines.metadata.client_quotas import (
    ENTITIES_PER_REQUEST_MAX,
    MatchType,
    QuotaAlteration,
    QuotaAltered,
    QuotaChange,
    QuotaFilter,
    describe_client_quotas,
)
from moldau.machines.metadata.delta import delta_between
from moldau.machines.metadata.image import MetadataImage, QuotaEntity
from moldau.machines.metadata.snapshot import records_of
from moldau.model.errors import ErrorCode, InvalidRequest, KafkaError, PolicyViolation, UnsupportedVersion

Pairs = Sequence[tuple[str, str | None]]

ALICE = (("user", "alice"),)
ALICE_APP = (("client-id", "app"), ("user", "alice"))


def alter(
    scene: Scene, entity: Pairs, changes: dict[str, float | None], *, validate_only: bool = False
) -> QuotaAltered:
    alteration = QuotaAlteration(entity, [QuotaChange(key, value) for key, value in changes.items()])
    (altered,) = scene.run(scene.machine.decide_alter_client_quotas([alteration], validate_only=validate_only))
    return altered


def test_quotas_are_set_changed_and_removed() -> None:
    scene = Scene()
    assert alter(scene, ALICE, {"producer_byte_rate": 1000, "request_percentage": 12.5}).error is ErrorCode.NONE
    assert alter(scene, [("user", "alice"), ("client-id", "app")], {"consumer_byte_rate": 5}).error is ErrorCode.NONE
    assert scene.machine.image.client_quotas == {
        ALICE: {"producer_byte_rate": 1000.0, "request_percentage": 12.5},
        ALICE_APP: {"consumer_byte_rate": 5.0},
    }
    alter(scene, ALICE, {"producer_byte_rate": 2000, "request_percentage": None})
    alter(scene, ALICE_APP, {"consumer_byte_rate": None})
    assert scene.machine.image.client_quotas == {ALICE: {"producer_byte_rate": 2000.0}}


def test_no_record_is_written_for_an_unchanged_quota() -> None:
    scene = Scene()
    alter(scene, ALICE, {"producer_byte_rate": 1000})
    length = len(scene.log)
    alter(scene, ALICE, {"producer_byte_rate": 1000, "consumer_byte_rate": None})
    assert len(scene.log) == length


def test_validate_only_checks_and_writes_nothing() -> None:
    scene = Scene()
    assert alter(scene, ALICE, {"producer_byte_rate": 1000}, validate_only=True).error is ErrorCode.NONE
    assert alter(scene, ALICE, {"producer_byte_rate": 0}, validate_only=True).error is ErrorCode.INVALID_REQUEST
    assert not scene.machine.image.client_quotas


@pytest.mark.parametrize(
    ("entity", "changes", "message"),
    [
        ([], {"producer_byte_rate": 1.0}, "Invalid empty client quota entity"),
        ([("group", "g")], {"producer_byte_rate": 1.0}, "Unhandled client quota entity type: group"),
        ([("user", "")], {"producer_byte_rate": 1.0}, "Empty user not supported"),
        ([("user", "a"), ("user", "b")], {"producer_byte_rate": 1.0}, "more than once"),
        ([("ip", "1.2.3.4"), ("user", "b")], {"connection_creation_rate": 1.0}, "should not be combined"),
        ([("ip", "no.such.host")], {"connection_creation_rate": 1.0}, "not a valid IP"),
        ([("ip", "1.2.3.4")], {"producer_byte_rate": 1.0}, "Invalid configuration key producer_byte_rate"),
        ([("user", "a")], {"connection_creation_rate": 1.0}, "Invalid configuration key connection_creation_rate"),
        ([("user", "a")], {"speed": 1.0}, "Invalid configuration key speed"),
        ([("user", "a")], {"request_percentage": 0.0}, "must be greater than 0"),
        ([("user", "a")], {"request_percentage": -1.0}, "must be greater than 0"),
        ([("user", "a")], {"request_percentage": math.nan}, "must be a finite number"),
        ([("user", "a")], {"producer_byte_rate": math.inf}, "must be a finite number"),
        ([("user", "a")], {"producer_byte_rate": 1.5}, "cannot be a fractional value"),
        ([("user", "a")], {"producer_byte_rate": 1e19}, "too large"),
        ([("ip", None)], {"connection_creation_rate": 3e9}, "too large"),
        ([("user", "a" * 40_000)], {"producer_byte_rate": 1.0}, "at most"),
    ],
)
def test_invalid_alterations_are_rejected(entity: Pairs, changes: dict[str, float | None], message: str) -> None:
    scene = Scene()
    altered = alter(scene, entity, changes)
    assert altered.error is ErrorCode.INVALID_REQUEST
    assert altered.message is not None
    assert message in altered.message
    assert not scene.machine.image.client_quotas


def test_each_entity_of_a_request_has_its_own_error() -> None:
    scene = Scene()
    alterations = [
        QuotaAlteration(ALICE, [QuotaChange("producer_byte_rate", 1.0)]),
        QuotaAlteration(
            [("user", None)], [QuotaChange("producer_byte_rate", 1.0), QuotaChange("producer_byte_rate", 2)]
        ),
        QuotaAlteration([("user", "bob")], [QuotaChange("producer_byte_rate", 3.0)]),
        QuotaAlteration([("user", "bob")], [QuotaChange("producer_byte_rate", 4.0)]),
    ]
    outcomes = scene.run(scene.machine.decide_alter_client_quotas(alterations))
    assert [(each.entity, each.error) for each in outcomes] == [
        (ALICE, ErrorCode.NONE),
        ([("user", None)], ErrorCode.INVALID_REQUEST),
        ([("user", "bob")], ErrorCode.INVALID_REQUEST),
    ]
    assert scene.machine.image.client_quotas[ALICE] == {"producer_byte_rate": 1.0}
    assert (("user", None),) not in scene.machine.image.client_quotas


def test_a_request_with_too_many_entities_is_rejected() -> None:
    scene = Scene()
    change = [QuotaChange("producer_byte_rate", 1.0)]
    alterations = [QuotaAlteration([("user", str(index))], change) for index in range(ENTITIES_PER_REQUEST_MAX + 1)]
    with pytest.raises(PolicyViolation, match="at most 5000 entities"):
        scene.machine.decide_alter_client_quotas(alterations)


def test_snapshot_and_delta_contain_client_quotas() -> None:
    scene = Scene()
    before = scene.machine.image
    alter(scene, ALICE, {"producer_byte_rate": 1000})
    alter(scene, [("ip", None)], {"connection_creation_rate": 10})
    image = scene.machine.image
    assert delta_between(before, image).client_quotas == {ALICE, (("ip", None),)}
    assert replayed(scene.log).image.client_quotas == image.client_quotas
    builder = ImageBuilder(MetadataImage())
    for offset, record in enumerate(records_of(image)):
        builder.apply(record, offset)
    restored, delta = builder.finish()
    assert restored.client_quotas == image.client_quotas
    assert delta.client_quotas == {ALICE, (("ip", None),)}
    assert delta


def test_an_earlier_image_keeps_its_quotas() -> None:
    scene = Scene()
    alter(scene, ALICE, {"producer_byte_rate": 1000})
    before = scene.machine.image
    alter(scene, ALICE, {"producer_byte_rate": 1})
    assert before.client_quotas == {ALICE: {"producer_byte_rate": 1000.0}}


# -- filters

ENTITIES: tuple[QuotaEntity, ...] = (
    ALICE,
    ALICE_APP,
    (("client-id", None), ("user", "alice")),
    (("user", None),),
    (("client-id", "app"),),
    (("ip", "1.2.3.4"),),
    (("ip", None),),
)
IMAGE = MetadataImage(client_quotas={entity: {"k": 1.0} for entity in ENTITIES})


def matched(*components: QuotaFilter, strict: bool = False) -> list[QuotaEntity]:
    return [entity for entity, _ in describe_client_quotas(IMAGE, components, strict=strict)]


def test_filter_without_components_matches_all_or_none_when_strict() -> None:
    assert matched() == list(ENTITIES)
    assert matched(strict=True) == []


def test_filter_components_match_exactly_by_default_or_any() -> None:
    user_alice = QuotaFilter("user", MatchType.EXACT, "alice")
    assert matched(user_alice) == [ENTITIES[0], ENTITIES[1], ENTITIES[2]]
    assert matched(user_alice, strict=True) == [ENTITIES[0]]
    assert matched(user_alice, QuotaFilter("client-id", MatchType.DEFAULT, None)) == [ENTITIES[2]]
    assert matched(user_alice, QuotaFilter("client-id", MatchType.ANY, None)) == [ENTITIES[1], ENTITIES[2]]
    assert matched(QuotaFilter("ip", MatchType.ANY, None)) == [ENTITIES[5], ENTITIES[6]]
    assert matched(QuotaFilter("user", MatchType.DEFAULT, None), strict=True) == [ENTITIES[3]]


@pytest.mark.parametrize(
    ("components", "error"),
    [
        ([QuotaFilter("", 0, "a")], InvalidRequest),
        ([QuotaFilter("user", 0, "a"), QuotaFilter("user", 2, None)], InvalidRequest),
        ([QuotaFilter("group", 0, "a")], UnsupportedVersion),
        ([QuotaFilter("user", 0, None)], InvalidRequest),
        ([QuotaFilter("user", 1, "a")], InvalidRequest),
        ([QuotaFilter("user", 2, "a")], InvalidRequest),
        ([QuotaFilter("user", 3, None)], InvalidRequest),
        ([QuotaFilter("user", 0, "a"), QuotaFilter("ip", 1, None)], InvalidRequest),
    ],
)
def test_invalid_filters_are_rejected(components: list[QuotaFilter], error: type[KafkaError]) -> None:
    with pytest.raises(error):
        matched(*components)


names = st.sampled_from([None, "a", "b"])
entities = st.one_of(
    st.tuples(st.tuples(st.just("ip"), st.sampled_from([None, "1.1.1.1", "::1"]))),
    st.tuples(st.tuples(st.just("user"), names)),
    st.tuples(st.tuples(st.just("client-id"), names)),
    st.tuples(st.tuples(st.just("user"), names), st.tuples(st.just("client-id"), names)),
)


@given(st.lists(st.tuples(entities, st.one_of(st.none(), st.integers(1, 1000))), max_size=30))
def test_image_equals_a_plain_dictionary_after_any_alterations(steps: list[tuple[Pairs, int | None]]) -> None:
    scene = Scene(brokers=0)
    expected: dict[QuotaEntity, float] = {}
    for entity, value in steps:
        key = "connection_creation_rate" if entity[0][0] == "ip" else "producer_byte_rate"
        assert alter(scene, entity, {key: value}).error is ErrorCode.NONE
        canonical = tuple(sorted(entity, key=lambda pair: pair[0]))
        expected.pop(canonical, None)
        if value is not None:
            expected[canonical] = value
    assert {entity: next(iter(v.values())) for entity, v in scene.machine.image.client_quotas.items()} == expected
    assert replayed(scene.log).image.client_quotas == scene.machine.image.client_quotas
