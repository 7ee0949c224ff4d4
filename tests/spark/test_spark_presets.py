"""`aggregate` and `dedupe` on Spark, run by their commands: each result once, over several runs."""

import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from moldau.cli.main import app
from moldau.testing.broker import Broker
from moldau_dev.spark import reading

START_MS = 1_767_225_600_000  # 2026-01-01
MINUTE_MS = 60_000


@pytest.fixture
def topic(moldau_broker: Broker) -> str:
    """A new topic for records with any timestamp."""
    return moldau_broker.create_topic(f"spark-{uuid.uuid4().hex}", partitions=2, **{"retention.ms": "-1"})


@pytest.fixture
def out(moldau_broker: Broker, topic: str) -> str:
    return moldau_broker.create_topic(f"{topic}-out", partitions=2, **{"retention.ms": "-1"})


def send(broker: Broker, topic: str, values: Sequence[object], **more: Any) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number, value in enumerate(values):
        text = value if isinstance(value, bytes) else json.dumps(value).encode()
        producer.produce(topic, text, b"k", partition=number % 2, **more)
    assert producer.flush(30) == 0


def run(broker: Broker, folder: Path, words: str) -> str:
    # One partition of state: with so few rows, a second one costs more than it saves.
    common = ["--once", "--master", "local[1]", "--folder", str(folder), "-b", broker.bootstrap_servers]
    result = CliRunner().invoke(app, ["pipeline", "run", *words.split(), *common])
    assert result.exit_code == 0, result.output
    return result.stderr


def rows(spark: Any, broker: Broker, topic: str) -> list[Any]:
    options = {"kafka__isolation__level": "read_committed", "includeHeaders": "true"}
    return list(reading(spark.read, broker, topic, **options).orderBy("partition", "offset").collect())


def click(page: str | None, minute: float, price: float) -> dict[str, object]:
    return {"page": page, "shop": {"price": price}, "at": int(START_MS + minute * MINUTE_MS)}


@pytest.mark.proves("D3")
def test_final_windows_are_aggregated_once(
    spark: Any, moldau_broker: Broker, topic: str, out: str, tmp_path: Path
) -> None:
    job = (
        f"aggregate -t {topic} --to {out} --by page --window 1m --lateness 1s --time at "
        "--count --sum shop.price --max shop.price"
    )
    send(moldau_broker, topic, [click("/a", 0.1, 2), click("/a", 0.2, 3), click("/b", 0.3, 1), click(None, 0.4, 9)])
    run(moldau_broker, tmp_path, job)
    assert rows(spark, moldau_broker, out) == []  # the watermark has not passed the window yet
    send(moldau_broker, topic, [click("/a", 1.5, 4), b"no json", click("/b", 9, 0)])
    run(moldau_broker, tmp_path, job)
    found = {
        (json.loads(row.value)["start"], row.key and bytes(row.key)): json.loads(row.value)
        for row in rows(spark, moldau_broker, out)
    }
    assert len(found) == len(rows(spark, moldau_broker, out)) == 4
    first, second = "2026-01-01T00:00:00.000Z", "2026-01-01T00:01:00.000Z"
    assert found[first, b"/a"] == {
        "start": first,
        "end": second,
        "page": "/a",
        "count": 2,
        "sum_shop.price": 5.0,
        "max_shop.price": 3.0,
    }
    assert found[first, None]["page"] is None
    assert found[first, None]["count"] == 1
    assert found[second, b"/a"]["sum_shop.price"] == 4.0


@pytest.mark.proves("D3", part="aggregate and dedupe")
def test_fields_may_have_the_names_of_internal_columns(
    spark: Any, moldau_broker: Broker, topic: str, out: str, tmp_path: Path
) -> None:
    names = ("_time", "__time", "_window", "_sum_price", "_COUNT")
    groups = " ".join(f"--by {each}" for each in names)
    event = {**{each: f"its {each}" for each in names}, "price": 2, "at": START_MS}
    send(moldau_broker, topic, [event, event])
    run(
        moldau_broker,
        tmp_path,
        f"aggregate -t {topic} --to {out} {groups} --time at --count --sum price --window 1m --until end",
    )
    (row,) = rows(spark, moldau_broker, out)
    assert json.loads(row.value) == {
        "start": "2026-01-01T00:00:00.000Z",
        "end": "2026-01-01T00:01:00.000Z",
        **{each: f"its {each}" for each in names},
        "count": 2,
        "sum_price": 4.0,
    }


