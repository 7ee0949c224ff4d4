"""Levels of Python loggers, described and altered as BROKER_LOGGER configs."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from broker_scene import Scene, Talker, on_broker

from moldau.model.errors import ErrorCode
from moldau.wire import messages as m

BROKER, BROKER_LOGGER = 4, 8
SET, DELETE, APPEND = 0, 1, 2
DYNAMIC_BROKER_LOGGER = 6
NAME = "moldau.broker.network.connection"


@pytest.fixture(autouse=True)
def restored_levels() -> Iterator[None]:
    loggers = [logging.root, logging.getLogger(NAME)]
    levels = [each.level for each in loggers]
    yield
    for each, level in zip(loggers, levels, strict=True):
        each.setLevel(level)


async def describe(talker: Talker, name: str = "1", *keys: str) -> Any:
    resource = m.DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=BROKER_LOGGER, resource_name=name, configuration_keys=list(keys) or None
    )
    return (await talker.ask(4, m.DescribeConfigsRequest(resources=[resource]))).results[0]


async def alter(
    talker: Talker, *changes: tuple[str, int, str | None], name: str = "1", validate_only: bool = False
) -> Any:
    configs = [
        m.IncrementalAlterConfigsRequest.AlterableConfig(name=key, config_operation=operation, value=value)
        for key, operation, value in changes
    ]
    resource = m.IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=BROKER_LOGGER, resource_name=name, configs=configs
    )
    request = m.IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    return (await talker.ask(1, request)).responses[0]


def test_logger_levels_are_described_and_altered_at_run_time() -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        assert (await alter(talker, ("root", SET, "WARN"), (NAME, SET, "TRACE"))).error_code == 0
        levels = {each.name: each for each in (await describe(talker)).configs}
        assert levels["root"].value == "WARN"
        assert levels[NAME].value == "TRACE"
        assert levels["asyncio"].value == "WARN"  # inherited from the root logger
        assert (levels[NAME].config_source, levels[NAME].read_only) == (DYNAMIC_BROKER_LOGGER, False)
        assert logging.getLogger(NAME).isEnabledFor(logging.DEBUG)
        assert [each.name for each in (await describe(talker, "1", NAME)).configs] == [NAME]
        assert (await alter(talker, (NAME, DELETE, None))).error_code == 0
        assert logging.getLogger(NAME).level == logging.NOTSET

    on_broker(script)


def test_validate_only_and_invalid_levels_change_no_logger() -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        before = logging.getLogger(NAME).level
        assert (await alter(talker, (NAME, SET, "ERROR"), validate_only=True)).error_code == 0
        for changes, error in (
            (((NAME, SET, "ERROR"), (NAME + ".no.such", SET, "INFO")), ErrorCode.INVALID_CONFIG),
            (((NAME, SET, "LOUD"),), ErrorCode.INVALID_CONFIG),
            (((NAME, APPEND, "INFO"),), ErrorCode.INVALID_REQUEST),
            ((("root", DELETE, None),), ErrorCode.INVALID_REQUEST),
        ):
            assert (await alter(talker, *changes)).error_code == error
        assert (await alter(talker, (NAME, SET, "ERROR"), name="2")).error_code == ErrorCode.INVALID_REQUEST
        assert (await describe(talker, "2")).error_code == ErrorCode.INVALID_REQUEST
        assert logging.getLogger(NAME).level == before

    on_broker(script)


def test_loggers_and_other_configs_are_altered_by_one_request() -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        request = m.IncrementalAlterConfigsRequest(
            resources=[
                m.IncrementalAlterConfigsRequest.AlterConfigsResource(
                    resource_type=kind,
                    resource_name=name,
                    configs=[m.IncrementalAlterConfigsRequest.AlterableConfig(name=key, value=value)],
                )
                for kind, name, key, value in (
                    (BROKER, "1", "max.connections", "77"),
                    (BROKER_LOGGER, "1", NAME, "ERROR"),
                )
            ]
        )
        responses = (await talker.ask(1, request)).responses
        assert {(each.resource_type, each.error_code) for each in responses} == {(BROKER, 0), (BROKER_LOGGER, 0)}
        assert scene.node.broker.settings.max_connections == 77
        assert logging.getLogger(NAME).level == logging.ERROR

    on_broker(script)
