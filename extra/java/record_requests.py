"""Requests about records: produce, fetch, offsets; valid and invalid ones. The order matters."""

import struct
import time
from collections.abc import Callable
from typing import Any, Final

from protocol_requests import Request, Scene

from moldau.records.builder import build_batch
from moldau.records.compression import Compression
from moldau.records.header import checksum
from moldau.wire.messages import (
    DeleteRecordsRequest,
    FetchRequest,
    InitProducerIdRequest,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
    ProduceRequest,
)

NOW_MS: Final = int(time.time() * 1000)
DAY_MS: Final = 86_400_000
IDS_FROM: Final = 13
UNKNOWN_ID: Final = b"?" * 16
NO_ID: Final = bytes(16)
CRC_AT, ATTRIBUTES_AT, MAGIC_AT, DELTA_AT, COUNT_AT = 17, 21, 16, 23, 57
EMPTY_PARTITION: Final = 1
MISSING_PARTITION: Final = 9


# -- batches


def batch(*values: bytes, timestamp: int = NOW_MS, **fields: Any) -> bytearray:
    return build_batch([(timestamp, None, value, ()) for value in values], **fields)


def patched(position: int, form: str, value: int) -> Callable[[], bytearray]:
    """A batch of two records with one field changed and the checksum right."""

    def build() -> bytearray:
        data = batch(b"a", b"b")
        struct.pack_into(form, data, position, value)
        struct.pack_into(">I", data, CRC_AT, checksum(data, 0, len(data)))
        return data

    return build


def with_a_bad_checksum() -> bytearray:
    data = batch(b"a")
    data[-1] ^= 1
    return data


def of_magic(magic: int) -> Callable[[], bytearray]:
    def build() -> bytearray:
        data = batch(b"a")
        data[MAGIC_AT] = magic
        return data

    return build


# -- produce


def produce(
    name: str,
    records: Callable[[], Any],
    *,
    versions: range = range(3, 14),
    partition: int = 0,
    acks: int = -1,
    is_known: bool = True,
) -> Request:
    def request(scene: Scene) -> ProduceRequest:
        topic = ProduceRequest.TopicProduceData(partition_data=[_data(partition, records())])
        if scene.version >= IDS_FROM:
            topic.topic_id = scene.topic_id if is_known else UNKNOWN_ID
        else:
            topic.name = scene.topic if is_known else "nowhere"
        return ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=[topic])

    # Kafka sets the log start offset with some errors only; Moldau does not name the invalid record.
    return Request(f"produce: {name}", versions, request, frozenset({"log_start_offset", "record_errors"}))


def _data(index: int, records: Any) -> ProduceRequest.PartitionProduceData:
    return ProduceRequest.PartitionProduceData(index=index, records=records)


def idempotent(name: str, epoch: int, sequence: int, versions: range = range(3, 14)) -> list[Request]:
    """One request per version, because each has its own producer."""
    return [
        produce(
            f"idempotent, {name}",
            lambda version=version: batch(  # type: ignore[misc]
                b"a", producer_id=70_000 + version, producer_epoch=epoch, base_sequence=sequence
            ),
            versions=range(version, version + 1),
        )
        for version in versions
    ]


SOME_RECORDS: Final = produce("some records", lambda: batch(*[b"%d" % number for number in range(10)]))

PRODUCE: Final = [
    produce("a batch", lambda: batch(b"a", b"b")),
    *(produce(f"{codec.name}", lambda codec=codec: batch(b"x" * 100, compression=codec)) for codec in Compression),  # type: ignore[misc]
    produce("an unknown topic", lambda: batch(b"a"), is_known=False),
    produce("an unknown partition", lambda: batch(b"a"), partition=MISSING_PARTITION),
    produce("acks that do not exist", lambda: batch(b"a"), acks=5),
    produce("no records", lambda: b""),
    produce("a bad checksum", with_a_bad_checksum),
    produce("an old format", of_magic(1)),
    produce("a format to come", of_magic(3)),
    produce("a last offset delta that is too high", patched(DELTA_AT, ">i", 5)),
    produce("a count that is too low", patched(COUNT_AT, ">i", 1)),
    produce("a control batch", patched(ATTRIBUTES_AT, ">h", 0x20)),
    produce("two batches", lambda: batch(b"a") + batch(b"b")),
    produce("a cut batch", lambda: batch(b"a")[:-3]),
    produce("half a header", lambda: batch(b"a")[:30]),
    produce("too many bytes", lambda: batch(b"x" * 1_100_000)),
    produce("the far future", lambda: batch(b"x", timestamp=NOW_MS + 2 * DAY_MS)),
    produce("no time", lambda: batch(b"x", timestamp=-1)),
    produce("1970", lambda: batch(b"x", timestamp=5)),
    *idempotent("first", 0, 0),
    *idempotent("the same again", 0, 0),
    *idempotent("a gap", 0, 5),
    *idempotent("the next", 0, 1),
    *idempotent("a new epoch that does not begin", 2, 3),
    *idempotent("a new epoch", 2, 0),
    *idempotent("an old epoch", 1, 0),
    *idempotent("no sequence", 2, -1),
]


# -- fetch


def fetch(name: str, offset: int, *, versions: range = range(4, 18), is_known: bool = True, **fields: Any) -> Request:
    def request(scene: Scene) -> FetchRequest:
        partition = FetchRequest.FetchPartition(
            partition=fields.get("partition", 0),
            fetch_offset=offset,
            partition_max_bytes=fields.get("partition_max_bytes", 1 << 20),
            current_leader_epoch=fields.get("current_leader_epoch", -1),
        )
        topic = FetchRequest.FetchTopic(partitions=[partition])
        if scene.version >= IDS_FROM:
            topic.topic_id = scene.topic_id if is_known else UNKNOWN_ID
        else:
            topic.topic = scene.topic if is_known else "nowhere"
        return FetchRequest(
            max_wait_ms=fields.get("max_wait_ms", 50),
            max_bytes=1 << 20,
            isolation_level=fields.get("isolation_level", 0),
            session_id=fields.get("session_id", 0),
            session_epoch=fields.get("session_epoch", -1),
            topics=[topic],
        )

    # An empty list and null mean the same, and Kafka uses both.
    return Request(f"fetch: {name}", versions, request, frozenset({"aborted_transactions"}))


