"""The replica audit finds every kind of difference below the high watermark."""

from pathlib import Path

import pytest

from moldau.records.builder import build_batch
from moldau.records.header import write_offsets
from moldau_dev.chaos.audit import audit


def batch(base_offset: int, epoch: int = 0, value: bytes = b"x") -> bytes:
    made = bytearray(build_batch([(1, None, value, ())]))
    write_offsets(made, 0, base_offset, epoch)
    return bytes(made)


def write(folder: Path, batches: list[bytes], high_watermark: int) -> Path:
    partition = folder / "t-0"
    partition.mkdir(parents=True)
    (partition / "00000000000000000000.log").write_bytes(b"".join(batches))
    (folder / "replication-offset-checkpoint").write_text(f"0\n1\nt 0 {high_watermark}\n")
    (folder / "__cluster_metadata-0").mkdir()
    return folder


def test_equal_replicas_have_no_finding(tmp_path: Path) -> None:
    batches = [batch(0), batch(1), batch(2, epoch=3)]
    result = audit([write(tmp_path / node, batches, 3) for node in "ab"])
    assert (result.partitions, result.batches, result.findings) == (1, 3, [])


def test_replicas_may_differ_above_the_high_watermark(tmp_path: Path) -> None:
    one = write(tmp_path / "a", [batch(0), batch(1, value=b"y")], 1)
    another = write(tmp_path / "b", [batch(0)], 1)
    assert audit([one, another]).findings == []


@pytest.mark.parametrize(
    ("other", "finding"),
    [
        ([batch(0), batch(1, value=b"y")], "differs from"),
        ([batch(0)], "differs from"),
        ([batch(0), batch(1, epoch=2)], "differs from"),
        ([batch(0, epoch=5), batch(1)], "follows epoch 5"),
        ([batch(0), batch(2)], "offset 2 follows 0"),
        ([batch(0), batch(1)[:-1] + b"?"], "checksum"),
    ],
    ids=["bytes", "end", "epoch", "epochs go back", "gap", "checksum"],
)
def test_different_replica_is_found(tmp_path: Path, other: list[bytes], finding: str) -> None:
    folders = [write(tmp_path / "a", [batch(0), batch(1)], 2), write(tmp_path / "b", other, 2)]
    result = audit(folders)
    assert any(finding in each for each in result.findings), result.text()
    assert "DIFFER" in result.text()
