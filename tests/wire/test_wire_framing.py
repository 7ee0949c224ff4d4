"""Frames and headers, byte by byte."""

from typing import Any

import pytest

from moldau.model.errors import UnsupportedVersion
from moldau.model.ports import FileSlice
from moldau.wire import codec, messages
from moldau.wire.codec import Malformed, Unencodable
from moldau.wire.framing import (
    BODY_UNKNOWN,
    RequestHeader,
    frame_request,
    frame_response,
    parse_request_header,
    parse_response_header,
)


def joined(pieces: list[Any]) -> bytes:
    return b"".join(pieces)


def test_non_flexible_request_header_has_no_tag_section() -> None:
    frame = joined(frame_request(RequestHeader(12, 3, 7, "me"), messages.HeartbeatRequest(group_id="g")))
    assert frame == b"\0\0\0\x17" + b"\0\x0c\0\3\0\0\0\7\0\2me" + b"\0\1g" + b"\0\0\0\0" + b"\0\0" + b"\xff\xff"
    header, position = parse_request_header(memoryview(frame)[4:])
    assert header == RequestHeader(12, 3, 7, "me")
    assert position == 12


def test_flexible_request_header_has_a_two_byte_client_id_length() -> None:
    frame = joined(frame_request(RequestHeader(12, 4, 7, "me"), messages.HeartbeatRequest(group_id="g")))
    assert frame == b"\0\0\0\x16" + b"\0\x0c\0\4\0\0\0\7\0\2me\0" + b"\2g" + b"\0\0\0\0" + b"\1" + b"\0" + b"\0"
    header, position = parse_request_header(memoryview(frame)[4:])
    assert header == RequestHeader(12, 4, 7, "me")
    assert position == 13


def test_client_id_may_be_null() -> None:
    frame = joined(frame_request(RequestHeader(18, 3, 1, None), messages.ApiVersionsRequest()))
    assert frame[4:] == b"\0\x12\0\3\0\0\0\1\xff\xff\0" + b"\1\1\0"
    assert parse_request_header(memoryview(frame)[4:])[0].client_id is None


@pytest.mark.proves("A1", part="invalid requests are rejected")
@pytest.mark.parametrize(("said", "read"), [("Büro".encode("latin-1"), "B?ro"), (b"\xff\xfe", "??")])
def test_client_id_may_be_invalid_utf8(said: bytes, read: str) -> None:
    frame = b"\0\x0c\0\3\0\0\0\7" + len(said).to_bytes(2, "big") + said + b"body"
    header, position = parse_request_header(memoryview(frame))
    assert header == RequestHeader(12, 3, 7, read)
    assert frame[position:] == b"body"
    assert len(read.encode()) <= len(said), "where it is passed on it must fit"


def test_tags_in_a_request_header_are_skipped() -> None:
    header, position = parse_request_header(memoryview(b"\0\x0c\0\4\0\0\0\7\0\2me\1\x09\3abc" + b"body"))
    assert header == RequestHeader(12, 4, 7, "me")
    assert position == 18


@pytest.mark.parametrize(("api_key", "version"), [(18, 5), (18, 77), (18, -1), (0, 2), (9999, 0), (-3, 0)])
def test_header_is_parsed_when_the_body_is_unknown(api_key: int, version: int) -> None:
    start = api_key.to_bytes(2, "big", signed=True) + version.to_bytes(2, "big", signed=True)
    header, position = parse_request_header(memoryview(start + b"\0\0\0\7\0\2me" + b"\xff" * 9))
    assert header == RequestHeader(api_key, version, 7, "me")
    assert position == BODY_UNKNOWN


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\0\x0c\0\4\0\0\0\7\0",
        b"\0\x0c\0\4\0\0\0\7\0\5me",
        b"\0\x0c\0\4\0\0\0\7\0\2me",
        b"\0\x0c\0\4\0\0\0\7\0\2me\1\x09\x80\x01abc",
        b"\0\x0c\0\4\0\0\0\7\0\2me\xff\xff\xff\xff\xff\xff",
        b"\x27\x0f\0\0\0\0\0\7\x7f\xffme",
    ],
    ids=["empty", "short", "long id", "no tags", "long tag", "endless varint", "unknown api, long id"],
)
def test_malformed_header_is_rejected(frame: bytes) -> None:
    with pytest.raises(Malformed):
        parse_request_header(memoryview(frame))


def test_flexible_response_header_has_an_empty_tag_section() -> None:
    assert frame_response(12, 3, 5, messages.HeartbeatResponse(error_code=27)) == [
        b"\0\0\0\x0a" + b"\0\0\0\5" + b"\0\0\0\0" + b"\0\x1b"
    ]
    assert frame_response(12, 4, 5, messages.HeartbeatResponse(error_code=27)) == [
        b"\0\0\0\x0c" + b"\0\0\0\5\0" + b"\0\0\0\0" + b"\0\x1b" + b"\0"
    ]


