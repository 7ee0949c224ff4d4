"""Every message round-trips in every version and both directions."""

from typing import Any

import pytest
from wire_samples import Samples, every_api_message, every_data_message

from moldau.wire import codec
from moldau.wire.data_records import decode_data, encode_data

SAMPLES_EACH = 8


def encoded(name: str, version: int, message: Any) -> bytes:
    out: list[Any] = []
    encode = codec.encode_request if name.endswith("Request") else codec.encode_response
    encode(message.API_KEY, version, message, out)
    return b"".join(out)


def decoded(name: str, version: int, key: int, body: bytes) -> Any:
    decode = codec.decode_request if name.endswith("Request") else codec.decode_response
    return decode(key, version, memoryview(body))


@pytest.mark.proves("A1")
def test_every_api_message_round_trips_in_every_version() -> None:
    samples = Samples(1)
    seen = 0
    for name, version in every_api_message():
        for _ in range(SAMPLES_EACH):
            message = samples.message(name, version)
            body = encoded(name, version, message)
            again = decoded(name, version, message.API_KEY, body)
            assert again == message, (name, version)
            assert encoded(name, version, again) == body, (name, version)
            seen += 1
    assert seen > 4000


def test_every_data_message_round_trips_in_every_version() -> None:
    samples = Samples(2)
    for name, version in every_data_message():
        for _ in range(SAMPLES_EACH):
            message = samples.message(name, version)
            body = encode_data(message, version)
            again = decode_data(name, version, body)
            assert again == message, (name, version)
            assert encode_data(again, version) == body, (name, version)


def test_default_message_is_encodable_in_every_version() -> None:
    for name, version in every_api_message():
        message = type(Samples(0).message(name, version))()
        if any(getattr(message, field) is None for field in message.__slots__):
            continue  # null is not allowed in this version
        assert decoded(name, version, message.API_KEY, encoded(name, version, message)) is not None


@pytest.mark.parametrize("size", [1, 60_000])
def test_records_are_views_and_not_copied(size: int) -> None:
    records = bytes(range(256)) * (size // 256 + 1)
    sent = Samples(3).message("ProduceRequest", 9)
    topic, partition = type(sent).TopicProduceData, type(sent).PartitionProduceData
    sent.topic_data = [topic(name="t", partition_data=[partition(index=1, records=records)])]
    out: list[Any] = []
    codec.encode_request(0, 9, sent, out)
    assert any(piece is records for piece in out)
    frame = bytearray(b"".join(out))
    received = codec.decode_request(0, 9, memoryview(frame)).topic_data[0].partition_data[0].records
    assert isinstance(received, memoryview)
    start = frame.index(records)
    frame[start] ^= 0xFF  # visible in the view, so nothing was copied
    assert received[0] == frame[start]


def test_decoder_may_start_in_the_middle_of_a_frame() -> None:
    message = Samples(4).message("HeartbeatRequest", 4)
    body = encoded("HeartbeatRequest", 4, message)
    assert codec.request_decoder(12, 4)(memoryview(b"header" + body), 6) == (message, 6 + len(body))
