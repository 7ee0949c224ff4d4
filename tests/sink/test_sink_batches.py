"""Rows encoded as record batches, read back with the general record parser."""

import random
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest

from moldau.client.partitioner import murmur2, partition_for_key
from moldau.model.units import MiB
from moldau.records.builder import assemble_batch
from moldau.records.header import HEADER_BYTES
from moldau.records.record import Record, iterate_records
from moldau.records.varint import encode_varint
from pyspark_moldau.codec.byte_rows import ByteRowBuilder, varint_column, varints
from pyspark_moldau.codec.columns import HEADERS
from pyspark_moldau.codec.encoder import ROWS_MAX
from pyspark_moldau.codec.partitioner import hashes, partitions_of
from pyspark_moldau.options.sink_options import SinkOptions, sink_stream_options
from pyspark_moldau.sink.batch_builder import BATCH, BatchBuilder, chunks
from pyspark_moldau.sink.records import to_records
from pyspark_moldau.sink.sender import DeliveryFailed
from pyspark_moldau.sink.staged_batches import count_rows

NOW_MS: Final = 1_700_000_000_000
PARTITIONS: Final = {"out": 3, "other": 1, "dead": 1}


def options(**given: str) -> SinkOptions:
    named = {name.replace("__", "."): value for name, value in given.items()}
    return sink_stream_options({"kafka.bootstrap.servers": "here:9092", **named})


def batched(columns: dict[str, Any], chosen: SinkOptions) -> list[dict[str, Any]]:
    rows = to_records(pa.RecordBatch.from_pydict(columns), chosen)
    made = list(BatchBuilder(chosen, PARTITIONS.__getitem__, lambda: NOW_MS).batches(rows))
    assert all(each.schema == BATCH for each in made)
    return [batch for each in made for batch in each.to_pylist()]


def read(batch: dict[str, Any]) -> list[Record]:
    """Return the records of a batch, with offsets from 0."""
    whole = assemble_batch(
        batch["body"],
        base_offset=0,
        leader_epoch=-1,
        attributes=batch["codec"],
        last_offset_delta=batch["rows"] - 1,
        base_timestamp=batch["base_timestamp"],
        max_timestamp=batch["max_timestamp"],
        producer_id=1,
        producer_epoch=0,
        base_sequence=0,
        records_count=batch["rows"],
    )
    records = list(iterate_records(bytes(whole)))
    assert [each.offset for each in records] == list(range(batch["rows"]))
    assert max(each.timestamp for each in records) == batch["max_timestamp"]
    return records


def maybe(chance: random.Random, make: Callable[[], Any], ignore_step: float = 0.2) -> Any:
    return None if chance.random() < ignore_step else make()


def any_rows(chance: random.Random, count: int) -> dict[str, Any]:
    def random_bytes(most: int) -> bytes:
        return chance.randbytes(chance.choice([0, 1, 63, 64, chance.randrange(most)]))

    def headers() -> list[dict[str, Any]]:
        return [{"key": "h" * chance.randrange(70), "value": maybe(chance, lambda: random_bytes(90))} for _ in range(3)]

    return {
        "key": [maybe(chance, lambda: random_bytes(200)) for _ in range(count)],
        "value": [maybe(chance, lambda: random_bytes(9_000)) for _ in range(count)],
        "headers": pa.array([maybe(chance, headers, 0.6) for _ in range(count)], HEADERS),
        "timestamp": pa.array(
            [maybe(chance, lambda: chance.randrange(2 * NOW_MS) * 1000, 0.1) for _ in range(count)],
            pa.timestamp("us", "UTC"),
        ),
    }


def plain(headers: Sequence[Any] | None) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((each["key"], each["value"]) for each in headers or ())


