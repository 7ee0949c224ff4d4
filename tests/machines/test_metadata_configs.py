"""AlterConfigs and IncrementalAlterConfigs of topics and brokers."""

import pytest
from metadata_scene import Scene

from moldau.machines.metadata import (
    Alteration,
    ConfigChange,
    ConfigsAltered,
    NewTopic,
    Operation,
    Replacement,
    Resource,
    ResourceType,
)
from moldau.machines.metadata.features import SUPPORTED_FEATURES
from moldau.machines.metadata.image import ControllerImage
from moldau.model.errors import ErrorCode

TOPIC = Resource(ResourceType.TOPIC, "t")
BROKER = Resource(ResourceType.BROKER, "1")
ALL_BROKERS = Resource(ResourceType.BROKER, "")

Step = tuple[str, int, str | None]


@pytest.fixture
def scene() -> Scene:
    scene = Scene()
    scene.create_one(NewTopic("t", configs=[("retention.ms", "1000")]))
    return scene


def alter(scene: Scene, resource: Resource, *steps: Step, validate_only: bool = False) -> ConfigsAltered:
    alteration = Alteration(resource, [ConfigChange(*step) for step in steps])
    decision = scene.machine.decide_incremental_alter_configs([alteration], validate_only=validate_only)
    (outcome,) = scene.run(decision)
    return outcome


def configs(scene: Scene, resource: Resource = TOPIC) -> dict[str, str]:
    return dict(scene.machine.image.configs.get(resource, {}))


@pytest.mark.proves("T1")
def test_configs_are_set_and_deleted_individually(scene: Scene) -> None:
    alter(scene, TOPIC, ("segment.bytes", Operation.SET, "7"))
    assert configs(scene) == {"retention.ms": "1000", "segment.bytes": "7"}
    alter(scene, TOPIC, ("retention.ms", Operation.DELETE, None), ("segment.bytes", Operation.SET, "8"))
    assert configs(scene) == {"segment.bytes": "8"}
    alter(scene, TOPIC, ("segment.bytes", Operation.DELETE, None))
    assert TOPIC not in scene.machine.image.configs


def test_dedicated_controller_has_configs(scene: Scene) -> None:
    alone = Resource(ResourceType.BROKER, "7")
    assert alter(scene, alone, ("log.cleaner.threads", Operation.SET, "2")).error == ErrorCode.BROKER_ID_NOT_REGISTERED
    scene.run(scene.machine.decide_register_controller(ControllerImage(7, bytes(16), (), SUPPORTED_FEATURES)))
    assert alter(scene, alone, ("log.cleaner.threads", Operation.SET, "2")).error == ErrorCode.NONE
    assert configs(scene, alone) == {"log.cleaner.threads": "2"}


@pytest.mark.proves("T1")
def test_list_operations_start_from_the_default(scene: Scene) -> None:
    alter(scene, TOPIC, ("cleanup.policy", Operation.APPEND, "compact,delete"))
    assert configs(scene)["cleanup.policy"] == "delete,compact"
    alter(scene, TOPIC, ("cleanup.policy", Operation.SUBTRACT, "delete"))
    assert configs(scene)["cleanup.policy"] == "compact"
    alter(scene, TOPIC, ("cleanup.policy", Operation.SUBTRACT, "compact"))
    assert configs(scene)["cleanup.policy"] == ""


def test_emptied_list_is_not_the_default(scene: Scene) -> None:
    alter(scene, TOPIC, ("cleanup.policy", Operation.SET, ""))
    alter(scene, TOPIC, ("cleanup.policy", Operation.APPEND, "compact"))
    assert configs(scene)["cleanup.policy"] == "compact"


def test_unchanged_value_is_recorded_for_a_broker_only(scene: Scene) -> None:
    length = len(scene.log)
    alter(scene, TOPIC, ("retention.ms", Operation.SET, "1000"))
    assert len(scene.log) == length
    alter(scene, BROKER, ("log.cleaner.threads", Operation.SET, "2"))
    alter(scene, BROKER, ("log.cleaner.threads", Operation.SET, "2"))
    assert len(scene.log) == length + 2


def test_brokers_have_individual_and_cluster_wide_configs(scene: Scene) -> None:
    alter(scene, BROKER, ("log.cleaner.threads", Operation.SET, "2"))
    alter(scene, ALL_BROKERS, ("log.cleaner.threads", Operation.SET, "3"))
    image = scene.machine.image
    assert image.broker_configs(1) == {"log.cleaner.threads": "2"}
    assert image.broker_configs(None) == {"log.cleaner.threads": "3", "min.insync.replicas": "1"}
    assert image.broker_configs(2) == {}


def test_validate_only_changes_nothing_and_still_rejects(scene: Scene) -> None:
    assert not alter(scene, TOPIC, ("retention.ms", Operation.SET, "5"), validate_only=True).error
    assert alter(scene, TOPIC, ("retention.ms", Operation.SET, "x"), validate_only=True).error
    assert configs(scene) == {"retention.ms": "1000"}


