"""Config APIs: DescribeConfigs with sources, AlterConfigs, IncrementalAlterConfigs, and Kafka's error messages."""

from typing import Any

import pytest
from broker_scene import Scene, Talker, batch, on_broker, produce

from moldau.model.errors import ErrorCode
from moldau.wire import messages as m

TOPIC, BROKER, BROKER_LOGGER, GROUP = 2, 4, 8, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
DYNAMIC_TOPIC, DYNAMIC_BROKER, DYNAMIC_DEFAULT, STATIC, DEFAULT = 1, 2, 3, 4, 5
ME = "1"

Change = tuple[str, int, str | None]


async def describe(
    talker: Talker, kind: int, name: str, *keys: str, version: int = 4, **fields: Any
) -> tuple[int, dict[str, Any]]:
    """Return the error code and the configs by name."""
    requested = m.DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=list(keys) or None
    )
    response = await talker.ask(version, m.DescribeConfigsRequest(resources=[requested], **fields))
    (result,) = response.results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result.error_code, {config.name: config for config in result.configs}


async def change(
    talker: Talker, kind: int, name: str, *changes: Change, version: int = 1, validate_only: bool = False
) -> Any:
    """Alter one resource; return its response."""
    resource = m.IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            m.IncrementalAlterConfigsRequest.AlterableConfig(name=key, config_operation=operation, value=value)
            for key, operation, value in changes
        ],
    )
    request = m.IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    return (await talker.ask(version, request)).responses[0]


async def replace(
    talker: Talker, kind: int, name: str, version: int = 2, *, validate_only: bool = False, **configs: str | None
) -> Any:
    resource = m.AlterConfigsRequest.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            m.AlterConfigsRequest.AlterableConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ],
    )
    request = m.AlterConfigsRequest(resources=[resource], validate_only=validate_only)
    return (await talker.ask(version, request)).responses[0]


# -- DescribeConfigs


@pytest.mark.parametrize("version", range(1, 5))
def test_describe_configs_reports_topic_configs_with_their_sources(version: int) -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t", retention_ms=777)
        talker = await scene.connect()
        code, configs = await describe(talker, TOPIC, "t", version=version, include_synonyms=True)
        assert code == 0
        assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("777", DYNAMIC_TOPIC)
        assert (configs["segment.bytes"].value, configs["segment.bytes"].config_source) == ("2097152", STATIC)
        assert (configs["max.message.bytes"].value, configs["max.message.bytes"].config_source) == ("1048588", DEFAULT)
        synonyms = [(each.name, each.value, each.source) for each in configs["retention.ms"].synonyms]
        assert synonyms[0] == ("retention.ms", "777", DYNAMIC_TOPIC)
        assert synonyms[-1][2] == DEFAULT
        assert {config.read_only for config in configs.values()} == {False}
        if version >= 3:
            assert configs["retention.ms"].config_type == 5  # LONG

    on_broker(script, settings=["log.segment.bytes=2097152"])


def test_describe_configs_returns_only_the_requested_keys() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        _, configs = await describe(talker, TOPIC, "t", "retention.ms", "no.such.thing")
        assert set(configs) == {"retention.ms"}
        assert configs["retention.ms"].documentation is None
        assert list(configs["retention.ms"].synonyms) == []
        _, configs = await describe(talker, TOPIC, "t", "retention.ms", include_documentation=True)
        assert configs["retention.ms"].documentation

    on_broker(script)


def test_describe_configs_marks_read_only_broker_configs() -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        code, configs = await describe(talker, BROKER, ME, include_synonyms=True, include_documentation=True)
        assert code == 0
        assert configs["log.dirs"].read_only
        assert not configs["log.retention.ms"].read_only
        assert (configs["num.partitions"].value, configs["num.partitions"].config_source) == ("3", STATIC)
        assert configs["num.partitions"].documentation
        code, configs = await describe(talker, BROKER, "")
        assert (code, set(configs)) == (
            0,
            {"min.insync.replicas"},
        )  # the same on all brokers since the cluster was formatted

    on_broker(script, settings=["num.partitions=3"])


REJECTED_QUERIES = (
    (TOPIC, "missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (TOPIC, "not a name", ErrorCode.INVALID_TOPIC_EXCEPTION),
    (BROKER, "7", ErrorCode.INVALID_REQUEST),
    (BROKER, "seven", ErrorCode.INVALID_REQUEST),
    (99, "x", ErrorCode.INVALID_REQUEST),
    (0, "", ErrorCode.INVALID_REQUEST),
)


@pytest.mark.parametrize(("kind", "name", "code"), REJECTED_QUERIES)
def test_describe_configs_rejects_resources_without_configs(kind: int, name: str, code: ErrorCode) -> None:
    async def script(scene: Scene) -> None:
        response, configs = await describe(await scene.connect(), kind, name)
        assert (response, configs) == (code, {})

    on_broker(script)


def test_describe_configs_responds_per_resource() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        resource = m.DescribeConfigsRequest.DescribeConfigsResource
        requested = [
            resource(resource_type=kind, resource_name=name, configuration_keys=["retention.ms"])
            for kind, name in ((TOPIC, "t"), (TOPIC, "missing"), (BROKER, ME))
        ]
        response = await (await scene.connect()).ask(4, m.DescribeConfigsRequest(resources=requested))
        assert [each.error_code for each in response.results] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0]

    on_broker(script)


