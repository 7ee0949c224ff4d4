"""Bytes, names and values equal those of Apache Kafka's schema files in kafka-python."""

import importlib
import uuid
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from wire_samples import Samples, every_api_message

from moldau.wire import codec
from moldau.wire.catalogue import APIS

SAMPLES_EACH = 8


def subclasses(of: Any) -> Iterator[Any]:
    for each in of.__subclasses__():
        yield each
        yield from subclasses(each)


def load_theirs() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about how it reads its files
        for module in ("admin", "consumer", "metadata", "producer", "sasl"):
            importlib.import_module(f"kafka.protocol.{module}")
        base = importlib.import_module("kafka.protocol.api_message").ApiMessage
    return {each.name: each for each in subclasses(base) if each._class_version is None}


THEIRS = load_theirs()


def known_to_both() -> Iterator[tuple[str, int]]:
    for name, version in every_api_message():
        if name in THEIRS and version <= THEIRS[name].max_version:
            yield name, version


def encoded(name: str, version: int, message: Any) -> bytes:
    out: list[Any] = []
    encode = codec.encode_request if name.endswith("Request") else codec.encode_response
    encode(message.API_KEY, version, message, out)
    return b"".join(out)


@pytest.mark.proves("A1")
def test_bytes_names_and_values_equal_kafkas_schema_files() -> None:
    samples = Samples(5)
    seen = set()
    for name, version in known_to_both():
        for _ in range(SAMPLES_EACH):
            message = samples.message(name, version)
            if name == "ApiVersionsResponse":
                message.error_code = 0  # kafka-python reads an error as version 0, as a client should
            body = encoded(name, version, message)
            theirs = THEIRS[name].decode(body, version=version)
            assert_same(theirs, message, version, name)
            theirs._header = None
            assert bytes(theirs.encode(version=version)) == body, (name, version)
            seen.add((name, version))
    assert len(seen) > 450


def assert_same(theirs: Any, ours: Any, version: int, path: str) -> None:
    for field in theirs._struct._fields:
        if not field.for_version_q(version) or field.name.endswith("authorized_operations"):
            continue  # kafka-python returns a set of bit numbers; its bytes are compared all the same
        mine = getattr(ours, field.name)
        if mine is None and field._tag is not None and field.is_struct():
            continue  # None for an omitted tagged struct; kafka-python returns a struct of defaults
        assert_same_value(getattr(theirs, field.name), mine, version, f"{path}.{field.name}")


def assert_same_value(theirs: Any, ours: Any, version: int, path: str) -> None:
    if hasattr(theirs, "_struct"):
        assert_same(theirs, ours, version, path)
    elif isinstance(theirs, (list, tuple)):
        assert len(theirs) == len(ours), path
        for their, our in zip(theirs, ours, strict=True):
            assert_same_value(their, our, version, path)
    elif isinstance(theirs, uuid.UUID):
        assert theirs.bytes == ours, path
    elif theirs is None and isinstance(ours, bytes):
        assert ours == bytes(16), path  # kafka-python returns None for a zero uuid
    else:
        assert theirs == ours, path


def test_header_versions_equal_kafkas_schema_files() -> None:
    for name, version in known_to_both():
        theirs = THEIRS[name]
        is_flexible = theirs.flexible_version_q(version)
        if theirs.is_request():
            assert codec.request_header_version(theirs.API_KEY, version) == (2 if is_flexible else 1)
        elif theirs.API_KEY != 18:
            assert codec.response_header_version(theirs.API_KEY, version) == (1 if is_flexible else 0)


def test_oracle_covers_the_apis_that_clients_use() -> None:
    assert {*range(4), *range(8, 38), *range(42, 52), 55, 57, 60, 61, 65, 66, 74, 75} <= {
        each.API_KEY for each in THEIRS.values() if each.API_KEY in APIS
    }