REJECTED: list[tuple[Resource, list[Step], int, str]] = [
    (Resource(ResourceType.TOPIC, "x"), [("retention.ms", 0, "1")], 3, "The topic 'x' does not exist."),
    (Resource(ResourceType.TOPIC, ""), [("retention.ms", 0, "1")], 42, "Default topic resources are not allowed."),
    (Resource(ResourceType.TOPIC, "b d"), [("retention.ms", 0, "1")], 17, "Topic name is invalid"),
    (Resource(ResourceType.BROKER, "one"), [("retention.ms", 0, "1")], 42, "Unable to parse broker name"),
    (Resource(ResourceType.BROKER, "-1"), [("retention.ms", 0, "1")], 42, "Unable to parse broker name"),
    (Resource(ResourceType.BROKER, "9"), [("retention.ms", 0, "1")], 102, "No node with id 9 found."),
    (Resource(ResourceType.BROKER, "9" * 5000), [("retention.ms", 0, "1")], 102, "No node with id 999"),
    (Resource(77, "t"), [("retention.ms", 0, "1")], 42, "Configs of resource type 77 cannot be altered."),
    (TOPIC, [("retention.ms", 0, "1"), ("retention.ms", 1, None)], 42, "duplicate config keys: retention.ms"),
    (TOPIC, [("retention.ms", 0, None)], 42, "Null value not supported for : retention.ms"),
    (TOPIC, [("cleanup.policy", 2, None)], 42, "Null value not supported for : cleanup.policy"),
    (TOPIC, [("retention.ms", 9, "1")], 42, "Unknown operation type id 9"),
    (TOPIC, [("retention.ms", 2, "1")], 40, "Can't APPEND to key retention.ms because its type is not LIST."),
    (TOPIC, [("retention.ms", 3, "1")], 40, "Can't SUBTRACT to key retention.ms because its type is not LIST."),
    (TOPIC, [("retention.ms", 0, "soon")], 40, "Invalid value soon for configuration retention.ms"),
    (TOPIC, [("segment.bytes", 0, "1"), ("no.such", 0, "1")], 40, "Unknown topic config name: no.such"),
]


@pytest.mark.proves("T1")
@pytest.mark.parametrize(("resource", "steps", "code", "words"), REJECTED)
def test_invalid_config_alteration_is_rejected_as_a_whole(
    scene: Scene, resource: Resource, steps: list[Step], code: int, words: str
) -> None:
    length = len(scene.log)
    outcome = alter(scene, resource, *steps)
    assert outcome.error == code
    assert outcome.message is not None
    assert words in outcome.message
    assert len(scene.log) == length


def test_resources_are_altered_individually_and_named_once(scene: Scene) -> None:
    step = [ConfigChange("segment.bytes", Operation.SET, "1")]
    alterations = [
        Alteration(TOPIC, step),
        Alteration(Resource(ResourceType.TOPIC, "x"), step),
        Alteration(BROKER, step),
        Alteration(BROKER, step),
    ]
    outcomes = scene.run(scene.machine.decide_incremental_alter_configs(alterations))
    assert [outcome.error.value for outcome in outcomes] == [0, 3, 42]
    assert outcomes[2].message == "Each resource must appear at most once."
    assert configs(scene)["segment.bytes"] == "1"
    assert configs(scene, BROKER) == {}


# AlterConfigs


def replace(
    scene: Scene, resource: Resource, *values: tuple[str, str | None], validate_only: bool = False
) -> ErrorCode:
    replacement = Replacement(resource, values)
    (outcome,) = scene.run(scene.machine.decide_alter_configs([replacement], validate_only=validate_only))
    return outcome.error


@pytest.mark.proves("T1")
def test_alter_configs_replaces_all_configs(scene: Scene) -> None:
    assert not replace(scene, TOPIC, ("segment.bytes", "3"), ("cleanup.policy", "compact"), validate_only=True)
    assert configs(scene) == {"retention.ms": "1000"}
    assert not replace(scene, TOPIC, ("segment.bytes", "3"), ("cleanup.policy", "compact"))
    assert configs(scene) == {"segment.bytes": "3", "cleanup.policy": "compact"}
    assert not replace(scene, TOPIC)
    assert configs(scene) == {}


@pytest.mark.parametrize(
    ("resource", "values", "code"),
    [
        (TOPIC, [("segment.bytes", None)], 42),
        (TOPIC, [("segment.bytes", "1"), ("segment.bytes", "2")], 42),
        (TOPIC, [("segment.bytes", "many")], 40),
        (Resource(ResourceType.TOPIC, "x"), [], 3),
    ],
)
def test_alter_configs_rejects_like_incremental_alter_configs(
    scene: Scene, resource: Resource, values: list[tuple[str, str | None]], code: int
) -> None:
    assert replace(scene, resource, *values) == code
    assert configs(scene) == {"retention.ms": "1000"}
