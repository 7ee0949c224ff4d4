"""A node's log directory: its identity, its partitions, and how it was shut down.

.lock                               held while a node runs
meta.properties                     cluster, node and directory id
.kafka_cleanshutdown                present after a clean shutdown
.boot-id                            boot in which an owner last started up, or a failed sync since
.broker-epoch                       broker epoch of the last owner
.incarnation                        incarnation id of a registration without a response yet
recovery-point-offset-checkpoint    and the other checkpoints, see checkpoints.py
<topic>-<partition>/                a log; partition.metadata has the topic id
<topic>-<partition>.<id>-delete/    marked for deletion
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
_DAMAGED_CHARACTERS_MAX: Final = 2
_FAILED_SYNC: Final = b"a sync has failed"

_log = logging.getLogger(__name__)


class LogDirLocked(Exception):
    """Another node uses this directory."""


class CorruptMetaProperties(Exception):
    """The identity of the directory is missing or corrupt."""


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """Contents of `meta.properties`."""

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
                raise CorruptMetaProperties(f"{META_PROPERTIES} has version {values['version']}; only 1 is supported")
            directory_id = DirectoryId(decode_id(values["directory.id"]))
            return cls(values["cluster.id"], NodeId(int(values["node.id"])), directory_id)
        except (KeyError, ValueError) as error:
            raise CorruptMetaProperties(f"{META_PROPERTIES} has a missing or invalid entry: {error}") from None


class PartitionDirectory(NamedTuple):
    """A partition's directory and its topic id (None if the file is missing or corrupt)."""

    partition: TopicPartition
    topic_id: TopicId | None
    folder: str


