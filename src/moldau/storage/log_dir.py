"""A node's data folder: whose it is, which partitions are in it, and how the last owner left it.

.lock                               held while a node runs
meta.properties                     cluster, node and directory id
.kafka_cleanshutdown                only there after a clean stop
.boot-id                            in which run of the machine an owner was last up, or that a sync has failed since
.broker-epoch                       under which epoch the last owner was registered
.incarnation                        under which id an owner asked for that, and has not heard of it
recovery-point-offset-checkpoint    and the other checkpoints, see checkpoints.py
<topic>-<partition>/                one log each; partition.metadata holds the topic's id
<topic>-<partition>.<id>-delete/    on its way out
"""

import json
import logging
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from moldau.model.ids import UUID_BYTES, DirectoryId, NodeId, TopicId, TopicPartition
from moldau.model.ports import DirectoryLock, Disk
from moldau.storage.checkpoints import CorruptCheckpoint, read_offsets, write_offsets
from moldau.storage.files import replace_cache, replace_file, sync_directory

LOCK: Final = ".lock"
META_PROPERTIES: Final = "meta.properties"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
BOOT_ID: Final = ".boot-id"
BROKER_EPOCH: Final = ".broker-epoch"
INCARNATION: Final = ".incarnation"
PARTITION_METADATA: Final = "partition.metadata"
DELETE_SUFFIX: Final = "-delete"
STRAY_SUFFIX: Final = "-stray"
FUTURE_SUFFIX: Final = "-future"

_FOLDER_NAME_MAX: Final = 255
_UNKNOWN_BROKER_EPOCH: Final = -1
_FAILED_SYNC: Final = b"a sync has failed"

_log = logging.getLogger(__name__)


class LogDirLocked(Exception):
    """Another node runs on this folder."""


class CorruptMetaProperties(Exception):
    """The folder does not say whose it is in a way that can be trusted."""


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """What `meta.properties` says."""

    cluster_id: str
    node_id: NodeId
    directory_id: DirectoryId

    def encode(self) -> bytes:
        lines = [
            "#",
            f"cluster.id={self.cluster_id}",
            f"directory.id={encode_id(self.directory_id)}",
            f"node.id={self.node_id}",
            "version=1",
        ]
        return "".join(f"{line}\n" for line in lines).encode()

    @classmethod
    def decode(cls, data: bytes) -> "MetaProperties":
        pairs = [line.partition("=") for line in data.decode().splitlines() if line.strip() and line[0] not in "#!"]
        values = {key.strip(): value.strip() for key, _, value in pairs}
        try:
            if values["version"] != "1":
                raise CorruptMetaProperties(f"{META_PROPERTIES} has version {values['version']}, 1 is known")
            directory_id = DirectoryId(decode_id(values["directory.id"]))
            return cls(values["cluster.id"], NodeId(int(values["node.id"])), directory_id)
        except (KeyError, ValueError) as error:
            raise CorruptMetaProperties(f"{META_PROPERTIES} lacks or spoils {error}") from None


class PartitionFolder(NamedTuple):
    """A partition's folder, and the topic id in it (None if the file is missing or broken)."""

    partition: TopicPartition
    topic_id: TopicId | None
    folder: str


