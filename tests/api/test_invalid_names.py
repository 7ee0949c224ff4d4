"""Names that would crash librdkafka, or that it would truncate, are rejected."""

import subprocess
import sys

import pytest

import moldau
from moldau.api import Connection, Failed
from moldau.api.types import Place

pytestmark = pytest.mark.proves("A2")

UNREACHABLE = "127.0.0.1:1"
INVALID_NAMES = pytest.mark.parametrize("name", ["\udcff", "a\0b"], ids=["not UTF-8", "with a NUL"])


@pytest.fixture
def connection() -> Connection:
    return moldau.connect(UNREACHABLE, log_level=0)


@INVALID_NAMES
def test_invalid_group_or_topic_to_consume_is_rejected(connection: Connection, name: str) -> None:
    for topic, group in (("t", name), (name, "g"), (name, None)):
        with pytest.raises(Failed, match="not UTF-8 or contains NUL"):
            connection.consume(topic, group=group)
    with pytest.raises(Failed, match="not UTF-8 or contains NUL"):
        connection.commit_offset(Place("t", 0, 1), name)


@INVALID_NAMES
def test_invalid_topic_or_header_to_publish_is_rejected(connection: Connection, name: str) -> None:
    for topic, headers in ((name, None), ("t", {name: b"value"})):
        with pytest.raises(Failed, match="not UTF-8 or contains NUL"):
            connection.publish(topic, b"value", headers=headers)
    for change in (connection.create_topic, connection.delete_topic):
        with pytest.raises(Failed, match="not UTF-8 or contains NUL"):
            change(name)


@INVALID_NAMES
def test_invalid_setting_is_rejected_without_its_value(connection: Connection, name: str) -> None:
    for make in (
        lambda: moldau.connect(UNREACHABLE, sasl_password=f"secret{name}"),
        lambda: connection.consume("t", group="g", sasl_password=f"secret{name}"),
    ):
        with pytest.raises(Failed, match=r"sasl\.password is not UTF-8 or contains NUL") as refused:
            make()
        assert "secret" not in str(refused.value)


@pytest.mark.proves("A4", part="groups")
def test_cli_group_that_is_not_utf8_is_a_usage_error() -> None:
    for words in (["t", "--group", "\udcff"], ["\udcff", "--group", "g"]):
        command = [sys.executable, "-m", "moldau.cli.main", "consume", *words, "-b", UNREACHABLE]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (result.returncode, result.stderr.count("\n")) == (2, 1), result.stderr
        assert "is not UTF-8" in result.stderr


def test_log_level_setting_keeps_its_name() -> None:
    moldau.connect(UNREACHABLE, log_level=0).close()  # librdkafka rejects unknown settings