@pytest.mark.proves("D3")
def test_updated_windows_are_written_again_under_their_key(
    spark: Any, moldau_broker: Broker, topic: str, out: str, tmp_path: Path
) -> None:
    job = f"aggregate -t {topic} --to {out} --by page --window 1m --time at --updates"
    send(moldau_broker, topic, [click("/a", 0.1, 1), click("/a", 0.2, 1), click("/b", 0.3, 1)])
    run(moldau_broker, tmp_path, job)
    send(moldau_broker, topic, [click("/a", 0.4, 1)])
    assert "continues from its checkpoint" in run(moldau_broker, tmp_path, job)
    counts = [
        (json.loads(bytes(row.key))["page"], json.loads(row.value)["count"]) for row in rows(spark, moldau_broker, out)
    ]
    assert sorted(counts) == [("/a", 2), ("/a", 3), ("/b", 1)]
    other = CliRunner().invoke(
        app,
        [
            "pipeline",
            "run",
            *job.replace("--by page", "--by shop.price").split(),
            "--folder",
            str(tmp_path),
            "-b",
            moldau_broker.bootstrap_servers,
        ],
    )
    assert other.exit_code == 1
    assert "belongs to aggregate" in other.stderr


@pytest.mark.proves("D3")
def test_duplicates_are_dropped_across_batches_and_runs(
    spark: Any, moldau_broker: Broker, topic: str, out: str, tmp_path: Path
) -> None:
    job = f"dedupe -t {topic} --to {out} --key id --rows-per-batch 14"
    more: dict[str, Any] = {"timestamp": START_MS, "headers": [("h", b"1")]}
    send(moldau_broker, topic, [{"id": number % 8, "n": number} for number in range(24)], **more)
    send(moldau_broker, topic, [b"no json", b"no json", {"n": 1}, {"id": None}])
    run(moldau_broker, tmp_path, job)
    send(moldau_broker, topic, [{"id": number} for number in range(4, 12)], timestamp=START_MS - MINUTE_MS * 999)
    run(moldau_broker, tmp_path, job)
    found = rows(spark, moldau_broker, out)
    texts = [json.loads(row.value) if row.value[:1] == b"{" else None for row in found]
    assert sorted(each["id"] for each in texts if each and each.get("id") is not None) == list(range(12))
    assert len(found) == 12 + 4
    first = next(row for row in found if row.value and b'"n": 0' in row.value)
    assert (bytes(first.key), first.timestamp.year, first.headers[0].key) == (b"k", 2026, "h")
    bounded = moldau_broker.create_topic(f"{topic}-bounded", partitions=1)
    run(moldau_broker, tmp_path, f"{job} --name bounded --until end".replace(out, bounded).replace("--once", ""))
    kept = [json.loads(row.value) for row in rows(spark, moldau_broker, bounded) if b'"n"' in row.value]
    assert sorted(each["n"] for each in kept if "id" in each) == [
        0,
        1,
        2,
        3,
    ]


@pytest.mark.proves("D3")
def test_binary_keys_are_deduplicated_by_their_bytes(
    spark: Any, moldau_broker: Broker, topic: str, out: str, tmp_path: Path
) -> None:
    producer = Producer({"bootstrap.servers": moldau_broker.bootstrap_servers})
    keys = [b"\x80", b"\xff", b"\x00\x00\x00\x01\xe9", b"\x00\x00\x00\x01\xe8", b"k", b""]
    for number, key in enumerate([*keys, *keys, None, None]):
        producer.produce(topic, b"%d" % number, key, partition=0)
    assert producer.flush(30) == 0
    run(moldau_broker, tmp_path, f"dedupe -t {topic} --to {out} --key key")
    found = rows(spark, moldau_broker, out)
    assert sorted(bytes(row.key) for row in found if row.key is not None) == sorted(keys)
    assert len(found) == len(keys) + 2


@pytest.mark.proves("D1")
def test_pipeline_rejects_a_recreated_topic(
    spark: Any, moldau_broker: Broker, topic: str, out: str, tmp_path: Path
) -> None:
    job = f"transform -t {topic} --to {out}"
    send(moldau_broker, topic, [1, 2])
    run(moldau_broker, tmp_path, job)
    with moldau_broker.client() as client:
        client.delete_topic(topic)
    moldau_broker.create_topic(topic, partitions=2)
    send(moldau_broker, topic, [3, 4, 5, 6])
    common = ["--once", "--master", "local[2]", "--folder", str(tmp_path), "-b", moldau_broker.bootstrap_servers]
    result = CliRunner().invoke(app, ["pipeline", "run", *job.split(), *common])
    assert result.exit_code == 1
    assert "was deleted and recreated" in result.stderr
    assert sorted(int(row.value) for row in rows(spark, moldau_broker, out)) == [1, 2]