@pytest.mark.proves("A1")
def test_api_versions_response_header_is_never_flexible() -> None:
    for version in range(5):
        assert codec.response_header_version(18, version) == 0
    key = messages.ApiVersionsResponse.ApiVersion(api_key=18, max_version=4)
    (frame,) = frame_response(18, 3, 5, messages.ApiVersionsResponse(api_keys=[key]))
    assert bytes(frame)[4:8] == b"\0\0\0\5"  # type: ignore[arg-type]
    assert bytes(frame)[8:] == b"\0\0" + b"\2\0\x12\0\0\0\4\0" + b"\0\0\0\0" + b"\0"  # type: ignore[arg-type]


def test_sasl_handshake_and_offset_delete_are_never_flexible() -> None:
    for api_key, version in ((17, 0), (17, 1), (47, 0)):
        assert codec.request_header_version(api_key, version) == 1
        assert codec.response_header_version(api_key, version) == 0


def test_response_header_round_trips() -> None:
    assert parse_response_header(12, 3, memoryview(b"\0\0\0\5rest")) == (5, 4)
    assert parse_response_header(12, 4, memoryview(b"\0\0\0\5\0rest")) == (5, 5)
    assert parse_response_header(12, 4, memoryview(b"\xff\xff\xff\xff\1\7\2abrest")) == (-1, 9)
    assert parse_response_header(18, 4, memoryview(b"\0\0\0\5\0rest")) == (5, 4)
    for short in (b"", b"\0\0\0", b"\0\0\0\5"):
        with pytest.raises(Malformed):
            parse_response_header(12, 4, memoryview(short))


def fetched(records: Any) -> Any:
    response = messages.FetchResponse
    partition = response.PartitionData(partition_index=1, high_watermark=9, records=records)
    return response(responses=[response.FetchableTopicResponse(topic="t", partitions=[partition])])


def test_small_response_is_one_buffer() -> None:
    assert len(frame_response(1, 11, 5, fetched(memoryview(b"r" * 100)))) == 1


def test_large_records_and_file_slices_stay_separate_pieces() -> None:
    class NoFile:
        """Never read here."""

    for records in (memoryview(b"r" * 9000), FileSlice(NoFile(), 40, 90), FileSlice(NoFile(), 40, 9000)):  # type: ignore[arg-type]
        pieces = frame_response(1, 12, 5, fetched(records))
        assert len(pieces) == 3
        assert pieces[1] is records
        length = int.from_bytes(bytes(pieces[0])[:4], "big")  # type: ignore[arg-type]
        assert length == sum(map(len, pieces)) - 4


def test_versions_and_names_are_known_without_loading_a_schema() -> None:
    assert codec.versions(0) == (3, 13)
    assert codec.versions(4) is None
    assert codec.api_name(18) == "ApiVersions"
    assert codec.api_name(-7) == "-7"


def test_unknown_version_is_unsupported() -> None:
    for api_key, version in ((0, 2), (0, 14), (4, 0), (12, -1)):
        with pytest.raises(UnsupportedVersion):
            codec.request_decoder(api_key, version)
        with pytest.raises(UnsupportedVersion):
            codec.response_encoder(api_key, version)
    with pytest.raises(UnsupportedVersion):
        codec.data_encoder("TopicRecord", 1)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (messages.HeartbeatRequest(group_id="g", generation_id=2**31), "format"),
        (messages.HeartbeatRequest(group_id=None), "None"),  # type: ignore[arg-type]
        (messages.HeartbeatRequest(group_id="g" * 40_000), "40000 bytes"),
        (messages.HeartbeatRequest(group_id="\ud800"), "surrogates"),
        (messages.HeartbeatRequest(group_id="g", generation_id="7"), "integer"),  # type: ignore[arg-type]
    ],
    ids=["too large", "null", "too long", "not text", "not a number"],
)
def test_unencodable_value_is_rejected_with_the_message_name(message: Any, why: str) -> None:
    with pytest.raises(Unencodable, match=f"HeartbeatRequest version 4.*{why}"):
        codec.encode_request(12, 4, message, [])


def test_too_long_string_is_rejected_in_non_flexible_versions() -> None:
    with pytest.raises(Unencodable):
        codec.encode_request(12, 3, messages.HeartbeatRequest(group_id="g" * 40_000), [])
    with pytest.raises(Unencodable):
        frame_request(RequestHeader(12, 3, 1, "c" * 40_000), messages.HeartbeatRequest())