class LogDir:
    """An open data folder. Made by `LogDir.open`; `close` gives it back."""

    def __init__(self, disk: Disk, path: str, lock: DirectoryLock) -> None:
        self._disk = disk
        self._lock = lock
        self.path = path

    @classmethod
    def open(cls, disk: Disk, path: str) -> "LogDir":
        """Make the folder if need be, and take it."""
        _make_durable_folder(disk, path)
        try:
            return cls(disk, path, disk.lock(f"{path}/{LOCK}"))
        except BlockingIOError:
            raise LogDirLocked(f"another node runs on {path}: stop it, or choose another folder") from None

    def close(self) -> None:
        self._lock.release()

    # ── Whose it is ──

    def identity(self) -> MetaProperties | None:
        """Whose folder this is, or None if it has never been formatted."""
        path = f"{self.path}/{META_PROPERTIES}"
        return MetaProperties.decode(self._disk.read(path)) if self._disk.exists(path) else None

    def format(self, identity: MetaProperties) -> None:
        replace_file(self._disk, f"{self.path}/{META_PROPERTIES}", identity.encode())

    # ── How it was left ──

    def take_clean_shutdown(self) -> int | None:
        """The broker epoch of a clean stop, or None if the stop was not clean. The marker is gone afterwards."""
        path = f"{self.path}/{CLEAN_SHUTDOWN}"
        if not self._disk.exists(path):
            return None
        epoch = _broker_epoch_in(self._disk.read(path))
        self._disk.unlink(path)
        sync_directory(self._disk, self.path)  # from here on a crash is a crash
        return epoch

    def mark_clean_shutdown(self, broker_epoch: int) -> None:
        """Say that every log was closed and every checkpoint written."""
        replace_file(self._disk, f"{self.path}/{CLEAN_SHUTDOWN}", _marker(broker_epoch))

    def has_lost_power(self) -> bool:
        """Whether the machine went down since an owner last said that it was up."""
        path = f"{self.path}/{BOOT_ID}"
        current = self._disk.boot_id().encode()
        return not (current and self._disk.exists(path) and self._disk.read(path) == current)

    def record_boot(self) -> None:
        """This owner is up, and has made good what a power loss may have cost: one that is killed before has not."""
        if self.has_lost_power():
            replace_file(self._disk, f"{self.path}/{BOOT_ID}", self._disk.boot_id().encode())

    def record_failed_sync(self) -> None:
        """To the next owner this is a power loss, and worse: the kernel may show it what is on no disk, and think that
        it is. Not synced: after a power loss there is nothing left to be shown."""
        try:
            replace_cache(self._disk, f"{self.path}/{BOOT_ID}", _FAILED_SYNC)
        except OSError as error:
            _log.error("%s: that a sync has failed could not be written down: %s", self.path, error)

    def has_failed_sync(self) -> bool:
        """Whether one failed in this run of the machine, and no owner has been up since."""
        path = f"{self.path}/{BOOT_ID}"
        return self._disk.exists(path) and self._disk.read(path) == _FAILED_SYNC

    def record_broker_epoch(self, broker_epoch: int) -> None:
        """For the next owner, if this one is killed. Not synced: after a power loss nobody relies on it."""
        replace_cache(self._disk, f"{self.path}/{BROKER_EPOCH}", _marker(broker_epoch))
        if self._disk.exists(f"{self.path}/{INCARNATION}"):
            self._disk.unlink(f"{self.path}/{INCARNATION}")

    def record_incarnation(self, incarnation_id: bytes) -> None:
        """Under this id the owner is going to be registered. Until `record_broker_epoch` it does nothing else."""
        replace_cache(self._disk, f"{self.path}/{INCARNATION}", encode_id(incarnation_id).encode())

    def pending_incarnation(self) -> bytes | None:
        """The id of an owner that was killed before it heard of its epoch: it may be registered, and this one goes on.

        As another one it would name the epoch before, and be taken for a broker that has lost what it had.
        """
        path = f"{self.path}/{INCARNATION}"
        try:
            return decode_id(self._disk.read(path).decode()) if self._disk.exists(path) else None
        except ValueError:  # torn by a power loss
            return None

    def last_broker_epoch(self) -> int:
        """The epoch of the last owner, -1 if nobody knows it."""
        path = f"{self.path}/{BROKER_EPOCH}"
        return _broker_epoch_in(self._disk.read(path)) if self._disk.exists(path) else _UNKNOWN_BROKER_EPOCH

    def read_checkpoint(self, name: str) -> dict[TopicPartition, int]:
        """Offsets by partition. A broken checkpoint counts as empty: the logs know better."""
        try:
            return read_offsets(self._disk, f"{self.path}/{name}")
        except CorruptCheckpoint as error:
            _log.warning("%s/%s is ignored: %s", self.path, name, error)
            return {}

    def write_checkpoint(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        write_offsets(self._disk, f"{self.path}/{name}", offsets)

    # ── Which partitions are in it ──

    def folder_of(self, partition: TopicPartition) -> str:
        return f"{self.path}/{partition}"

    def partitions(self) -> list[PartitionFolder]:
        """Every partition that has a folder here."""
        found = []
        for name in self._disk.list(self.path):
            partition = parse_partition(name)
            if partition is not None:
                folder = f"{self.path}/{name}"
                found.append(PartitionFolder(partition, self._topic_id_in(folder), folder))
        return found

    def _topic_id_in(self, folder: str) -> TopicId | None:
        path = f"{folder}/{PARTITION_METADATA}"
        if not self._disk.exists(path):
            return None
        try:
            return _decode_partition_metadata(self._disk.read(path))
        except ValueError as error:
            _log.warning("%s is ignored: %s", path, error)
            return None

    def create_partition(self, partition: TopicPartition, topic_id: TopicId) -> str:
        """Make the folder of a partition, with its topic's id; the folder's path. It lasts once `sync` has run."""
        folder = self.folder_of(partition)
        self._disk.make_directory(folder)
        self.write_topic_id(folder, topic_id)
        return folder

    def write_topic_id(self, folder: str, topic_id: TopicId) -> None:
        """Not synced: a folder that has lost it is taken for what its name says."""
        replace_cache(self._disk, f"{folder}/{PARTITION_METADATA}", _encode_partition_metadata(topic_id))

    def sync(self) -> None:
        """Make what was created and renamed here survive a power loss."""
        sync_directory(self._disk, self.path)

    def mark_deleted(self, partition: TopicPartition, unique: str) -> str:
        """Rename a partition's folder out of the way; the path to remove later. `unique` tells reincarnations apart.

        It lasts once `sync` has run.
        """
        return self._set_aside(partition, unique, DELETE_SUFFIX)

    def mark_stray(self, partition: TopicPartition, unique: str) -> str:
        """Set a folder aside that no topic owns, for a person to look at."""
        return self._set_aside(partition, unique, STRAY_SUFFIX)

    def _set_aside(self, partition: TopicPartition, unique: str, suffix: str) -> str:
        ending = f"-{partition.partition}.{unique}{suffix}"
        name = partition.topic[: _FOLDER_NAME_MAX - len(ending)] + ending
        self._disk.rename(self.folder_of(partition), f"{self.path}/{name}")
        return f"{self.path}/{name}"

    def deleted_folders(self) -> list[str]:
        """Folders that a delete has left behind, to be removed."""
        return [f"{self.path}/{name}" for name in self._disk.list(self.path) if name.endswith(DELETE_SUFFIX)]

    def strays(self, topic_ids: Mapping[str, TopicId], kept: Collection[str] = ()) -> list[PartitionFolder]:
        """Partitions whose topic does not exist, or exists anew under another id. Topics in `kept` are not judged."""
        return [
            found
            for found in self.partitions()
            if found.partition.topic not in kept
            and (
                found.partition.topic not in topic_ids or found.topic_id not in (None, topic_ids[found.partition.topic])
            )
        ]


def _make_durable_folder(disk: Disk, path: str) -> None:
    """A new folder is only an entry in its parent, which a power loss may take back unless the parent is synced."""
    missing = []
    while path and not disk.exists(path):
        missing.append(path)
        path = path.rpartition("/")[0]
    for folder in reversed(missing):
        disk.make_directory(folder)
        disk.sync_directory(folder.rpartition("/")[0] or ("/" if folder.startswith("/") else "."))


def parse_partition(name: str) -> TopicPartition | None:
    """The partition a folder name stands for, or None for any other name."""
    if name.endswith((DELETE_SUFFIX, STRAY_SUFFIX, FUTURE_SUFFIX)):
        return None
    topic, dash, number = name.rpartition("-")
    if not topic or not dash or not (number.isascii() and number.isdigit()):
        return None
    return TopicPartition(topic, int(number))


def encode_id(value: bytes) -> str:
    """Sixteen bytes as Kafka prints a UUID: 22 characters of URL-safe base64."""
    return urlsafe_b64encode(value).rstrip(b"=").decode()


def decode_id(text: str) -> bytes:
    try:
        value = urlsafe_b64decode(text + "==")
    except (Base64Error, ValueError):
        raise ValueError(f"{text!r} is no id") from None
    if len(value) != UUID_BYTES:
        raise ValueError(f"{text!r} is no id of {UUID_BYTES} bytes")
    return value


def _encode_partition_metadata(topic_id: TopicId) -> bytes:
    return f"version: 0\ntopic_id: {encode_id(topic_id)}".encode()


def _decode_partition_metadata(data: bytes) -> TopicId:
    values = dict(line.split(": ", 1) for line in data.decode().splitlines() if ": " in line)
    if values.get("version") != "0" or "topic_id" not in values:
        raise ValueError(f"not version 0 with a topic id: {data[:100]!r}")
    return TopicId(decode_id(values["topic_id"].strip()))


def _marker(broker_epoch: int) -> bytes:
    return json.dumps({"version": "0", "broker_epoch": str(broker_epoch)}, separators=(",", ":")).encode()


def _broker_epoch_in(marker: bytes) -> int:
    """The epoch in a clean-shutdown marker. Older brokers left the file empty: the stop was clean all the same."""
    try:
        return int(json.loads(marker)["broker_epoch"])
    except (ValueError, KeyError, TypeError):
        return _UNKNOWN_BROKER_EPOCH
