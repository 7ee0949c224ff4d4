"""`moldau log dump` shows the contents of log files and finds corrupt ones."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from moldau.cli.main import app
from moldau.node.ports.files import SystemDisk
from moldau.records.builder import build_batch
from moldau.records.compression import Compression
from moldau.records.control import ControlType, build_control_batch, build_transaction_marker
from moldau.records.header import read_header
from moldau.storage import producer_snapshots, transaction_index
from moldau.storage.log import Log
from moldau.storage.producer_state import AppendedBatch, Producer, Producers
from moldau.storage.settings import LogSettings
from moldau.wire import messages
from moldau.wire.data_records import encode_data, encode_metadata_record

pytestmark = pytest.mark.proves("A4", part="storage and log dump")

SEGMENT = "00000000000000000100.log"


def dump(*arguments: object, code: int = 0) -> list[dict[str, Any]]:
    result = CliRunner().invoke(app, ["log", "dump", "--json", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def segment(folder: Path, *batches: bytes | bytearray, name: str = SEGMENT) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(b"".join(batches))
    return path


def two_records(**options: Any) -> bytearray:
    return build_batch([(5, b"k", b"v", (("h", b"x"),)), (7, None, None, ())], base_offset=100, **options)


def test_dump_shows_position_and_validity_of_batches(tmp_path: Path) -> None:
    first = two_records(compression=Compression.LZ4, producer_id=9, producer_epoch=1, base_sequence=4, leader_epoch=3)
    second = build_batch([(8, None, b"z", ())], base_offset=102)
    one, two = dump(segment(tmp_path, first, second))
    assert one["type"] == "batch"
    assert (one["base_offset"], one["last_offset"], one["count"], one["position"]) == (100, 101, 2, 0)
    assert (one["compression"], one["producer_id"], one["base_sequence"], one["last_sequence"]) == ("lz4", 9, 4, 5)
    assert (one["leader_epoch"], one["base_timestamp"], one["max_timestamp"]) == (3, 5, 7)
    assert one["is_valid"]
    assert (two["position"], two["size_bytes"], two["base_offset"]) == (len(first), len(second), 102)


def test_dump_shows_records_on_request(tmp_path: Path) -> None:
    _, one, two = dump(segment(tmp_path, two_records()), "--records")
    assert one == {
        "file": str(tmp_path / SEGMENT),
        "type": "record",
        "offset": 100,
        "timestamp": 5,
        "key": "k",
        "value": "v",
        "headers": [{"name": "h", "value": "x"}],
    }
    assert (two["offset"], two["key"], two["value"]) == (101, None, None)


def test_dump_finds_a_batch_with_wrong_checksum(tmp_path: Path) -> None:
    batch = two_records()
    batch[-1] ^= 1
    (entry,) = dump(segment(tmp_path, batch), "--records", code=1)
    assert entry["is_valid"] is False


@pytest.mark.parametrize("cut", [1, 11, 30, 60, 70])
def test_dump_finds_a_torn_tail(tmp_path: Path, cut: int) -> None:
    batch = two_records()
    entries = dump(segment(tmp_path, batch, batch[:cut]), code=1)
    assert [each["type"] for each in entries] == ["batch", "torn"]
    assert (entries[1]["position"], entries[1]["size_bytes"]) == (len(batch), cut)


def test_preallocated_space_is_valid(tmp_path: Path) -> None:
    assert len(dump(segment(tmp_path, two_records(), bytes(5000)))) == 1


def test_old_message_set_is_shown_and_skipped(tmp_path: Path) -> None:
    body = struct.pack(">IbbqiI", 0, 1, 0, 5, -1, 0)
    old = struct.pack(">qi", 100, len(body)) + body
    legacy, batch = dump(segment(tmp_path, old, two_records()))
    assert (legacy["type"], legacy["magic"], batch["type"]) == ("message_set", 1, "batch")


def test_transaction_markers_are_decoded(tmp_path: Path) -> None:
    marker = build_transaction_marker(
        is_commit=False, producer_id=7, producer_epoch=0, coordinator_epoch=3, timestamp_ms=1
    )
    batch, control = dump(segment(tmp_path, marker), "-r")
    assert batch["is_control"]
    assert (control["control"], control["data"]) == ("abort", {"coordinator_epoch": 3})


def test_metadata_log_is_decoded_by_its_directory_name(tmp_path: Path) -> None:
    voter = messages.LeaderChangeMessage.Voter(voter_id=1)
    change = encode_data(messages.LeaderChangeMessage(leader_id=1, voters=[voter]), 0)
    topic = encode_metadata_record(messages.TopicRecord(name="orders", topic_id=bytes(range(16))), 0)
    path = segment(
        tmp_path / "__cluster_metadata-0",
        build_control_batch([(ControlType.LEADER_CHANGE, change)], timestamp_ms=1),
        build_batch([(1, None, topic, ())], base_offset=1),
        name="00000000000000000000.log",
    )
    _, leader, _, record = dump(path, "--records")
    assert (leader["control"], leader["data"]["leader_id"]) == ("leader_change", 1)
    assert (record["record"], record["data"]["name"]) == ("TopicRecord", "orders")
    assert record["data"]["topic_id"] == "AAECAwQFBgcICQoLDA0ODw"
    assert dump(path, "-r", "--decoder", "none")[3]["type"] == "record"


def test_undecodable_metadata_record_is_corrupt(tmp_path: Path) -> None:
    path = segment(tmp_path / "__cluster_metadata-0", build_batch([(1, None, b"\x09", ())]))
    _, record = dump(path, "-r", code=1)
    assert record["is_valid"] is False


def test_indexes_are_shown_up_to_preallocated_space(tmp_path: Path) -> None:
    index = tmp_path / "00000000000000000100.index"
    index.write_bytes(struct.pack(">iiii", 4, 0, 9, 4096) + bytes(80))
    assert [(each["offset"], each["position"]) for each in dump(index)] == [(104, 0), (109, 4096)]
    times = tmp_path / "00000000000000000100.timeindex"
    times.write_bytes(struct.pack(">qiqi", 1000, 4, 2000, 9) + bytes(120))
    assert [(each["timestamp"], each["offset"]) for each in dump(times)] == [(1000, 104), (2000, 109)]


def test_unordered_or_torn_index_is_corrupt(tmp_path: Path) -> None:
    index = tmp_path / "00000000000000000000.index"
    index.write_bytes(struct.pack(">iiii", 9, 0, 4, 4096) + b"\x01")
    entries = dump(index, code=1)
    assert [each["is_valid"] for each in entries] == [True, False, False]


def test_producers_aborts_epochs_and_checkpoints_are_shown(tmp_path: Path) -> None:
    producers = Producers()
    producer = Producer(epoch=2, last_timestamp=50, coordinator_epoch=-1, transaction_start=-1)
    producer.batches.append(AppendedBatch(0, 4, 10, 14, 50))
    producers.by_id[77] = producer
    (tmp_path / "00000000000000000015.snapshot").write_bytes(producer_snapshots.encode(producers))
    aborted = transaction_index.AbortedTransaction(77, 1, 5, 6)
    (tmp_path / "00000000000000000000.txnindex").write_bytes(transaction_index.encode([aborted]))
    (tmp_path / "leader-epoch-checkpoint").write_text("0\n1\n3 100\n")
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\n1\nmy topic-x 2 55\n".replace("my topic-x", "t-x"))
    (tmp_path / "meta.properties").write_text("#\ncluster.id=abc\nversion=1\n")
    (tmp_path / "partition.metadata").write_text("version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw")
    (tmp_path / "quorum-state").write_text('{"leaderId":1,"leaderEpoch":4}')
    entries = {(each["type"], each.get("name")): each for each in dump(tmp_path)}
    assert entries["producer", None]["last_offset"] == 14
    assert entries["aborted_transaction", None]["last_stable_offset"] == 6
    assert entries["leader_epoch", None]["start_offset"] == 100
    assert (entries["checkpoint", None]["topic"], entries["checkpoint", None]["offset"]) == ("t-x", 55)
    assert entries["property", "cluster.id"]["value"] == "abc"
    assert entries["property", "topic_id"]["value"] == "AAECAwQFBgcICQoLDA0ODw"
    assert entries["property", "leaderEpoch"]["value"] == 4


@pytest.mark.parametrize("name", ["00000000000000000015.snapshot", "leader-epoch-checkpoint", "quorum-state"])
def test_dump_continues_after_a_corrupt_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x00garbage")
    segment(tmp_path, two_records())
    kinds = sorted(each["type"] for each in dump(tmp_path, code=1))
    assert kinds == ["batch", "broken_file"]


def test_dump_hides_default_values_in_text(tmp_path: Path) -> None:
    path = segment(tmp_path, two_records())
    result = CliRunner().invoke(app, ["log", "dump", str(path), "-r"])
    assert result.exit_code == 0
    head, batch, first, _ = result.stdout.splitlines()
    assert head.startswith(str(path))
    assert "base_offset 100  last_offset 101  count 2" in batch
    assert "producer_id" not in batch
    assert 'key k  value v  headers [{"name": "h", "value": "x"}]' in first


@pytest.mark.parametrize("name", ["nothing.log", "strange.txt"])
def test_dump_rejects_unknown_files(tmp_path: Path, name: str) -> None:
    (tmp_path / "strange.txt").write_text("?")
    result = CliRunner().invoke(app, ["log", "dump", str(tmp_path / name)])
    assert result.exit_code == 1
    assert "no such file" in result.stderr or "not a log file" in result.stderr


def verify(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["log", "verify", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


def write_log(folder: Path) -> Path:
    """A log with two segments, as a broker leaves it."""
    log = Log.open(SystemDisk(), str(folder), LogSettings(index_interval_bytes=100), now_ms=5)
    for number in range(20):
        if number == 10:
            log.roll(5)
        batch = build_batch([(5, b"k", b"v" * 50, ())])
        log.append(memoryview(batch), read_header(batch), 0, 5)
    log.close(5)
    return folder


def test_verify_passes_an_intact_log(tmp_path: Path) -> None:
    write_log(tmp_path / "data/t-0")
    assert "2 segments with" in verify(tmp_path)


@pytest.mark.proves("S10", part="log verify")
def test_verify_names_the_corrupt_offsets_of_a_log(tmp_path: Path) -> None:
    folder = write_log(tmp_path / "data/t-0")
    path = folder / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[len(data) // 2 + 80] ^= 4
    path.write_bytes(data)
    output = verify(tmp_path / "data", code=1)
    assert "checksum mismatch, offsets 5-5" in output
    assert "1 of 2 segments is corrupt" in output
    (found,) = json.loads(verify(folder, "--json", code=1).splitlines()[0])["corrupt"]
    assert (found["first_offset"], found["last_offset"]) == (5, 5)


def test_verify_reports_an_index_that_does_not_match(tmp_path: Path) -> None:
    path = write_log(tmp_path / "t-0") / "00000000000000000000.index"
    path.write_bytes(path.read_bytes()[:-8] + struct.pack(">ii", 9, 1000))
    assert "an index does not match the log" in verify(tmp_path, code=1)


def test_verify_accepts_an_end_that_is_being_written(tmp_path: Path) -> None:
    path = write_log(tmp_path / "t-0") / "00000000000000000010.log"
    path.write_bytes(path.read_bytes()[:-20])
    assert "incomplete batch at" in verify(tmp_path)
