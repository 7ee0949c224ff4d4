"""The hand-written follower fetch codec equals the compiled codec."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from moldau.model.ports import FileSlice
from moldau.wire.codec import request_decoder, response_decoder
from moldau.wire.follower_fetch import (
    COUNT_MAX,
    FETCH,
    NEWEST,
    OLDEST,
    FetchPartition,
    FollowerFetchRequest,
    read_request,
    read_response,
    write_response,
)
from moldau.wire.framing import RequestHeader, frame_request, frame_response, in_one_buffer, parse_request_header
from moldau.wire.messages import FetchRequest, FetchResponse

int32s = some.integers(-(2**31), 2**31 - 1)
int64s = some.integers(-(2**63), 2**63 - 1)
topic_ids = some.binary(min_size=16, max_size=16)
partitions_requested = some.builds(FetchPartition, topic_ids, int32s, int32s, int64s, int32s, int64s, int32s)


def by_topic(requested: list[FetchPartition]) -> list[FetchPartition]:
    """Return the partitions in the order in which a frame names them."""
    first = {each.topic_id: number for number, each in reversed(list(enumerate(requested)))}
    return sorted(requested, key=lambda each: first[each.topic_id])


questions = some.builds(
    FollowerFetchRequest,
    version=some.integers(OLDEST, NEWEST),
    correlation_id=int32s,
    max_wait_ms=int32s,
    min_bytes=int32s,
    max_bytes=int32s,
    session_id=int32s,
    session_epoch=some.integers(1, 2**31 - 1),
    partitions=some.lists(partitions_requested, max_size=6).map(by_topic),
    replica=some.integers(0, 2**31 - 1),
    broker_epoch=int64s,
)


def message_of(request: FollowerFetchRequest) -> Any:
    topics: dict[bytes, list[Any]] = {}
    for each in request.partitions:
        numbers = {name: getattr(each, name) for name in FetchPartition._fields if name != "topic_id"}
        topics.setdefault(each.topic_id, []).append(FetchRequest.FetchPartition(**numbers))
    return FetchRequest(
        replica_state=FetchRequest.ReplicaState(replica_id=request.replica, replica_epoch=request.broker_epoch),
        max_wait_ms=request.max_wait_ms,
        min_bytes=request.min_bytes,
        max_bytes=request.max_bytes,
        session_id=request.session_id,
        session_epoch=request.session_epoch,
        topics=[FetchRequest.FetchTopic(topic_id=each, partitions=requested) for each, requested in topics.items()],
        forgotten_topics_data=[],
    )


def frame_of(request: FollowerFetchRequest, message: Any, client_id: str = "moldau-1") -> bytes:
    header = RequestHeader(FETCH, request.version, request.correlation_id, client_id)
    return b"".join(frame_request(header, message))  # type: ignore[arg-type]


@given(questions, some.text(max_size=9))
def test_request_equals_the_codecs_bytes_and_round_trips(request: FollowerFetchRequest, client_id: str) -> None:
    frame = frame_of(request, message_of(request), client_id)
    assert request.write(request.version, request.correlation_id, client_id.encode()) == frame
    assert read_request(memoryview(frame)[4:]) == request


PLAIN = FollowerFetchRequest(18, 7, 500, 1, 1000, 3, 4, [FetchPartition(b"t" * 16, 0, 1, 2, 1, 0, 99)], 2, 8)


@pytest.mark.parametrize(
    "changes",
    [
        {"session_epoch": 0},
        {"session_epoch": -1},
        {"isolation_level": 1},
        {"rack_id": "r"},
        {"forgotten_topics_data": [FetchRequest.ForgottenTopic(topic_id=b"u" * 16, partitions=[1])]},
        {"replica_state": None},
        {"replica_state": FetchRequest.ReplicaState(replica_id=-1, replica_epoch=5)},
        {"cluster_id": "c"},
    ],
)
def test_request_of_another_form_is_left_to_the_codec(changes: dict[str, Any]) -> None:
    message = message_of(PLAIN)
    for name, value in changes.items():
        setattr(message, name, value)
    assert read_request(memoryview(frame_of(PLAIN, message))[4:]) is None


def test_unknown_tags_are_left_to_the_codec() -> None:
    message = message_of(PLAIN)
    message.topics[0].partitions[0].replica_directory_id = b"d" * 16
    assert read_request(memoryview(frame_of(PLAIN, message))[4:]) is None


@given(questions, some.data())
def test_mutated_request_is_decoded_like_the_codec_or_not_at_all(
    request: FollowerFetchRequest, data: some.DataObject
) -> None:
    frame = bytearray(frame_of(request, message_of(request))[4:])
    for _ in range(data.draw(some.integers(0, 3))):
        frame[data.draw(some.integers(0, len(frame) - 1))] = data.draw(some.integers(0, 255))
    cut = memoryview(frame)[: data.draw(some.integers(0, len(frame)))]
    found = read_request(cut)
    if found is not None:
        header, position = parse_request_header(cut)
        message, _ = request_decoder(FETCH, header.api_version)(cut, position)
        assert (header.api_key, header.api_version, header.correlation_id) == (FETCH, *found[:2])
        read = message_of(found)
        for name in ("replica_state", "max_wait_ms", "min_bytes", "max_bytes", "session_id", "session_epoch"):
            assert getattr(read, name) == getattr(message, name)
        named = [(each.topic_id, of) for each in message.topics for of in each.partitions]
        assert [(each.topic_id, each.partition, each.fetch_offset) for each in found.partitions] == [
            (topic_id, of.partition, of.fetch_offset) for topic_id, of in named
        ]


Partition = FetchResponse.PartitionData
responses = some.dictionaries(
    topic_ids,
    some.lists(
        some.builds(
            Partition,
            partition_index=int32s,
            high_watermark=int64s,
            log_start_offset=int64s,
            records=some.one_of(some.binary(max_size=300), some.just(b"r" * 70_000)),
        ),
        min_size=1,
        max_size=4,
    ),
    max_size=4,
)


def response_of(fetched: dict[bytes, list[Any]], session_id: int) -> Any:
    topic = FetchResponse.FetchableTopicResponse
    responses = [topic(topic_id=each, partitions=partitions) for each, partitions in fetched.items()]
    return FetchResponse(session_id=session_id, responses=responses)


@given(responses, int32s, int32s)
def test_response_equals_the_codecs_bytes_and_round_trips(
    fetched: dict[bytes, list[Any]], correlation_id: int, session_id: int
) -> None:
    pieces = frame_response(FETCH, NEWEST, correlation_id, response_of(fetched, session_id))
    written = write_response(correlation_id, session_id, fetched)
    assert written is not None
    assert b"".join(written) == b"".join(pieces)  # type: ignore[arg-type]
    decoded = read_response(memoryview(in_one_buffer(written)))
    assert decoded is not None
    assert decoded[0] == session_id
    assert [tuple(each) for each in decoded[1]] == [
        (topic_id, each.partition_index, each.high_watermark, each.log_start_offset, each.records)
        for topic_id, partitions in fetched.items()
        for each in partitions
    ]


class Stored:
    """The part of a file that a slice uses."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def pread(self, count: int, position: int) -> bytes:
        return self._data[position : position + count]