# -- IncrementalAlterConfigs


@pytest.mark.proves("T1")
@pytest.mark.parametrize("version", range(2))
def test_configs_are_set_deleted_appended_to_and_subtracted_from(version: int) -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()

        async def altered(*changes: Change) -> tuple[int, dict[str, str]]:
            response = await change(talker, TOPIC, "t", *changes, version=version)
            return response.error_code, dict(scene.node.broker.image.topic_configs("t"))

        assert await altered(("retention.ms", SET, "5"), ("segment.ms", SET, "6")) == (
            0,
            {"retention.ms": "5", "segment.ms": "6"},
        )
        assert await altered(("segment.ms", DELETE, None)) == (0, {"retention.ms": "5"})
        assert await altered(("cleanup.policy", APPEND, "compact")) == (
            0,
            {"retention.ms": "5", "cleanup.policy": "delete,compact"},
        )
        assert await altered(("cleanup.policy", SUBTRACT, "delete")) == (
            0,
            {"retention.ms": "5", "cleanup.policy": "compact"},
        )
        assert await altered(("never.set", DELETE, None)) == (0, {"retention.ms": "5", "cleanup.policy": "compact"})
        assert (await produce(talker, "t", batch(b"no key"))).error_code == ErrorCode.INVALID_RECORD

    on_broker(script)


REJECTED_CHANGES: tuple[tuple[Change, ErrorCode, str], ...] = (
    (("no.such.thing", SET, "1"), ErrorCode.INVALID_CONFIG, "Unknown topic config name: no.such.thing"),
    (("retention.ms", SET, "soon"), ErrorCode.INVALID_CONFIG, "retention.ms"),
    (("retention.ms", SET, None), ErrorCode.INVALID_REQUEST, "Null value not supported for : retention.ms"),
    (
        ("retention.ms", APPEND, "1"),
        ErrorCode.INVALID_CONFIG,
        "Can't APPEND to key retention.ms because its type is not",
    ),
    (("retention.ms", 9, "1"), ErrorCode.INVALID_REQUEST, "Unknown operation type id 9"),
    (("cleanup.policy", SET, "shred"), ErrorCode.INVALID_CONFIG, "cleanup.policy"),
    (("compression.type", SET, "brotli"), ErrorCode.INVALID_CONFIG, "compression.type"),
)


@pytest.mark.parametrize(("wanted", "code", "words"), REJECTED_CHANGES)
def test_invalid_change_rejects_the_whole_resource(wanted: Change, code: ErrorCode, words: str) -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        response = await change(await scene.connect(), TOPIC, "t", ("segment.ms", SET, "999"), wanted)
        assert response.error_code == code
        assert words in response.error_message
        assert scene.node.broker.image.topic_configs("t") == {}

    on_broker(script)


def test_list_config_is_bounded_by_the_record_size() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        name = "leader.replication.throttled.replicas"
        first, more = (",".join(f"{partition}:{broker}" for partition in range(4000)) for broker in (1, 2))
        assert (await change(talker, TOPIC, "t", (name, SET, first))).error_code == 0
        rejected = await change(talker, TOPIC, "t", (name, APPEND, more))
        assert rejected.error_code == ErrorCode.INVALID_CONFIG
        assert "exceeds the maximum value size of 32767 bytes" in rejected.error_message
        assert (await change(talker, TOPIC, "t", ("retention.ms", SET, "5"))).error_code == 0

    on_broker(script)


REJECTED_RESOURCES = (
    (TOPIC, "missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (TOPIC, "", ErrorCode.INVALID_REQUEST),
    (BROKER, "seven", ErrorCode.INVALID_REQUEST),
    (BROKER, "7", ErrorCode.INVALID_REQUEST),
    (BROKER_LOGGER, "7", ErrorCode.INVALID_REQUEST),
    (99, "x", ErrorCode.INVALID_REQUEST),
)


@pytest.mark.parametrize(("kind", "name", "code"), REJECTED_RESOURCES)
def test_alter_configs_rejects_resources_without_configs(kind: int, name: str, code: ErrorCode) -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        assert (await change(talker, kind, name, ("retention.ms", SET, "1"))).error_code == code
        assert (await replace(talker, kind, name, retention_ms="1")).error_code == code

    on_broker(script)


def test_duplicate_keys_and_resources_are_rejected() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        response = await change(talker, TOPIC, "t", ("retention.ms", SET, "1"), ("retention.ms", SET, "2"))
        assert response.error_code == ErrorCode.INVALID_REQUEST
        assert "duplicate config keys: retention.ms" in response.error_message
        resource = m.IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=TOPIC, resource_name="t", configs=[]
        )
        twice = await talker.ask(1, m.IncrementalAlterConfigsRequest(resources=[resource, resource]))
        assert {each.error_code for each in twice.responses} == {ErrorCode.INVALID_REQUEST}

    on_broker(script)


