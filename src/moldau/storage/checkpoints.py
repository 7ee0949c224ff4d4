"""Small text files in Kafka's checkpoint formats, replaced atomically: write, sync, rename, sync directory."""

from collections.abc import Iterable, Mapping
from typing import Final

from moldau.model.ids import TopicPartition
from moldau.model.ports import Disk
from moldau.storage.files import replace_file

RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
LOG_STARTS: Final = "log-start-offset-checkpoint"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
CLEANED: Final = "cleaner-offset-checkpoint"
LEADER_EPOCHS: Final = "leader-epoch-checkpoint"

_VERSION: Final = 0


class CorruptCheckpoint(ValueError):
    """A checkpoint cannot be parsed; its contents must be derived from the log."""


def encode_lines(lines: Iterable[str]) -> bytes:
    entries = list(lines)
    return "".join(f"{line}\n" for line in [str(_VERSION), str(len(entries)), *entries]).encode()


def decode_lines(data: bytes) -> list[list[str]]:
    """Return the entries of a checkpoint, each split into fields."""
    try:
        version, count, *lines = data.decode().splitlines()
        if int(version) != _VERSION or int(count) != len(lines):
            raise CorruptCheckpoint(f"version {version} with {count} entries, {len(lines)} are there")
    except (UnicodeDecodeError, ValueError) as error:
        raise CorruptCheckpoint(f"not a checkpoint: {error}") from None
    return [line.split() for line in lines]


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    return encode_lines(f"{key.topic} {key.partition} {offset}" for key, offset in offsets.items())


def write_offsets(disk: Disk, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    replace_file(disk, path, encode_offsets(offsets))


def read_offsets(disk: Disk, path: str) -> dict[TopicPartition, int]:
    """Read offsets; a missing file is empty, a corrupt one raises `CorruptCheckpoint`."""
    if not disk.exists(path):
        return {}
    offsets = {}
    for words in decode_lines(disk.read(path)):
        try:
            topic, partition, offset = words
            offsets[TopicPartition(topic, int(partition))] = int(offset)
        except ValueError:
            raise CorruptCheckpoint(f"invalid entry: {' '.join(words)}") from None
    return offsets