def test_file_slices_are_not_copied() -> None:
    stored: Any = Stored(b"0123456789")
    fetched = {
        b"t" * 16: [Partition(partition_index=each, records=FileSlice(stored, each, 3 + each)) for each in (1, 2)]
    }
    plain = {
        b"t" * 16: [Partition(partition_index=each, records=b"0123456789"[each : 3 + 2 * each]) for each in (1, 2)]
    }
    written, expected = write_response(1, 2, fetched), write_response(1, 2, plain)
    assert written is not None
    assert expected is not None
    assert sum(isinstance(each, FileSlice) for each in written) == 2
    assert in_one_buffer(written) == in_one_buffer(expected)
    assert bytes(written[0][:4]) == bytes(expected[0][:4])  # type: ignore[index]


@pytest.mark.proves("H5", part="fencing")
@pytest.mark.parametrize(
    "changes", [{"error_code": 6}, {"diverging_epoch": FetchResponse.EpochEndOffset(epoch=1, end_offset=2)}]
)
def test_response_of_another_form_is_left_to_the_codec(changes: dict[str, Any]) -> None:
    fetched = {b"t" * 16: [Partition(partition_index=1, records=b"", **changes)]}
    assert write_response(1, 2, fetched) is None
    frame = in_one_buffer(frame_response(FETCH, NEWEST, 1, response_of(fetched, 2)))
    assert read_response(memoryview(frame)) is None


def test_counts_beyond_one_byte_are_left_to_the_codec() -> None:
    fetched = {bytes([each]) * 16: [Partition(partition_index=1, records=b"")] for each in range(COUNT_MAX + 1)}
    assert write_response(1, 2, fetched) is None
    partitions = [Partition(partition_index=each, records=b"") for each in range(COUNT_MAX + 1)]
    written = write_response(1, 2, {b"t" * 16: partitions})
    assert written is not None
    assert read_response(memoryview(in_one_buffer(written))) is None
    many = PLAIN._replace(partitions=[PLAIN.partitions[0]._replace(partition=each) for each in range(COUNT_MAX + 1)])
    assert read_request(memoryview(many.write(18, 7, b"c"))[4:]) is None


@given(responses, some.data())
def test_mutated_response_is_decoded_like_the_codec_or_not_at_all(
    fetched: dict[bytes, list[Any]], data: some.DataObject
) -> None:
    frame = bytearray(in_one_buffer(frame_response(FETCH, NEWEST, 1, response_of(fetched, 2))))
    for _ in range(data.draw(some.integers(0, 3))):
        frame[data.draw(some.integers(0, min(len(frame), 400) - 1))] = data.draw(some.integers(0, 255))
    cut = memoryview(frame)[: data.draw(some.integers(max(0, len(frame) - 9), len(frame)))]
    found = read_response(cut)
    if found is not None:
        response, _ = response_decoder(FETCH, NEWEST)(cut, 5)
        assert found[0] == response.session_id
        assert [(each.topic_id, each.partition_index, bytes(each.records)) for each in found[1]] == [
            (topic.topic_id, each.partition_index, bytes(each.records))
            for topic in response.responses
            for each in topic.partitions
        ]
