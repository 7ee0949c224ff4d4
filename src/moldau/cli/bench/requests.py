"""Requests of the benchmarks, encoded once: produce frames with whole batches, fetch frames for each offset."""

import time
from dataclasses import dataclass
from typing import Any, Final

from moldau.cli.bench.streams import Address, NoResponse, connected
from moldau.client.errors import error_of
from moldau.model.errors import NotLeaderOrFollower, UnknownTopicOrPartition
from moldau.model.ids import NO_EPOCH, NO_OFFSET
from moldau.model.units import MiB
from moldau.records.builder import build_batch
from moldau.wire.codec import decode_response
from moldau.wire.framing import RequestHeader, frame_request, parse_response_header
from moldau.wire.messages import FetchRequest, Message, ProduceRequest

# Versions that old and new brokers support; they identify topics by name.
PRODUCE_VERSION: Final = 7
FETCH_VERSION: Final = 11
CLIENT_ID: Final = "moldau-bench"
PRODUCE_TIMEOUT_MS: Final = 30_000
RESPONSE_BYTES_MAX: Final = 64 * MiB
LED_S_MAX: Final = 10.0
LED_CHECK_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Shape:
    """The record count of a batch, and the value size of its records."""

    records: int
    value_bytes: int

    def batch(self, *, key_count: int = 0, first_key: int = 0) -> bytes:
        """Build the batch. With `key_count`, the keys repeat cyclically."""
        now_ms = time.time_ns() // 1_000_000
        value = bytes(number % 251 for number in range(self.value_bytes))
        keys = [b"key-%012d" % ((first_key + each) % key_count) if key_count else None for each in range(self.records)]
        return bytes(build_batch([(now_ms, key, value, ()) for key in keys]))


def produce_frame(topic: str, partition: int, batch: bytes, acks: int = -1) -> bytes:
    topic_data = ProduceRequest.TopicProduceData(
        name=topic, partition_data=[ProduceRequest.PartitionProduceData(index=partition, records=batch)]
    )
    return frame_of(PRODUCE_VERSION, ProduceRequest(acks=acks, timeout_ms=PRODUCE_TIMEOUT_MS, topic_data=[topic_data]))


def fetch_frame(
    topic: str, partition: int, offset: int, bytes_max: int, *, wait_ms: int = 0, is_committed_only: bool = False
) -> bytes:
    """Encode a fetch from `offset`, of at most `bytes_max`; the broker waits up to `wait_ms` for the first byte."""
    wanted = FetchRequest.FetchPartition(
        partition=partition,
        current_leader_epoch=NO_EPOCH,
        fetch_offset=offset,
        log_start_offset=NO_OFFSET,
        partition_max_bytes=bytes_max,
    )
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=bytes_max,
        isolation_level=int(is_committed_only),
        session_id=0,
        session_epoch=-1,  # no fetch session: every request is complete
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=[wanted])],
        rack_id="",
    )
    return frame_of(FETCH_VERSION, request)


def frame_of(version: int, request: Message) -> bytes:
    header = RequestHeader(request.API_KEY, version, 0, CLIENT_ID)
    return b"".join(frame_request(header, request))  # type: ignore[arg-type]  # it has no file slices


@dataclass(frozen=True, slots=True)
class Probe:
    """The response to a request that is sent once before the load, and its size."""

    reply_bytes: int
    response: Any


def probe(address: Address, frame: bytes) -> Probe:
    """Send a produce or fetch request; raise if its response has an error. A new topic may need a moment to be led."""
    deadline_s = time.monotonic() + LED_S_MAX
    while True:
        found = try_once(address, frame)
        try:
            _raise_on_error(found.response)
        except (NotLeaderOrFollower, UnknownTopicOrPartition):
            if time.monotonic() > deadline_s:
                raise
            time.sleep(LED_CHECK_S)
        else:
            return found


def try_once(address: Address, frame: bytes) -> Probe:
    """Send a request once; return its response, which may have an error."""
    api_key, version = int.from_bytes(frame[4:6], "big"), int.from_bytes(frame[6:8], "big")
    with connected(address) as connection:
        connection.sendall(frame)
        reply = _receive_frame(connection)
    _, position = parse_response_header(api_key, version, reply)
    return Probe(len(reply) + 4, decode_response(api_key, version, reply[position:]))


def _receive_frame(connection: Any) -> memoryview:
    size = int.from_bytes(_receive(connection, 4), "big")
    if size > RESPONSE_BYTES_MAX:
        raise NoResponse(f"a response of {size} bytes; is this a Kafka port?")
    return memoryview(_receive(connection, size))


def _receive(connection: Any, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        part = connection.recv(min(size - len(received), MiB))
        if not part:
            raise NoResponse("the server closed the connection on the first request; see its log")
        received += part
    return bytes(received)


def _raise_on_error(response: Any) -> None:
    for topic in response.responses:
        for partition in getattr(topic, "partition_responses", None) or topic.partitions:
            if partition.error_code:
                raise error_of(partition.error_code)