def test_validate_only_change_is_not_applied() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        fine = await change(talker, TOPIC, "t", ("retention.ms", SET, "5"), validate_only=True)
        wrong = await change(talker, TOPIC, "t", ("retention.ms", SET, "x"), validate_only=True)
        assert (fine.error_code, wrong.error_code) == (0, ErrorCode.INVALID_CONFIG)
        fine = await replace(talker, TOPIC, "t", retention_ms="5", validate_only=True)
        assert fine.error_code == 0
        assert scene.node.broker.image.topic_configs("t") == {}

    on_broker(script)


def test_broker_configs_change_at_runtime_per_broker_and_cluster_wide() -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        assert (await change(talker, BROKER, "", ("log.retention.ms", SET, "111"))).error_code == 0
        assert (await change(talker, BROKER, ME, ("log.segment.bytes", SET, "2097152"))).error_code == 0
        _, configs = await describe(talker, BROKER, ME, include_synonyms=True)
        assert (configs["log.retention.ms"].value, configs["log.retention.ms"].config_source) == (
            "111",
            DYNAMIC_DEFAULT,
        )
        assert configs["log.segment.bytes"].config_source == DYNAMIC_BROKER
        _, all_brokers = await describe(talker, BROKER, "")
        assert set(all_brokers) == {"log.retention.ms", "min.insync.replicas"}
        await scene.create("t")
        _, configs = await describe(talker, TOPIC, "t")
        assert (configs["retention.ms"].value, configs["segment.bytes"].value) == ("111", "2097152")
        await scene.host.stop()
        await scene.restart()
        _, configs = await describe(await scene.connect(), TOPIC, "t")
        assert (configs["retention.ms"].value, configs["segment.bytes"].value) == ("111", "2097152")

    on_broker(script)


@pytest.mark.proves("T1", part="configure")
@pytest.mark.parametrize("first", ["", ME], ids=["for all first", "for one first"])
def test_broker_config_may_not_contradict_the_cluster_default(first: str) -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        second = ME if first == "" else ""
        wanted = ("log.cleaner.max.compaction.lag.ms", SET, "1000"), ("message.max.bytes", SET, "5000")
        assert (await change(talker, BROKER, first, *wanted)).error_code == 0
        rejected = await change(talker, BROKER, second, ("log.cleaner.min.compaction.lag.ms", SET, "2000"))
        assert rejected.error_code == ErrorCode.INVALID_REQUEST
        assert "max.compaction.lag.ms (1000)" in rejected.error_message
        assert (await change(talker, BROKER, second, ("log.cleaner.min.compaction.lag.ms", SET, "9"))).error_code == 0
        assert scene.node.broker.settings.log_defaults.max_message_bytes == 5000
        assert scene.node.broker.settings.log_defaults.min_compaction_lag_ms == 9

    on_broker(script)


REJECTED_BROKER_CHANGES: tuple[tuple[str, Change, str], ...] = (
    (ME, ("log.dirs", SET, "/elsewhere"), "Cannot update these configs dynamically: log.dirs"),
    (ME, ("no.such.thing", SET, "1"), "no.such.thing"),
    (ME, ("log.retention.ms", SET, "soon"), "log.retention.ms"),
    ("", ("listeners", SET, "PLAINTEXT://other:1"), "listeners"),
)


@pytest.mark.parametrize(("name", "wanted", "words"), REJECTED_BROKER_CHANGES)
def test_unsupported_dynamic_broker_config_is_rejected(name: str, wanted: Change, words: str) -> None:
    async def script(scene: Scene) -> None:
        response = await change(await scene.connect(), BROKER, name, wanted)
        assert response.error_code == ErrorCode.INVALID_REQUEST
        assert words in response.error_message

    on_broker(script)


# -- AlterConfigs


@pytest.mark.parametrize("version", range(3))
def test_alter_configs_replaces_all_configs(version: int) -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t", retention_ms=1, segment_ms=2)
        talker = await scene.connect()
        assert (await replace(talker, TOPIC, "t", version, retention_ms="9")).error_code == 0
        assert scene.node.broker.image.topic_configs("t") == {"retention.ms": "9"}
        wrong = await replace(talker, TOPIC, "t", version, retention_ms=None)
        assert wrong.error_code == ErrorCode.INVALID_REQUEST
        wrong = await replace(talker, TOPIC, "t", version, no_such_thing="1")
        assert wrong.error_code == ErrorCode.INVALID_CONFIG
        assert scene.node.broker.image.topic_configs("t") == {"retention.ms": "9"}
        assert (await replace(talker, TOPIC, "t", version)).error_code == 0
        assert scene.node.broker.image.topic_configs("t") == {}

    on_broker(script)