class LogDir:
    """An open log directory. Created by `LogDir.open`; `close` releases it."""

    def __init__(self, disk: Disk, path: str, lock: DirectoryLock) -> None:
        self._disk = disk
        self._lock = lock
        self.path = path

    @classmethod
    def open(cls, disk: Disk, path: str) -> "LogDir":
        """Create the directory if necessary, and lock it."""
        _create_durable_directory(disk, path)
        try:
            return cls(disk, path, disk.lock(f"{path}/{LOCK}"))
        except BlockingIOError:
            raise LogDirLocked(f"{path} is in use by another node: stop it, or choose another directory") from None

    def close(self) -> None:
        self._lock.release()

    # ── Identity ──

    def identity(self) -> MetaProperties | None:
        """Return the identity, or None if the directory is not formatted."""
        path = f"{self.path}/{META_PROPERTIES}"
        return MetaProperties.decode(self._disk.read(path)) if self._disk.exists(path) else None

    def format(self, identity: MetaProperties) -> None:
        replace_file(self._disk, f"{self.path}/{META_PROPERTIES}", identity.encode())

    # ── Shutdown state ──

    def take_clean_shutdown(self) -> int | None:
        """Return the broker epoch of a clean shutdown, or None. Removes the marker."""
        path = f"{self.path}/{CLEAN_SHUTDOWN}"
        if not self._disk.exists(path):
            return None
        epoch = _broker_epoch_in(self._disk.read(path))
        self._disk.unlink(path)
        sync_directory(self._disk, self.path)  # from here on any stop is unclean
        return epoch

    def mark_clean_shutdown(self, broker_epoch: int) -> None:
        """Mark that every log is closed and every checkpoint written."""
        replace_file(self._disk, f"{self.path}/{CLEAN_SHUTDOWN}", _marker(broker_epoch))

    def has_lost_power(self) -> bool:
        """Whether the machine rebooted since an owner last started up."""
        path = f"{self.path}/{BOOT_ID}"
        current = self._disk.boot_id().encode()
        return not (current and self._disk.exists(path) and self._disk.read(path) == current)

    def record_boot(self) -> None:
        """This owner has started up and recovered from a possible power loss; one killed before that has not."""
        if self.has_lost_power():
            replace_file(self._disk, f"{self.path}/{BOOT_ID}", self._disk.boot_id().encode())

    def record_sync_failure(self) -> None:
        """Record a failed sync. The next owner must treat it as a power loss, and more: the page cache may show data
        that is not on disk. Not synced: after a power loss the page cache is gone."""
        try:
            replace_cache(self._disk, f"{self.path}/{BOOT_ID}", _FAILED_SYNC)
        except OSError as error:
            _log.error("%s: recording a failed sync failed: %s", self.path, error)

    def has_sync_failure(self) -> bool:
        """Whether a sync failed since boot, and no owner has started up since."""
        path = f"{self.path}/{BOOT_ID}"
        return self._disk.exists(path) and self._disk.read(path) == _FAILED_SYNC

    def record_broker_epoch(self, broker_epoch: int) -> None:
        """For the next owner, if this one is killed. Not synced: irrelevant after a power loss."""
        replace_cache(self._disk, f"{self.path}/{BROKER_EPOCH}", _marker(broker_epoch))
        if self._disk.exists(f"{self.path}/{INCARNATION}"):
            self._disk.unlink(f"{self.path}/{INCARNATION}")

    def record_incarnation(self, incarnation_id: bytes) -> None:
        """Record the incarnation id before registration. Until `record_broker_epoch` the owner does nothing else."""
        replace_cache(self._disk, f"{self.path}/{INCARNATION}", encode_id(incarnation_id).encode())

    def pending_incarnation(self) -> bytes | None:
        """Return the id of an owner killed before it received its epoch: it may be registered, so this one continues
        it.

        With a new id it would send the previous epoch and count as a broker that lost records.
        """
        path = f"{self.path}/{INCARNATION}"
        try:
            return decode_id(self._disk.read(path).decode()) if self._disk.exists(path) else None
        except ValueError:  # torn by a power loss
            return None

    def last_broker_epoch(self) -> int:
        """Return the broker epoch of the last owner, -1 if unknown."""
        path = f"{self.path}/{BROKER_EPOCH}"
        return _broker_epoch_in(self._disk.read(path)) if self._disk.exists(path) else _UNKNOWN_BROKER_EPOCH

    def read_checkpoint(self, name: str) -> dict[TopicPartition, int]:
        """Return offsets by partition. A corrupt checkpoint counts as empty: logs can be scanned."""
        try:
            return read_offsets(self._disk, f"{self.path}/{name}")
        except CorruptCheckpoint as error:
            _log.warning("%s/%s: ignoring corrupt checkpoint: %s", self.path, name, error)
            return {}

    def write_checkpoint(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        write_offsets(self._disk, f"{self.path}/{name}", offsets)

    # ── Partitions ──

    def folder_of(self, partition: TopicPartition) -> str:
        return f"{self.path}/{partition}"

    def partitions(self) -> list[PartitionDirectory]:
        """Return every partition with a directory."""
        found = []
        for name in self._disk.list(self.path):
            partition = parse_partition(name)
            if partition is not None:
                folder = f"{self.path}/{name}"
                found.append(PartitionDirectory(partition, self._topic_id_in(folder), folder))
        return found

    def _topic_id_in(self, folder: str) -> TopicId | None:
        path = f"{folder}/{PARTITION_METADATA}"
        if not self._disk.exists(path):
            return None
        try:
            return _decode_partition_metadata(self._disk.read(path))
        except ValueError as error:
            _log.warning("%s: ignoring corrupt partition.metadata: %s", path, error)
            return None

    def create_partition(self, partition: TopicPartition, topic_id: TopicId) -> str:
        """Create a partition's directory with its topic id; returns the path. Durable once `sync` has run."""
        folder = self.folder_of(partition)
        self._disk.make_directory(folder)
        self.write_topic_id(folder, topic_id)
        return folder

    def write_topic_id(self, folder: str, topic_id: TopicId) -> None:
        """Not synced: a directory that lost it is identified by its name."""
        replace_cache(self._disk, f"{folder}/{PARTITION_METADATA}", _encode_partition_metadata(topic_id))

    def sync(self) -> None:
        """Make created and renamed entries durable."""
        sync_directory(self._disk, self.path)

    def mark_deleted(self, partition: TopicPartition, unique: str) -> str:
        """Rename a partition's directory for deletion; returns the path to delete later. `unique` distinguishes
        renames.

        Durable once `sync` has run.
        """
        return self._set_aside(partition, unique, DELETE_SUFFIX)

    def mark_stray(self, partition: TopicPartition, unique: str) -> str:
        """Rename a stray log, for an operator to inspect."""
        return self._set_aside(partition, unique, STRAY_SUFFIX)

    def _set_aside(self, partition: TopicPartition, unique: str, suffix: str) -> str:
        folder = self._unique_folder(partition, unique, suffix)
        self._disk.rename(self.folder_of(partition), folder)
        return folder

    def _unique_folder(self, partition: TopicPartition, unique: str, suffix: str) -> str:
        ending = f"-{partition.partition}.{unique}{suffix}"
        return f"{self.path}/{partition.topic[: _FOLDER_NAME_MAX - len(ending)]}{ending}"

    def create_future(self, partition: TopicPartition, topic_id: TopicId, unique: str) -> str:
        """Create the directory of a log that is copied here from another log dir; returns the path."""
        folder = self._unique_folder(partition, unique, FUTURE_SUFFIX)
        self._disk.make_directory(folder)
        self.write_topic_id(folder, topic_id)
        return folder

    def put_in_place(self, folder: str, partition: TopicPartition) -> str:
        """The copy of the log is complete: give it the log's name. Durable once `sync` has run."""
        self._disk.rename(folder, self.folder_of(partition))
        return self.folder_of(partition)

    def futures(self) -> list[tuple[TopicPartition, str]]:
        """Return the copies that are not complete, with their paths."""
        found = []
        for name in self._disk.list(self.path):
            partition = parse_partition(name.rpartition(".")[0]) if name.endswith(FUTURE_SUFFIX) else None
            if partition is not None:
                found.append((partition, f"{self.path}/{name}"))
        return found

    def deleted_directories(self) -> list[str]:
        """Return directories marked for deletion."""
        return [f"{self.path}/{name}" for name in self._disk.list(self.path) if name.endswith(DELETE_SUFFIX)]

    def strays(self, topic_ids: Mapping[str, TopicId], kept: Collection[str] = ()) -> list[PartitionDirectory]:
        """Return partitions whose topic does not exist or has another id. Skips topics in `kept`."""
        return [
            found
            for found in self.partitions()
            if found.partition.topic not in kept
            and (
                found.partition.topic not in topic_ids
                or not may_be_topic(found.topic_id, topic_ids[found.partition.topic])
            )
        ]


def _create_durable_directory(disk: Disk, path: str) -> None:
    """A new directory is durable once its parent is synced."""
    missing = []
    while path and not disk.exists(path):
        missing.append(path)
        path = path.rpartition("/")[0]
    for folder in reversed(missing):
        disk.make_directory(folder)
        disk.sync_directory(folder.rpartition("/")[0] or ("/" if folder.startswith("/") else "."))


def parse_partition(name: str) -> TopicPartition | None:
    """Parse a partition from a directory name, or None."""
    if name.endswith((DELETE_SUFFIX, STRAY_SUFFIX, FUTURE_SUFFIX)):
        return None
    topic, dash, number = name.rpartition("-")
    if not topic or not dash or not (number.isascii() and number.isdigit()):
        return None
    return TopicPartition(topic, int(number))


def encode_id(value: bytes) -> str:
    """Encode 16 bytes as Kafka prints a UUID: 22 characters of URL-safe base64."""
    return urlsafe_b64encode(value).rstrip(b"=").decode()


def decode_id(text: str) -> bytes:
    try:
        value = urlsafe_b64decode(text + "==")
    except (Base64Error, ValueError):
        raise ValueError(f"{text!r} is not an id") from None
    if len(value) != UUID_BYTES:
        raise ValueError(f"{text!r} is not an id of {UUID_BYTES} bytes")
    return value


def may_be_topic(found: TopicId | None, topic_id: TopicId) -> bool:
    """Whether a directory with this id in its file may belong to the topic: the id is equal, unknown, or damaged.

    Ids are random: two that differ in one or two of 22 characters are the same id, and the file is corrupt. Taking it
    for another topic's would replace the log by an empty one.
    """
    if found is None or found == topic_id:
        return True
    pairs = zip(encode_id(found), encode_id(topic_id), strict=True)
    return sum(one != other for one, other in pairs) <= _DAMAGED_CHARACTERS_MAX


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
    """Return the epoch in a clean shutdown marker; older brokers wrote an empty file."""
    try:
        return int(json.loads(marker)["broker_epoch"])
    except (ValueError, KeyError, TypeError):
        return _UNKNOWN_BROKER_EPOCH
