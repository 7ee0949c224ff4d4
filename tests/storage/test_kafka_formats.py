"""The files are byte for byte those of Apache Kafka."""

import shutil
from pathlib import Path
from struct import pack, unpack

import pytest
from crc32c import crc32c
from storage_bench import FOLDER, NOW_MS, Bench

from moldau.model.ids import TopicId, TopicPartition
from moldau.model.units import KiB
from moldau.node.ports.files import SystemDisk
from moldau.records.control import build_transaction_marker
from moldau.storage import producer_snapshots
from moldau.storage.checkpoints import CorruptCheckpoint, read_offsets, write_offsets
from moldau.storage.log import Log
from moldau.storage.log_dir import decode_id, encode_id
from moldau.storage.settings import LogSettings
from moldau.testing.disk import SimulatedDisk


@pytest.mark.proves("S2")
def test_files_of_a_log_have_kafkas_names() -> None:
    bench = Bench(segment_bytes=1 * KiB)
    for _ in range(4):
        bench.append(b"x" * 400, epoch=1)
    bench.log.close(NOW_MS)
    assert bench.names() == [
        "00000000000000000000.index",
        "00000000000000000000.log",
        "00000000000000000000.timeindex",
        "00000000000000000002.index",
        "00000000000000000002.log",
        "00000000000000000002.snapshot",
        "00000000000000000002.timeindex",
        "00000000000000000004.snapshot",
        "leader-epoch-checkpoint",
    ]


@pytest.mark.proves("S2")
def test_index_entries_have_kafkas_layout() -> None:
    bench = Bench(segment_bytes=1 * KiB, index_interval_bytes=100)
    for number in range(20):
        bench.append(b"x" * 30, b"y" * 30, timestamp=NOW_MS + number)
    bench.log.close(NOW_MS)
    second = bench.log.segment_base_offsets[1]
    size = len(bench.file(f"{second:020d}.log")) // 7
    index = bench.file(f"{second:020d}.index")
    # Kafka indexes a batch once more than the interval lies behind it, by its last offset.
    assert unpack(">ii", index[:8]) == (3, size)
    assert unpack(">ii", index[8:16]) == (5, 2 * size)
    times = bench.file(f"{second:020d}.timeindex")
    assert unpack(">qi", times[:12]) == (NOW_MS + second // 2 + 1, 3)
    last = (bench.log.segment_base_offsets[2] - 1) // 2
    assert unpack(">qi", times[-12:]) == (NOW_MS + last, 2 * last + 1 - second)


@pytest.mark.proves("S2")
def test_aborted_transaction_entry_has_34_bytes() -> None:
    bench = Bench()
    bench.append(b"a", producer_id=9, producer_epoch=1, base_sequence=0, is_transactional=True)
    bench.append_batch(
        build_transaction_marker(
            is_commit=False, producer_id=9, producer_epoch=1, coordinator_epoch=7, timestamp_ms=NOW_MS
        )
    )
    bench.log.close(NOW_MS)
    assert bench.file("00000000000000000000.txnindex") == pack(">hqqqq", 0, 9, 0, 1, 2)


@pytest.mark.proves("S2")
def test_producer_snapshot_has_kafkas_layout() -> None:
    bench = Bench()
    bench.append(b"a", b"b", b"c", producer_id=9, producer_epoch=1, base_sequence=10, timestamp=NOW_MS)
    bench.append(b"d", producer_id=11, producer_epoch=0, base_sequence=0, is_transactional=True, timestamp=NOW_MS + 1)
    bench.log.close(NOW_MS)
    body = (
        pack(">i", 2)
        + pack(">qhiqiqiq", 9, 1, 12, 2, 2, NOW_MS, -1, -1)
        + pack(">qhiqiqiq", 11, 0, 0, 3, 0, NOW_MS + 1, -1, 3)
    )
    assert bench.file("00000000000000000004.snapshot") == pack(">hI", 1, crc32c(body)) + body


@pytest.mark.parametrize("damage", [b"", b"\0\1", pack(">hIi", 2, crc32c(bytes(4)), 0), pack(">hIi", 1, 5, 0)])
def test_invalid_snapshot_is_rejected(damage: bytes) -> None:
    with pytest.raises(producer_snapshots.CorruptSnapshot):
        producer_snapshots.decode(damage)


@pytest.mark.proves("S2")
def test_offset_checkpoints_are_text() -> None:
    disk = SimulatedDisk().mount()
    offsets = {TopicPartition("some.topic", 0): 5, TopicPartition("other", 12): 0}
    write_offsets(disk, "/recovery-point-offset-checkpoint", offsets)
    assert disk.read("/recovery-point-offset-checkpoint") == b"0\n2\nsome.topic 0 5\nother 12 0\n"
    assert read_offsets(disk, "/recovery-point-offset-checkpoint") == offsets
    assert read_offsets(disk, "/absent") == {}


@pytest.mark.parametrize(
    "damage", [b"", b"0", b"1\n0\n", b"0\n2\na 0 5\n", b"0\n1\na 0\n", b"0\n1\na b c\n", b"\xff\xfe", b"0\nx\n"]
)
def test_broken_checkpoint_is_rejected(damage: bytes) -> None:
    disk = SimulatedDisk().mount()
    disk.open("/checkpoint", create=True).pwrite(damage, 0)
    with pytest.raises(CorruptCheckpoint):
        read_offsets(disk, "/checkpoint")


def test_ids_are_formatted_as_in_kafka() -> None:
    topic_id = TopicId(bytes(range(16)))
    assert encode_id(topic_id) == "AAECAwQFBgcICQoLDA0ODw"
    assert decode_id("AAECAwQFBgcICQoLDA0ODw") == topic_id
    for wrong in ("", "AAECAwQFBgcICQoLDA0O", "not base64!", "AAECAwQFBgcICQoLDA0ODwAA"):
        with pytest.raises(ValueError, match="is not an id"):
            decode_id(wrong)


@pytest.mark.proves("S2")
def test_segment_with_a_zero_filled_index_is_opened() -> None:
    """Kafka preallocates the active segment's indexes; a killed broker leaves zeros behind the entries."""
    bench = Bench(index_interval_bytes=100)
    for _ in range(20):
        bench.append(b"x" * 100)
    bench.disk.crash()
    mounted = bench.disk.mount()
    for suffix in (".index", ".timeindex"):
        file = mounted.open(f"{FOLDER}/{0:020d}{suffix}")
        file.truncate(10_000)
        file.close()
    for is_clean in (False, True):
        bench.open(is_clean=is_clean)
        assert [record.offset for record in bench.records()] == list(range(20))


GOLDEN = Path(__file__).parents[1] / "golden/kafka-4.3.1/data"


@pytest.mark.proves("S2")
@pytest.mark.parametrize("name", ["plain-0", "compacted-0", "transactional-0", "__consumer_offsets-0"])
def test_rebuilt_indexes_equal_kafkas_own(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    shutil.copytree(GOLDEN / name, folder)
    for path in folder.glob("*index"):
        path.unlink()
    settings = LogSettings(index_interval_bytes=200)  # as that broker was configured
    log = Log.open(SystemDisk(), str(folder), settings, now_ms=NOW_MS)
    log.close(NOW_MS)
    for path in sorted((GOLDEN / name).glob("*index")):
        assert (folder / path.name).read_bytes() == path.read_bytes()