FETCH: Final = [
    fetch("from the start", 0),
    fetch("from the middle", 3),
    fetch("behind the end", 1_000_000),
    fetch("before the start", -1),
    fetch("far before the start", -5),
    fetch("an unknown topic", 0, is_known=False),
    fetch("an unknown partition", 0, partition=MISSING_PARTITION),
    fetch("an empty partition", 0, partition=EMPTY_PARTITION),
    fetch("the leader's epoch", 0, current_leader_epoch=0),
    fetch("a later epoch", 0, current_leader_epoch=9, versions=range(9, 18)),
    fetch("less than a batch", 0, partition_max_bytes=1),
    fetch("no bytes at all", 0, partition_max_bytes=0),
    fetch("what is committed", 0, isolation_level=1),
    fetch("a session that is not there", 0, session_id=123, session_epoch=1, versions=range(7, 18)),
    fetch("no session but an epoch", 0, session_epoch=5, versions=range(7, 18)),
    fetch("a new session", 0, session_epoch=0, versions=range(7, 18)),
    fetch("without waiting", 0, max_wait_ms=-1),
]


# -- offsets


def list_offset(name: str, timestamp: int, *, topic: str = "", partition: int = 0, **fields: Any) -> Request:
    def request(scene: Scene) -> ListOffsetsRequest:
        requested = ListOffsetsRequest.ListOffsetsPartition(
            partition_index=partition,
            timestamp=timestamp,
            current_leader_epoch=fields.get("current_leader_epoch", -1),
        )
        topics = [ListOffsetsRequest.ListOffsetsTopic(name=topic or scene.topic, partitions=[requested])]
        return ListOffsetsRequest(replica_id=-1, isolation_level=fields.get("isolation_level", 0), topics=topics)

    return Request(f"offset: {name}", range(1, 11), request)


LIST_OFFSETS: Final = [
    *(list_offset(f"at {time_ms}", time_ms) for time_ms in (-1, -2, -3, -4, -5, -6, -7, 0, 5, NOW_MS, NOW_MS + DAY_MS)),
    list_offset("of an unknown topic", -1, topic="nowhere"),
    list_offset("of an unknown partition", -1, partition=MISSING_PARTITION),
    list_offset("in a later epoch", -1, current_leader_epoch=9),
    *(
        list_offset(f"at {time_ms} in an empty partition", time_ms, partition=EMPTY_PARTITION)
        for time_ms in (-1, -2, -4)
    ),
    list_offset("by time in an empty partition", 5, partition=EMPTY_PARTITION),
    list_offset("of the newest in an empty partition", -3, partition=EMPTY_PARTITION),
    list_offset("of the end of what is committed", -1, isolation_level=1),
]


def epoch_end(name: str, epoch: int, *, current: int = -1, topic: str = "", partition: int = 0) -> Request:
    def request(scene: Scene) -> OffsetForLeaderEpochRequest:
        requested = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
            partition=partition, current_leader_epoch=current, leader_epoch=epoch
        )
        topics = [OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=topic or scene.topic, partitions=[requested])]
        return OffsetForLeaderEpochRequest(replica_id=-1, topics=topics)

    return Request(f"epoch: {name}", range(2, 5), request)


EPOCHS: Final = [
    epoch_end("the first", 0),
    epoch_end("the first, known to be the leader's", 0, current=0),
    epoch_end("request with a later epoch", 0, current=9),
    epoch_end("one that has not been", 9),
    epoch_end("none", -1),
    epoch_end("of an unknown topic", 0, topic="nowhere"),
    epoch_end("of an unknown partition", 0, partition=MISSING_PARTITION),
    epoch_end("of an empty partition", 0, partition=EMPTY_PARTITION),
]


def delete_records(name: str, offset: int, *, topic: str = "", partition: int = 0) -> Request:
    def request(scene: Scene) -> DeleteRecordsRequest:
        requested = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=partition, offset=offset)
        topics = [DeleteRecordsRequest.DeleteRecordsTopic(name=topic or scene.topic, partitions=[requested])]
        return DeleteRecordsRequest(timeout_ms=5000, topics=topics)

    return Request(f"delete records: {name}", range(3), request)


DELETE_RECORDS: Final = [
    delete_records("up to one", 3),
    delete_records("that are gone", 0),
    delete_records("behind the end", 1_000_000),
    delete_records("before the start", -2),
    delete_records("of an unknown topic", 0, topic="nowhere"),
    delete_records("of an unknown partition", 0, partition=MISSING_PARTITION),
    delete_records("of an empty partition", -1, partition=EMPTY_PARTITION),
    delete_records("all", -1),
]


def producer_id(name: str, versions: range, **fields: Any) -> Request:
    return Request(
        f"producer id: {name}", versions, lambda _: InitProducerIdRequest(transaction_timeout_ms=1000, **fields)
    )


PRODUCER_IDS: Final = [
    producer_id("a new one", range(6), transactional_id=None),
    producer_id("one without its epoch", range(3, 6), transactional_id=None, producer_id=5),
    producer_id("an epoch without its id", range(3, 6), transactional_id=None, producer_epoch=3),
    producer_id("one to go on with", range(3, 6), transactional_id=None, producer_id=5, producer_epoch=3),
]
