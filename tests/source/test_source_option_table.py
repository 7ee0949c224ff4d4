"""Every option of Spark's Kafka source and sink is known, documented in the guide, and has existing tests."""

import re
from pathlib import Path
from typing import Final

import pytest

from pyspark_moldau.options.source_options import KNOWN

ROOT: Final = Path(__file__).parents[2]
GUIDE: Final = ROOT / "docs/guides/spark.md"
# From the documentation of Spark's connector.
SOURCE: Final = (
    "assign endingOffsets endingOffsetsByTimestamp endingTimestamp failOnDataLoss fetchOffset.numRetries "
    "fetchOffset.retryIntervalMs groupIdPrefix includeHeaders kafkaConsumer.pollTimeoutMs maxOffsetsPerTrigger "
    "maxRecordsPerPartition maxTriggerDelay minOffsetsPerTrigger minPartitions startingOffsets "
    "startingOffsetsByTimestamp startingOffsetsByTimestampStrategy startingTimestamp subscribe subscribePattern"
).split()
BOTH_SIDES: Final = ("kafka.bootstrap.servers", "kafka.group.id", "kafka.isolation.level", "kafka.*", "topic")
ROW: Final = re.compile(r"^\| `([\w.*]+)` \| ((?:`test_\w+`(?:, )?)+) \|", re.MULTILINE)


def table() -> dict[str, list[str]]:
    """Return the tests that the guide names, by option."""
    return {name: re.findall(r"`(\w+)`", tests) for name, tests in ROW.findall(GUIDE.read_text())}


def existing_tests() -> set[str]:
    files = [path for folder in ("tests/source", "tests/sink") for path in (ROOT / folder).glob("test_*.py")]
    return {name for path in files for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)}


@pytest.mark.parametrize("option", [*SOURCE, *BOTH_SIDES])
def test_every_option_of_the_official_connector_has_a_test(option: str) -> None:
    named = table().get(option, [])
    assert named, f"the guide names no test of {option}"
    assert set(named) <= existing_tests()


@pytest.mark.parametrize("option", SOURCE)
def test_every_option_of_the_official_source_is_known(option: str) -> None:
    assert KNOWN[option.lower()] == option
