"""Apache Kafka's dump tool reads Moldau's segments, indexes, snapshots and metadata log."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from apache_kafka import dump, has_java
from sample_records import BATCH_RECORDS, CODECS, PLAIN, Row, fill_plain

from moldau.testing import Broker

pytestmark = [pytest.mark.skipif(not has_java, reason="needs java and `mvn package`"), pytest.mark.proves("S2")]


@dataclass
class Filled:
    """A data folder that Moldau wrote and has closed."""

    data: Path
    rows: list[Row]

    def files(self, pattern: str) -> list[Path]:
        found = sorted(self.data.glob(pattern))
        assert found, f"there is no {pattern}"
        return found


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    data = tmp_path_factory.mktemp("moldau") / "data"
    settings = {
        "moldau.metrics.listener": "",
        "log.index.interval.bytes": 200,
        "log.segment.bytes": 1_048_576,
    }
    with Broker(data=data, settings=settings) as broker:
        rows = fill_plain(broker.bootstrap_servers)
    return Filled(data, rows)


def test_records_of_every_codec_are_read(filled: Filled) -> None:
    said = dump(*filled.files(f"{PLAIN}-0/*.log"))
    assert said.count("isvalid: true") == len(CODECS)
    assert "isvalid: false" not in said
    for codec in CODECS:
        assert f"compresscodec: {codec}" in said
    found = re.findall(r"^\| offset: (\d+) .*headerKeys: \[codec,null\] key: (.*?)(?: payload: (.*))?$", said, re.M)
    expected = [(str(row.offset), (row.key or b"").decode(), row.value) for row in filled.rows]
    assert [(offset, key, value.encode() or None) for offset, key, value in found] == expected
    assert re.findall(r"baseSequence: (\d+) lastSequence: (\d+)", said) == [("0", str(BATCH_RECORDS - 1))] * len(CODECS)


def test_indexes_pass_the_sanity_check_of_kafka(filled: Filled) -> None:
    indexes = filled.files("*/*.index") + filled.files("*/*.timeindex")
    said = dump(*indexes, options=["--index-sanity-check"])
    assert said.count("passed sanity check") + said.count("is empty") == len(indexes)
    assert said.count("is empty") <= sum(path.stat().st_size == 0 for path in indexes)


def test_index_entries_point_to_their_batches(filled: Filled) -> None:
    said = dump(*filled.files(f"{PLAIN}-0/*.index"), *filled.files(f"{PLAIN}-0/*.timeindex"), options=[])
    assert "Mismatches" not in said
    assert "Found timestamp mismatch" not in said
    assert "out of order" not in said
    assert len(re.findall(r"^offset: \d+ position: \d+$", said, re.M)) == len(CODECS) - 1


def test_producer_snapshots_are_read(filled: Filled) -> None:
    said = dump(filled.files(f"{PLAIN}-0/*.snapshot")[-1], options=[])
    found = re.findall(
        r"producerId: (\d+) producerEpoch: 0 .*firstSequence: 0 lastSequence: (\d+) lastOffset: (\d+)", said
    )
    last_offsets = [(index + 1) * BATCH_RECORDS - 1 for index in range(len(CODECS))]
    assert [(int(sequence), int(offset)) for _, sequence, offset in found] == [
        (BATCH_RECORDS - 1, offset) for offset in last_offsets
    ]
    assert len({producer for producer, _, _ in found}) == len(CODECS)


def test_metadata_log_is_read(filled: Filled) -> None:
    said = dump(*filled.files("__cluster_metadata-0/*.log"), options=["--cluster-metadata-decoder"])
    assert "isvalid: false" not in said
    assert "Could not read" not in said
    for words in (
        "LeaderChange",
        "KRaftVersion",
        "KRaftVoters",
        '"type":"FEATURE_LEVEL_RECORD"',
        '"type":"REGISTER_BROKER_RECORD"',
        '"type":"TOPIC_RECORD","version":0,"data":{"name":"plain"',
        '"type":"CONFIG_RECORD","version":0,"data":{"resourceType":2,"resourceName":"plain","name":"segment.ms"',
        '"type":"PARTITION_RECORD","version":1,"data":{"partitionId":2',
        '"type":"PRODUCER_IDS_RECORD"',
    ):
        assert words in said


def test_metadata_snapshot_and_following_log_are_read(tmp_path: Path) -> None:
    settings = {"moldau.metrics.listener": "", "metadata.log.max.record.bytes.between.snapshots": 1}
    with Broker(data=tmp_path / "data", settings=settings) as broker:
        fill_plain(broker.bootstrap_servers)
    folder = tmp_path / "data/__cluster_metadata-0"
    files = sorted(folder.glob("*.checkpoint"))[-1:] + sorted(folder.glob("*.log"))
    said = dump(*files, options=["--cluster-metadata-decoder"])
    assert "isvalid: false" not in said
    for words in ("SnapshotHeader", '"type":"TOPIC_RECORD"', '"name":"compacted"', "SnapshotFooter"):
        assert words in said