@pytest.mark.proves("D2")
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_rows_round_trip_through_their_batches(codec: str) -> None:
    for seed in range(20):
        columns = any_rows(random.Random(seed), 1 + seed * 11)
        settings = {"kafka__compression__type": codec, "kafka__batch__size": "20000"}
        chosen = options(topic="other", includeTimestamp="true", **settings)
        found = [record for batch in batched(columns, chosen) for record in read(batch)]
        assert [each.key for each in found] == columns["key"]
        assert [each.value for each in found] == columns["value"]
        assert [each.headers for each in found] == [plain(each) for each in columns["headers"].to_pylist()]
        wanted = columns["timestamp"].cast(pa.int64()).to_pylist()
        assert [each.timestamp for each in found] == [NOW_MS if each is None else each // 1000 for each in wanted]


@pytest.mark.proves("D2")
def test_rows_are_partitioned_like_java_clients_and_keep_their_order() -> None:
    chance = random.Random(5)
    keys = [b"%d" % chance.randrange(40) for _ in range(2_000)]
    columns = {"key": keys, "value": [b"%d" % number for number in range(2_000)]}
    seen: dict[int, list[bytes | None]] = {}
    for batch in batched(columns, options(topic="out", kafka__batch__size="2000")):
        assert len(batch["body"]) < 2_000
        seen.setdefault(batch["partition"], []).extend(each.value for each in read(batch))
    for partition, values in seen.items():
        assert values == [b"%d" % number for number, key in enumerate(keys) if partition_for_key(key, 3) == partition]
    assert sum(map(len, seen.values())) == 2_000


def test_rows_without_a_key_are_spread_evenly_in_long_runs() -> None:
    batches = batched({"value": ["x"] * 30_000}, options(topic="out"))
    counts = {number: sum(each["rows"] for each in batches if each["partition"] == number) for number in range(3)}
    assert sorted(counts.values())[0] >= 9_000
    assert len(batches) == 3


@pytest.mark.proves("D2")
def test_partition_column_overrides_the_key_and_topics_are_separated() -> None:
    columns = {
        "topic": ["out", "other", "out", "out"],
        "key": ["k"] * 4,
        "value": list("1234"),
        "partition": pa.array([2, None, 2, 1], pa.int32()),
    }
    found = {(each["topic"], each["partition"]): [r.value for r in read(each)] for each in batched(columns, options())}
    assert found == {("out", 1): [b"4"], ("out", 2): [b"1", b"3"], ("other", 0): [b"2"]}


def test_row_of_a_missing_partition_fails_or_becomes_a_dead_letter() -> None:
    columns = {"value": list("12"), "partition": pa.array([0, 3], pa.int32())}
    with pytest.raises(DeliveryFailed, match="out-3 was not delivered: the partition does not exist"):
        batched(columns, options(topic="out"))
    good, dead = batched(columns, options(topic="out", deadLetterTopic="dead"))
    assert (good["topic"], good["rows"], dead["topic"], dead["rows"]) == ("out", 1, "dead", 1)
    assert read(dead)[0].headers[0] == ("moldau.reason", b"column 'partition' is 3, but out has 3 partitions")


def test_batch_exceeds_its_size_limit_only_for_one_larger_row() -> None:
    values = [bytes(size) for size in (100, 5_000, 300_000, 10, 600_000, 20)]
    batches = batched({"value": values}, options(topic="other"))
    assert [each["rows"] for each in batches] == [4, 1, 1]
    small = batched({"value": [b""] * 25_000}, options(topic="other"))
    assert [each["rows"] for each in small] == [ROWS_MAX, ROWS_MAX, 5_000]
    assert all(len(each["body"]) + HEADER_BYTES < 524_288 for each in small)


def test_small_chunks_are_merged_and_large_ones_split() -> None:
    chosen = options()
    small = [
        each
        for name in ("out", "other") * 5
        for each in to_records(pa.RecordBatch.from_pydict({"topic": [name], "value": ["1"]}), chosen)
    ]
    (whole,) = chunks(small)
    assert whole["topic"].to_pylist() == ["out", "other"] * 5
    large = pa.RecordBatch.from_pydict({"topic": ["out"] * 90, "value": [bytes(MiB - 200)] * 90})
    pieces = list(chunks(to_records(large, chosen)))
    assert [piece.num_rows for piece in pieces] == [4] * 22 + [2]


def test_staged_batches_are_counted_in_records() -> None:
    rows = to_records(pa.RecordBatch.from_pydict({"value": ["x"] * 7}), options(topic="out"))
    (made,) = BatchBuilder(options(topic="out"), PARTITIONS.__getitem__, lambda: NOW_MS).batches(rows)
    assert (made.num_rows, count_rows(made)) == (1, 7)


@pytest.mark.proves("D2")
def test_key_hashes_equal_those_of_the_java_clients() -> None:
    chance = random.Random(3)
    keys = [chance.randbytes(length) for length in range(150)] * 3
    chance.shuffle(keys)
    column = pa.array([b"before", *keys], pa.binary()).slice(1)
    assert partitions_of(column, 11).tolist() == [partition_for_key(key, 11) for key in keys]
    assert partitions_of(pa.array([b"", b""], pa.binary()), 5).tolist() == [partition_for_key(b"", 5)] * 2
    for length in (1, 4, 10, 64, 65):
        alike = [chance.randbytes(length) for _ in range(50)]
        column = pa.array([b"before", *alike, b"behind"], pa.binary()).slice(1, 50)
        assert partitions_of(column, 11).tolist() == [partition_for_key(key, 11) for key in alike]
    found = hashes(np.frombuffer(b"abcdef", np.uint8), np.array([0, 4]), np.array([3, 2]))
    assert found.tolist() == [murmur2(b"abc"), murmur2(b"ef")]


def test_varints_of_every_size_are_encoded_as_in_the_protocol() -> None:
    edges = [sign * (1 << bits) + more for bits in range(63) for sign in (1, -1) for more in (-1, 0, 1)]
    random_bytes, taken = varints(np.array(edges, np.int64))
    found = [bytes(row[:count]) for row, count in zip(random_bytes, taken.tolist(), strict=True)]
    assert found == [encode_varint(number) for number in edges]


@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_varints_are_padded_with_zeros(zeros: int) -> None:
    numbers = [0, -1, 63, 64, 8191, 8192, 16_383, 16_384, 1 << 40]
    found = varint_column(np.array(numbers, np.int64), zeros).to_pylist()
    assert found == [encode_varint(number) + bytes(zeros) for number in numbers]


@pytest.mark.parametrize("largest", [16_383, 16_384])
def test_rows_are_joined_in_order_and_null_adds_nothing(largest: int) -> None:
    order, numbers = [2, 0, 1], [-1, 5, largest]
    texts = pa.array([b"before", b"a", None, b"ccc"], pa.binary()).slice(1)
    byte_rows = ByteRowBuilder()
    byte_rows.add_varints(np.array(numbers), zeros_after=1)
    byte_rows.add(texts, np.array(order))
    byte_rows.add_varints(np.zeros(3, np.int64))
    wanted = [
        encode_varint(number) + b"\0" + (texts[row].as_py() or b"") + b"\0"
        for number, row in zip(numbers, order, strict=True)
    ]
    assert byte_rows.build(np.array([0, 1])).to_pylist() == [wanted[0], wanted[1] + wanted[2]]


def test_unknown_codec_is_rejected() -> None:
    with pytest.raises(ValueError, match="must be one of none, gzip, snappy, lz4, zstd, not 'brotli'"):
        options(topic="out", kafka__compression__type="brotli")
