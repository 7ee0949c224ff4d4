"""Hostile bytes: every decoder returns a message or raises Malformed, in bounded memory."""

import contextlib
import random
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from wire_mutants import Mutator
from wire_samples import Samples, every_api_message, every_data_message

from moldau.wire import codec, messages
from moldau.wire.catalogue import APIS, schema_of
from moldau.wire.codec import Decoder, Malformed
from moldau.wire.data_records import decode_group_record, decode_metadata_record, encode_data, encode_metadata_record
from moldau.wire.framing import RequestHeader, frame_request, parse_request_header, parse_response_header
from moldau.wire.limits import REQUEST_ELEMENTS_MAX, TAGS_MAX
from moldau.wire.primitives import uvarint

MUTANTS_PER_MESSAGE = 250
MEMORY_PER_BYTE_MAX = 40
MEMORY_FIXED_BYTES = 20_000
FETCH_12_UP_TO_ITS_TAGS = bytes(25) + b"\1\1\1"  # numbers, no topics, no forgotten ones, no rack


def decoder_of(name: str, version: int) -> Decoder:
    key = getattr(messages, name).API_KEY
    return codec.request_decoder(key, version) if name.endswith("Request") else codec.response_decoder(key, version)


def body_of(name: str, version: int, message: Any) -> bytes:
    out: list[Any] = []
    encoder = codec.request_encoder if name.endswith("Request") else codec.response_encoder
    encoder(message.API_KEY, version)(message, out)
    return b"".join(out)


@pytest.mark.proves("A1")
def test_mutated_messages_are_decoded_or_malformed() -> None:
    samples, mutator = Samples(11), Mutator(12)
    tried = rejected = 0
    for name, version in every_api_message():
        decode = decoder_of(name, version)
        original = body_of(name, version, samples.message(name, version))
        for _ in range(MUTANTS_PER_MESSAGE):
            mutant = mutator.mutant(original)
            tried += 1
            try:
                _, end = decode(memoryview(mutant), 0)
            except Malformed:
                rejected += 1
            else:
                assert end <= len(mutant)
    assert tried >= 100_000
    assert rejected > tried // 4  # the mutants are really rejected


@pytest.mark.proves("A1")
def test_mutated_frames_are_parsed_or_malformed() -> None:
    samples, mutator = Samples(13), Mutator(14)
    for name, version in every_api_message():
        if not name.endswith("Request"):
            continue
        message = samples.message(name, version)
        header = RequestHeader(message.API_KEY, version, 7, "client")
        frame = b"".join(bytes(piece) for piece in frame_request(header, message))[4:]  # type: ignore[arg-type]
        for _ in range(60):
            read_frame(memoryview(mutator.mutant(frame)))


def read_frame(frame: memoryview) -> None:
    try:
        header, position = parse_request_header(frame)
        if position >= 0:
            codec.request_decoder(header.api_key, header.api_version)(frame, position)
    except Malformed:
        pass


def test_mutated_internal_records_are_decoded_or_malformed() -> None:
    samples, mutator = Samples(15), Mutator(16)
    for name, version in every_data_message():
        original = encode_data(samples.message(name, version), version)
        for _ in range(60):
            mutant = mutator.mutant(original)
            expect_malformed_or_nothing(lambda: codec.data_decoder(name, version)(memoryview(mutant), 0))  # noqa: B023
    framed = encode_metadata_record(samples.message("PartitionRecord", 2), 2)
    for _ in range(3000):
        mutant = mutator.mutant(framed)
        expect_malformed_or_nothing(lambda: decode_metadata_record(mutant))  # noqa: B023
        expect_malformed_or_nothing(lambda: decode_group_record(mutant, mutant))  # noqa: B023


def expect_malformed_or_nothing(attempt: Callable[[], object]) -> None:
    with contextlib.suppress(Malformed):
        attempt()


def test_random_bytes_are_malformed_for_every_decoder() -> None:
    noises = [bytes([byte]) * 2000 for byte in (0, 1, 2, 0x7F, 0x80, 0xFF)] + [random.Random(17).randbytes(2000)]
    for name, version in every_api_message():
        for noise in noises:
            for size in (0, 1, 3, 2000):
                expect_malformed_or_nothing(lambda: decoder_of(name, version)(memoryview(noise[:size]), 0))  # noqa: B023
    for noise in noises:
        for size in range(40):
            read_frame(memoryview(noise[:size]))
            expect_malformed_or_nothing(lambda: parse_response_header(1, 12, memoryview(noise[:size])))  # noqa: B023


def test_memory_is_proportional_to_the_frame() -> None:
    """The densest frames there are: each array filled with the smallest elements that its schema allows."""
    for api in APIS.values():
        for name in (f"{api.name}Request", f"{api.name}Response"):
            for frame in densest_frames(name, api.versions.last):
                decode = decoder_of(name, api.versions.last)
                tracemalloc.start()
                kept = decode(memoryview(frame), 0)
                _, peak_bytes = tracemalloc.get_traced_memory()
                tracemalloc.stop()
                assert peak_bytes < MEMORY_PER_BYTE_MAX * len(frame) + MEMORY_FIXED_BYTES, (
                    name,
                    len(frame),
                    peak_bytes,
                )
                del kept


