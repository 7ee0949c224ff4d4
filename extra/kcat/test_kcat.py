"""kcat, a popular command-line client: produce, consume, list, every codec, offsets and timestamps."""

import itertools
import json
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any, Final

import pytest

from moldau.records.compression import Compression
from moldau.records.record import iterate_batches
from moldau.testing import Broker

pytestmark = pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
FORMAT: Final = "%o|%k|%s|%h\n"
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings={"moldau.metrics.listener": ""}) as broker:
        yield broker


@pytest.fixture
def topic(broker: Broker) -> str:
    return broker.create_topic(f"topic-{next(_numbers)}")


def kcat(broker: Broker, *arguments: str, said: str = "") -> str:
    """Return the output of kcat, which must succeed."""
    run = subprocess.run(
        ["kcat", "-b", broker.bootstrap_servers, *arguments],
        input=said,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def read(broker: Broker, topic: str, *arguments: str, form: str = "%s\n") -> list[str]:
    """Read to the end of the topic, with the given format."""
    return kcat(broker, "-C", "-e", "-q", "-t", topic, "-f", form, *arguments).splitlines()


@pytest.mark.proves("A1", "P1", "S9")
@pytest.mark.parametrize("codec", CODECS)
def test_lines_round_trip_with_each_codec(broker: Broker, topic: str, codec: str) -> None:
    lines = [f"line {number} " + "and on " * 50 for number in range(100)]
    kcat(broker, "-P", "-t", topic, "-z", codec, said="\n".join(lines))
    assert read(broker, topic) == lines
    stored = (broker.data / f"{topic}-0" / f"{0:020d}.log").read_bytes()
    assert {Compression(header.compression).name.lower() for header, _ in iterate_batches(stored)} == {codec}


@pytest.mark.proves("A1")
def test_keys_and_headers_round_trip(broker: Broker, topic: str) -> None:
    kcat(broker, "-P", "-t", topic, "-K", ":", "-H", "source=test", "-H", "empty=", said="a:1\nb:2\n")
    assert read(broker, topic, form=FORMAT) == ["0|a|1|source=test,empty=", "1|b|2|source=test,empty="]


@pytest.mark.proves("A1")
def test_empty_value_can_be_a_tombstone(broker: Broker, topic: str) -> None:
    kcat(broker, "-P", "-t", topic, "-K", ":", "-Z", said="gone:\n")
    (record,) = [json.loads(line) for line in kcat(broker, "-C", "-e", "-q", "-J", "-t", topic).splitlines()]
    assert (record["key"], record["payload"]) == ("gone", None)


@pytest.mark.proves("C1")
def test_consume_starts_at_the_given_offset(broker: Broker, topic: str) -> None:
    kcat(broker, "-P", "-t", topic, said="\n".join(map(str, range(10))))
    everything = [str(number) for number in range(10)]
    assert read(broker, topic, "-o", "beginning") == everything
    assert read(broker, topic, "-o", "4") == everything[4:]
    assert read(broker, topic, "-o", "-3") == everything[-3:]
    assert read(broker, topic, "-o", "end") == []
    assert read(broker, topic, "-o", "2", "-c", "3") == everything[2:5]


@pytest.mark.proves("C1")
def test_consume_starts_and_ends_at_a_timestamp(broker: Broker, topic: str) -> None:
    kcat(broker, "-P", "-t", topic, said="\n".join(map(str, range(5))))
    times = [int(line) for line in read(broker, topic, form="%T\n")]
    assert sorted(times) == times
    assert read(broker, topic, "-o", f"s@{times[0]}") == ["0", "1", "2", "3", "4"]
    assert read(broker, topic, "-o", f"s@{times[-1] + 1000}") == []
    assert read(broker, topic, "-o", f"s@{times[0] - 1000}", "-o", f"e@{times[-1] + 1000}") == list("01234")
    query = kcat(broker, "-Q", "-t", f"{topic}:0:{times[0]}")
    assert query.split() == [topic, "[0]", "offset", "0"]


@pytest.mark.proves("A1")
def test_cluster_is_listed(broker: Broker, topic: str) -> None:
    listed: Any = json.loads(kcat(broker, "-L", "-J"))
    assert [each["name"] for each in listed["brokers"]] == [broker.bootstrap_servers]
    (row,) = [each for each in listed["topics"] if each["topic"] == topic]
    assert row["partitions"] == [{"partition": 0, "leader": 1, "replicas": [{"id": 1}], "isrs": [{"id": 1}]}]
    assert f'topic "{topic}" with 1 partitions' in kcat(broker, "-L", "-t", topic)


@pytest.mark.proves("P2")
def test_idempotent_producer_is_served(broker: Broker, topic: str) -> None:
    lines = [str(number) for number in range(2000)]
    kcat(broker, "-P", "-t", topic, "-X", "enable.idempotence=true", "-X", "acks=all", said="\n".join(lines))
    assert read(broker, topic) == lines


@pytest.mark.proves("P1")
@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_acks_level_is_served(broker: Broker, topic: str, acks: str) -> None:
    kcat(broker, "-P", "-t", topic, "-X", f"acks={acks}", said="one\ntwo\n")
    assert read(broker, topic) == ["one", "two"]


@pytest.mark.proves("C1")
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_both_isolation_levels_are_served(broker: Broker, topic: str, isolation: str) -> None:
    kcat(broker, "-P", "-t", topic, said="one\n")
    assert read(broker, topic, "-X", f"isolation.level={isolation}") == ["one"]


@pytest.mark.proves("T1")
def test_topic_is_auto_created_by_kcat(broker: Broker) -> None:
    kcat(broker, "-P", "-t", "by-writing", said="first\n")
    assert read(broker, "by-writing") == ["first"]
