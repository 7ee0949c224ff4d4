"""Extreme setting values and batch headers: the broker survives everything that it accepts."""

import asyncio
import struct
from collections.abc import Iterator
from typing import Any

from broker_scene import Scene, Talker, batch, fetch, list_offset, on_broker, produce

from moldau.broker.configs.declarations import BROKER_SETTINGS, TOPIC_SETTINGS
from moldau.model.errors import ErrorCode
from moldau.model.settings import Kind, Scope, Setting
from moldau.records.header import write_checksum
from moldau.wire import messages as m

TOPIC, BROKER, SET, DELETE = 2, 4, 0, 1
NUMBERS = ("-1", "0", "1", "2", "1024", str(2**31 - 1), str(2**63 - 1), "0.0", "0.5", "1.0")
WORDS = ("true", "false", "", "compact", "delete", "compact,delete", "zstd", "gzip", "producer", "LogAppendTime")
UNDERSTOOD = {
    ErrorCode.NONE,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.INVALID_RECORD,
    ErrorCode.NOT_ENOUGH_REPLICAS,
}


def values_of(setting: Setting) -> tuple[str, ...]:
    is_number = setting.kind in (Kind.INT, Kind.LONG, Kind.SHORT, Kind.DOUBLE)
    return NUMBERS if is_number else WORDS


async def change(talker: Talker, kind: int, name: str, key: str, operation: int, value: str | None) -> int:
    config = m.IncrementalAlterConfigsRequest.AlterableConfig(name=key, config_operation=operation, value=value)
    resource = m.IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=kind, resource_name=name, configs=[config]
    )
    response = await talker.ask(1, m.IncrementalAlterConfigsRequest(resources=[resource]))
    code: int = response.responses[0].error_code
    return code


async def use(talker: Talker, topic: str) -> set[int]:
    """Produce, fetch and list offsets; return the error codes."""
    now_ms = 1_760_000_000_000
    codes = {(await produce(talker, topic, batch(b"x" * 300, key=b"k", timestamp=now_ms))).error_code for _ in range(3)}
    codes.add((await list_offset(talker, topic, now_ms)).error_code)
    first = (await list_offset(talker, topic, -2)).offset
    codes.add((await fetch(talker, topic, first)).error_code)
    return codes


def test_extreme_topic_configs_break_nothing() -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        topics: dict[str, tuple[str, str]] = {}
        await scene.create("t0")
        for setting in TOPIC_SETTINGS.values():
            for value in values_of(setting):
                name = f"t{len(topics)}"
                if await change(talker, TOPIC, name, setting.name, SET, value) == 0:
                    topics[name] = setting.name, value
                    codes = await use(talker, name)
                    assert codes <= UNDERSTOOD, (setting.name, value, codes)
                    await scene.create(f"t{len(topics)}")
        assert len(topics) > 100
        await asyncio.sleep(400)  # retention and compaction run
        scene.host.crash()
        await scene.restart()
        talker = await scene.connect()
        for name, what in topics.items():
            codes = await use(talker, name)
            assert codes <= UNDERSTOOD, (what, codes)

    on_broker(script, settings=["log.cleaner.backoff.ms=5000", "log.retention.check.interval.ms=5000"])


def test_extreme_broker_configs_do_not_stop_the_broker() -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        await scene.create("t", cleanup_policy="compact", segment_bytes=1024)
        accepted = 0
        for setting in BROKER_SETTINGS.values():
            if setting.scope is Scope.STATIC:
                continue
            for value in values_of(setting):
                if await change(talker, BROKER, "1", setting.name, SET, value) == 0:
                    accepted += 1
                    await asyncio.sleep(0.2)
                    codes = await use(talker, "t")
                    assert codes <= UNDERSTOOD, (setting.name, value, codes)
            await change(talker, BROKER, "1", setting.name, DELETE, None)
        assert accepted > 100

    on_broker(script)


FIELDS = {  # position in a batch header, and struct format
    "leader epoch": (12, ">i"),
    "base timestamp": (27, ">q"),
    "max timestamp": (35, ">q"),
    "producer id": (43, ">q"),
    "producer epoch": (51, ">h"),
    "base sequence": (53, ">i"),
}


def extremes(form: str) -> Iterator[int]:
    bits = 8 * struct.calcsize(form)
    yield from (0, 1, -1, -2, 2 ** (bits - 1) - 1, 2 ** (bits - 1) - 2, -(2 ** (bits - 1)))


def strange_batches() -> Iterator[tuple[Any, bytearray]]:
    for one, (place, form) in FIELDS.items():
        for other, (other_place, other_form) in FIELDS.items():
            for value in extremes(form):
                for other_value in extremes(other_form) if other > one else (0,):
                    made = batch(b"value", key=b"k")
                    struct.pack_into(form, made, place, value)
                    if other > one:
                        struct.pack_into(other_form, made, other_place, other_value)
                    write_checksum(made, 0, len(made))
                    yield (one, value, other, other_value), made


def test_extreme_batch_headers_are_accepted_or_rejected_and_survive() -> None:
    async def script(scene: Scene) -> None:
        known = UNDERSTOOD | {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.INVALID_PRODUCER_EPOCH}
        for name, configs in (("t", {}), ("u", {"message_timestamp_after_max_ms": 2**63 - 1, "segment_bytes": 4096})):
            await scene.create(name, **configs)
            talker = await scene.connect()
            taken = 0
            for what, made in strange_batches():
                code = (await produce(talker, name, made)).error_code
                assert code in known, (what, code)
                taken += code == 0
            assert taken > 50
            end = (await list_offset(talker, name, -1)).offset
            assert end == taken
            for timestamp in (-3, 0, 1, 2**62, 2**63 - 1):
                assert (await list_offset(talker, name, timestamp)).error_code == 0
        scene.host.crash()
        await scene.restart()
        talker = await scene.connect()
        for name in ("t", "u"):
            assert (await list_offset(talker, name, -1)).offset > 50
            assert (await produce(talker, name, batch(b"after"))).error_code == 0
        await asyncio.sleep(400)

    on_broker(script, settings=["log.retention.check.interval.ms=60000"])