def densest_frames(name: str, version: int) -> list[bytes]:
    schema, top = schema_of(name), getattr(messages, name)
    frames = []
    for each in schema.root.at(version):
        if not each.is_array or each.tagged.has(version):
            continue
        message = fill_nulls(top())
        numbers = {"string": "", "bytes": b"", "uuid": bytes(16), "int8": 100}
        element = fill_nulls(getattr(top, each.kind)()) if each.struct else numbers.get(each.kind, 100_000)
        element = 1000 if each.kind == "int16" else element
        setattr(message, each.name, [element] * 1000)
        frames.append(body_of(name, version, message))
    return frames


def fill_nulls(message: Any) -> Any:
    """An empty value costs the reader more than a null."""
    top, _, nested = type(message).__qualname__.partition(".")
    schema = schema_of(top)
    for each in (schema.nested[nested] if nested else schema.root).fields:
        if getattr(message, each.name) is None and (each.is_array or not each.struct):
            setattr(message, each.name, () if each.is_array else {"string": ""}.get(each.kind, b""))
    return message


@pytest.mark.parametrize("count", [2**31 - 1, 2**24, 5000])
def test_count_beyond_the_frame_allocates_nothing(count: int) -> None:
    body = count.to_bytes(4, "big") + bytes(200)  # Metadata version 1: an array of topics
    tracemalloc.start()
    with pytest.raises(Malformed, match="elements"):
        codec.decode_request(3, 1, memoryview(body))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 50_000


def test_arrays_of_a_request_share_one_element_budget() -> None:
    partitions = (REQUEST_ELEMENTS_MAX // 2).to_bytes(4, "big") + bytes(4 * (REQUEST_ELEMENTS_MAX // 2))
    topic = b"\0\1t" + partitions
    body = (2).to_bytes(4, "big") + topic + topic  # OffsetFetch version 1: topics, each with an array of partitions
    with pytest.raises(Malformed, match="elements"):
        codec.decode_request(9, 1, memoryview(b"\0\1g" + body))


def test_unknown_tagged_fields_are_skipped() -> None:
    plain = codec.decode_request(12, 4, memoryview(b"\2g\0\0\0\1\2m\0\0"))
    tagged = codec.decode_request(12, 4, memoryview(b"\2g\0\0\0\1\2m\0\2\x4d\3abc\x80\x01\0"))
    assert tagged == plain


def test_too_many_tags_are_malformed_in_body_and_header() -> None:
    section = uvarint(TAGS_MAX + 1) + b"\x4d\0" * (TAGS_MAX + 1)
    with pytest.raises(Malformed, match="tagged fields"):
        codec.decode_request(12, 4, memoryview(b"\2g\0\0\0\1\2m\0" + section))
    with pytest.raises(Malformed, match="tagged fields"):
        codec.decode_request(1, 12, memoryview(FETCH_12_UP_TO_ITS_TAGS + section))
    with pytest.raises(Malformed, match="tagged fields"):
        parse_request_header(memoryview(b"\0\x0c\0\4\0\0\0\1\xff\xff" + section))


def test_known_tagged_field_must_have_its_announced_size() -> None:
    cluster_id = b"\4abc"
    start = FETCH_12_UP_TO_ITS_TAGS
    right = codec.decode_request(1, 12, memoryview(start + b"\1\0\4" + cluster_id))
    assert right.cluster_id == "abc"
    with pytest.raises(Malformed, match="size"):
        codec.decode_request(1, 12, memoryview(start + b"\1\0\5" + cluster_id + b"\0"))
    with pytest.raises(Malformed, match="size"):
        codec.decode_request(1, 12, memoryview(start + b"\1\0\3" + cluster_id + b"\0"))


def test_trailing_bytes_are_malformed() -> None:
    with pytest.raises(Malformed, match="trailing bytes"):
        codec.decode_request(12, 4, memoryview(b"\2g\0\0\0\1\2m\0\0!"))
    with pytest.raises(Malformed, match="trailing bytes"):
        codec.decode_response(12, 0, memoryview(b"\0\0!"))


def test_invalid_utf8_is_malformed() -> None:
    with pytest.raises(Malformed):
        codec.decode_request(12, 4, memoryview(b"\2\xff\0\0\0\1\2m\0\0"))


def test_null_in_a_non_nullable_field_is_malformed() -> None:
    with pytest.raises(Malformed, match="group_id is null"):
        codec.decode_request(12, 4, memoryview(b"\0\0\0\0\1\2m\0\0"))


def test_string_beyond_the_end_is_malformed_even_as_the_last_field() -> None:
    with pytest.raises(Malformed, match="truncated"):
        codec.decode_request(17, 1, memoryview(b"\0\5PLAI"))  # SaslHandshake: one string and nothing after it
    with pytest.raises(Malformed):
        codec.request_decoder(17, 1)(memoryview(b"\0\5PLAI"), 0)
