"""Compare the replicas of stopped brokers file by file: below the high watermark they must be identical.

`python -m moldau_dev.chaos.audit FOLDER FOLDER …`
"""

import hashlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from moldau.records.header import HEADER_BYTES, BatchHeader, checksum, read_header

METADATA: Final = "__cluster_metadata-0"
CHECKPOINT: Final = "replication-offset-checkpoint"
LENGTH_END: Final = 12  # base offset and length; the length does not include them


@dataclass(frozen=True, slots=True)
class ReplicaBatch:
    """One batch of one replica."""

    base_offset: int
    last_offset: int
    epoch: int
    digest: bytes


@dataclass(slots=True)
class ReplicaLog:
    """One replica of a partition."""

    folder: Path
    batches: list[ReplicaBatch] = field(default_factory=list)
    high_watermark: int = 0

    @property
    def end_offset(self) -> int:
        return self.batches[-1].last_offset + 1 if self.batches else 0


@dataclass(slots=True)
class Audit:
    """The amount compared, and the findings."""

    partitions: int = 0
    batches: int = 0
    findings: list[str] = field(default_factory=list)

    def text(self) -> str:
        verdict = "replicas agree" if not self.findings else "REPLICAS DIFFER"
        return "\n".join([f"{verdict}: {self.partitions} partitions, {self.batches} batches compared", *self.findings])


def audit(folders: Sequence[Path]) -> Audit:
    """Compare the replicas of every partition in the log directories of stopped nodes."""
    report = Audit()
    copies: dict[str, list[ReplicaLog]] = {}
    for folder in folders:
        marks = _high_watermarks(folder)
        for partition in sorted(_partitions(folder)):
            copy = ReplicaLog(partition, high_watermark=marks.get(partition.name, 0))
            copies.setdefault(partition.name, []).append(copy)
            report.findings += [f"{partition}: {problem}" for problem in _load(copy)]
    for name, held in copies.items():
        report.partitions += 1
        _compare(name, held, report)
    return report


def _partitions(folder: Path) -> Iterator[Path]:
    for child in folder.iterdir():
        _, dash, index = child.name.rpartition("-")
        if child.is_dir() and dash and index.isdigit() and child.name != METADATA:
            yield child


def _high_watermarks(folder: Path) -> dict[str, int]:
    path = folder / CHECKPOINT
    if not path.exists():
        return {}
    lines = (line.split() for line in path.read_text().splitlines()[2:])
    return {f"{topic}-{index}": int(offset) for topic, index, offset in lines}


def _load(copy: ReplicaLog) -> Iterator[str]:
    """Read all batches of a replica; yield its own problems."""
    expected, epoch = -1, -1
    for path in sorted(copy.folder.glob("*.log")):
        for header, batch in _batches(path.read_bytes()):
            if checksum(batch, 0, len(batch)) != header.crc:
                yield f"the batch at {header.base_offset} has a wrong checksum"
            if expected not in (-1, header.base_offset):
                yield f"offset {header.base_offset} follows {expected - 1}"
            if header.partition_leader_epoch < epoch:
                yield f"epoch {header.partition_leader_epoch} at {header.base_offset} follows epoch {epoch}"
            expected, epoch = header.last_offset + 1, header.partition_leader_epoch
            digest = hashlib.blake2b(batch, digest_size=16).digest()
            copy.batches.append(ReplicaBatch(header.base_offset, header.last_offset, epoch, digest))


def _batches(content: bytes) -> Iterator[tuple[BatchHeader, bytes]]:
    position = 0
    while len(content) - position >= HEADER_BYTES:
        length = int.from_bytes(content[position + 8 : position + LENGTH_END], "big")
        end = position + LENGTH_END + length
        if length < HEADER_BYTES - LENGTH_END or end > len(content):
            return
        yield read_header(content, position), content[position:end]
        position = end


def _compare(name: str, copies: Sequence[ReplicaLog], report: Audit) -> None:
    """Compare the batches of all replicas below the highest high watermark."""
    mark = max(copy.high_watermark for copy in copies)
    first = max(copies, key=lambda copy: copy.end_offset)
    start = max((copy.batches[0].base_offset for copy in copies if copy.batches), default=0)
    committed = [batch for batch in first.batches if start <= batch.base_offset and batch.last_offset < mark]
    report.batches += len(committed)
    for copy in copies:
        if copy is first:
            continue
        held = [batch for batch in copy.batches if start <= batch.base_offset and batch.last_offset < mark]
        if held != committed:
            where = next((a.base_offset for a, b in zip(committed, held, strict=False) if a != b), copy.end_offset)
            report.findings.append(f"{name}: {copy.folder} differs from {first.folder} from offset {where} on")


if __name__ == "__main__":
    result = audit([Path(each) for each in sys.argv[1:]])
    sys.stdout.write(result.text() + "\n")
    sys.exit(1 if result.findings else 0)
