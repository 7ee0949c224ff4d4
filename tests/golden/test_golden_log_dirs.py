"""Every version opens the log dirs of Apache Kafka and of earlier versions, and finds their records."""

import json
import shutil
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from moldau.model.units import MiB
from moldau.node.ports.files import SystemDisk
from moldau.records.record import iterate_batches, iterate_records
from moldau.storage.log import Log
from moldau.storage.log_dir import LogDir
from moldau.storage.settings import LogSettings
from moldau.storage.transaction_replay import replay_transactions
from moldau.testing import Broker

HERE = Path(__file__).parent
FOLDERS = sorted(path.parent for path in HERE.glob("*/expected.json"))
NOW_MS = 1_800_000_000_000
WAIT_S = 20.0

Row = tuple[int, bytes | None, bytes | None]

pytestmark = pytest.mark.proves("S2")


@pytest.fixture(params=FOLDERS, ids=lambda folder: folder.name)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A writable copy of a golden log dir."""
    shutil.copytree(request.param, tmp_path / "golden")
    return tmp_path / "golden"


def expected(golden: Path) -> dict[str, list[Row]]:
    """The committed records of partition 0, by topic."""
    rows: dict[str, list[Any]] = json.loads((golden / "expected.json").read_text())
    return {
        topic: [(offset, _bytes(key), _bytes(value)) for offset, key, value in each] for topic, each in rows.items()
    }


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def verify_transaction_indexes(log: Log) -> None:
    """Files written by Apache Kafka or an earlier version agree with the log."""
    segment = log.segment_after(-1)
    while segment is not None:
        replay = log.transaction_replay(segment)
        assert replay is not None
        entries = replay_transactions(SystemDisk(), replay)
        assert entries == replay.entries
        if entries:
            assert segment.aborted.confirm(entries, len(entries))
        segment = log.segment_after(segment.base_offset)


def committed_rows(log: Log) -> list[Row]:
    """Return the committed records, according to the log's transaction index."""
    end_offset = log.producers.last_stable_offset(log.end_offset)
    verify_transaction_indexes(log)
    aborted = log.aborted_transactions(log.start_offset, end_offset)
    rows: list[Row] = []
    for header, batch in iterate_batches(log.read_bytes(log.start_offset, MiB)):
        is_aborted = header.is_transactional and any(
            each.producer_id == header.producer_id and each.first_offset <= header.base_offset <= each.last_offset
            for each in aborted
        )
        if not header.is_control and not is_aborted and header.base_offset < end_offset:
            rows.extend((record.offset, record.key, record.value) for record in iterate_records(batch))
    return rows


@pytest.mark.parametrize("is_clean", [True, False], ids=["cleanly closed", "to be recovered"])
@pytest.mark.parametrize("has_indexes", [True, False], ids=["with indexes", "without"])
def test_golden_log_has_all_committed_records(golden: Path, is_clean: bool, has_indexes: bool) -> None:
    for index in () if has_indexes else (golden / "data").glob("*/*index"):
        if index.suffix != ".txnindex" or not is_clean:  # only recovery rebuilds the transaction index
            index.unlink()
    rows = expected(golden)
    folder = LogDir.open(SystemDisk(), str(golden / "data"))
    found = folder.partitions()
    assert {each.partition.topic for each in found} > rows.keys()
    for each in found:
        assert each.topic_id is not None
        path = folder.folder_of(each.partition)
        log = Log.open(SystemDisk(), path, LogSettings(), now_ms=NOW_MS, is_clean=is_clean)
        if each.partition.topic in rows and each.partition.partition == 0:
            assert committed_rows(log) == rows[each.partition.topic]
        log.close(NOW_MS)
    folder.close()


def test_broker_starts_on_golden_log_dir_and_continues(golden: Path) -> None:
    settings = {"moldau.metrics.listener": "", "auto.create.topics.enable": "false"}
    with Broker(data=golden / "data", settings=settings) as broker:
        for topic, rows in expected(golden).items():
            assert read(broker, topic, len(rows)) == rows
        client = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        topics: Any = client.list_topics(timeout=WAIT_S).topics
        assert len(topics["plain"].partitions) == 3
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True})
        producer.produce("plain", b"more", partition=0)
        assert producer.flush(WAIT_S) == 0
        count = len(expected(golden)["plain"])
        assert read(broker, "plain", 1, first=count) == [(count, None, b"more")]
        broker.restart()
        assert read(broker, "plain", 1, first=count) == [(count, None, b"more")]


def read(broker: Broker, topic: str, count: int, first: int = 0) -> list[Row]:
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "golden", "enable.auto.commit": False}
    consumer = confluent_kafka.Consumer({**settings, "isolation.level": "read_committed", "auto.offset.reset": "error"})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, first)])
    rows: list[Row] = []
    while len(rows) < count:
        message: Any = consumer.poll(WAIT_S)
        assert message is not None, f"{len(rows)} of {count} records of {topic} arrived"
        assert message.error() is None, message.error()
        rows.append((message.offset(), message.key(), message.value()))
    consumer.close()
    return rows
