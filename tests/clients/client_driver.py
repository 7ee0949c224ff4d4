"""One interface for every client library, so that each test runs with all of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol

Headers = tuple[tuple[str, bytes | None], ...]
Isolation = Literal["read_committed", "read_uncommitted"]
Acks = Literal[0, 1, "all"]

WAIT_S: Final = 20.0
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True, slots=True)
class Sent:
    """A record as passed to a producer."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None
    partition: int = 0


@dataclass(frozen=True, slots=True)
class Got:
    """A record as returned by a consumer."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class Cluster(NamedTuple):
    """The cluster as described by a client."""

    cluster_id: str
    controller_id: int
    brokers: dict[int, str]


class Rejected(Exception):
    """The broker rejected the request; `code` is the wire code."""

    def __init__(self, code: int, message: object = "") -> None:
        super().__init__(f"error {code}: {message}")
        self.code = code


class KafkaClient(Protocol):
    """The interface that these tests need of a client library. All methods block until they are done."""

    name: str

    def produce(
        self,
        topic: str,
        records: Sequence[Sent],
        *,
        compression: str = "none",
        acks: Acks = "all",
        is_idempotent: bool = False,
        request_bytes_max: int = 1_048_576,
    ) -> list[int]:
        """The offsets of the records; -1 each where the client does not learn them (acks=0)."""

    def consume(
        self,
        topic: str,
        count: int,
        *,
        offsets: Mapping[int, int] | None = None,
        isolation: Isolation = "read_uncommitted",
    ) -> list[Got]:
        """Read `count` records. `offsets` are start offsets by partition; by default, 0 of partition 0."""

    def offset_at(self, topic: str, timestamp_ms: int, partition: int = 0) -> int | None:
        """The first offset at or after a time."""

    def watermarks(self, topic: str, partition: int = 0) -> tuple[int, int]:
        """Return the start and end offset of the partition."""

    def create_topic(self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None: ...

    def delete_topic(self, topic: str) -> None: ...

    def topics(self) -> set[str]: ...

    def partition_count(self, topic: str) -> int: ...

    def create_partitions(self, topic: str, total: int) -> None: ...

    def config(self, topic: str) -> dict[str, str | None]: ...

    def alter_config(self, topic: str, changes: Mapping[str, str]) -> None:
        """Set these configs. Libraries without incremental changes may reset all others."""

    def delete_records(self, topic: str, before_offset: int, partition: int = 0) -> int:
        """Return the new start offset. An offset of -1 deletes all records."""

    def cluster(self) -> Cluster: ...

    def close(self) -> None: ...
