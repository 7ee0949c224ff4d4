"""Kafka's share group tool works with Moldau, and its dump tool reads the records of share groups."""

import json
import re
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

import pytest
from apache_kafka import dump, has_java
from test_java_client import SHARE_SETTINGS, take_tour

from moldau.testing import Broker

pytestmark = [
    pytest.mark.skipif(not has_java, reason="needs java and `mvn package`"),
    pytest.mark.proves("C8", "S2"),
]

SHARE_SNAPSHOT: Final = 0  # the type of a record of the share coordinator; updates have 1


class DeliveryState(IntEnum):
    """Kafka's numbers."""

    AVAILABLE = 0
    ACKNOWLEDGED = 2
    ARCHIVED = 4


class ShareGroupRecord(IntEnum):
    """The types of the group coordinator's records of share groups."""

    MEMBER_METADATA = 10
    GROUP_METADATA = 11
    TARGET_ASSIGNMENT_METADATA = 12
    TARGET_ASSIGNMENT_MEMBER = 13
    CURRENT_MEMBER_ASSIGNMENT = 14
    STATE_PARTITIONS = 15


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of a broker after the tour of the tool."""
    folder = tmp_path_factory.mktemp("moldau") / "data"
    with Broker(data=folder, settings=SHARE_SETTINGS) as broker:
        take_tour(broker, "4.3.1", "moldau.ShareToolTour", steps_min=4)
    return folder


def records(data: Path, topic: str, decoder: str) -> list[tuple[int, str, Any]]:
    """The records of a coordinator's topic as Kafka decodes them: type, group, and value; None for a tombstone."""
    files = sorted(path for path in data.glob(f"{topic}-*/*.log") if path.stat().st_size)
    said = dump(*files, options=["--print-data-log", "--deep-iteration", decoder])
    assert "isvalid: false" not in said
    found = re.findall(r" key: (\{.*?\})(?: payload: (.*))?$", said, re.M)
    assert len(found) == len(re.findall(r"^\| offset: ", said, re.M)), "some records were not decoded"
    keys = [json.loads(key) for key, _ in found]
    values = [json.loads(value) if value.startswith("{") else None for _, value in found]
    return [
        (int(key["type"]), key["data"]["groupId"], value and value["data"])
        for key, value in zip(keys, values, strict=True)
    ]


def test_share_state_records_are_read(data: Path) -> None:
    found = records(data, "__share_group_state", "--share-group-state-decoder")
    first, *updates = (value for _, group, value in found if group == "tool-left")
    assert (first["snapshotEpoch"], first["leaderEpoch"], first["startOffset"]) == (0, 0, -1)
    (update,) = (each for each in updates if each["deliveryCompleteCount"] == 2 and len(each["stateBatches"]) == 4)
    assert [
        (each["firstOffset"], each["lastOffset"], DeliveryState(each["deliveryState"]), each["deliveryCount"])
        for each in update["stateBatches"]
    ] == [
        (0, 0, DeliveryState.AVAILABLE, 1),
        (1, 1, DeliveryState.ACKNOWLEDGED, 1),
        (2, 2, DeliveryState.ARCHIVED, 1),
        (3, 3, DeliveryState.AVAILABLE, 1),
    ]
    snapshots = [value for kind, group, value in found if (kind, group) == (SHARE_SNAPSHOT, "tool-reset")]
    assert [(each["startOffset"], each.get("deliveryCompleteCount", -1)) for each in snapshots] == [(-1, -1), (0, 0)]
    assert [value for _, group, value in found if group == "tool-deleted"][-1] is None


def test_group_records_are_read(data: Path) -> None:
    found = records(data, "__consumer_offsets", "--offsets-decoder")
    newest = {(kind, group): value for kind, group, value in found}
    assert {kind for kind, _ in newest} == set(ShareGroupRecord)
    assert newest[ShareGroupRecord.GROUP_METADATA, "tool-left"]["epoch"] == 3
    assert {kind for (kind, group), value in newest.items() if group == "tool-deleted" and value} == set()
    (initialized,) = newest[ShareGroupRecord.STATE_PARTITIONS, "tool-left"]["initializedTopics"]
    assert (initialized["topicName"], initialized["partitions"]) == ("tool-left", [0])
    (member,) = (
        value
        for kind, group, value in found
        if (kind, group) == (ShareGroupRecord.MEMBER_METADATA, "tool-left") and value
    )
    assert member["subscribedTopicNames"] == ["tool-left"]
    assert member["clientHost"] == "/127.0.0.1"
