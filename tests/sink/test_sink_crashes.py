"""The commit protocol under crashes: a driver is killed or stopped at each fail point, and others take over.

A few cases run with all tests; `make soak-sink` runs the whole matrix, RUNS times.
"""

import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from sink_drivers import PARTITIONS, Sink, read_output

from moldau.testing import Broker
from pyspark_moldau.sink.transaction_commit import FAIL_POINTS

RUNS: Final = int(os.environ.get("SINK_RUNS", "0"))
PUBLISHED_AT: Final = ("committed", "swept")
LARGE: Final[dict[str, int]] = {"rows": 300, "tasks": 3, "inline_bytes_max": 2000}
SMALL: Final[dict[str, int]] = {"rows": 3, "tasks": 1, "inline_bytes_max": 1 << 20}


@dataclass(frozen=True, slots=True)
class Case:
    """The fail point of the first driver, its batch, what follows, the amount of rows, and the sender."""

    place: str
    batch: int
    ending: str
    is_large: bool
    sender: str = "raw"

    def __str__(self) -> str:
        size = "large" if self.is_large else "small"
        named = f"{self.place.replace(' ', '-')}-{self.batch}-{self.ending}-{size}"
        return named if self.sender == "raw" else f"{named}-{self.sender}"


# Only the first batch of a process has these fail points: its producer is reused.
OPENING: Final = ("started", "initialised", "marker read")
ENDINGS: Final = ("restart", "twice", "orphan")
SENDERS: Final = ("raw", "librdkafka")
MATRIX: Final = [
    Case(place, batch, ending, is_large, sender)
    for place, batch, ending, is_large, sender in itertools.product(
        FAIL_POINTS, (0, 2), ENDINGS, (True, False), SENDERS
    )
    if not (place in OPENING and batch)
]
SAMPLE: Final = [
    Case("begun", 0, "restart", True),
    *(Case(place, 2, "restart", True) for place in ("publishing", "flushed", "committed", "swept")),
    *(Case(place, 0, "orphan", True) for place in ("marker read", "flushed")),
    Case("flushed", 0, "twice", False),
    Case("started", 0, "orphan", False),
    *(Case(place, 2, "restart", True, "librdkafka") for place in ("flushed", "committed")),
    *(Case(place, 0, "orphan", True, "librdkafka") for place in ("publishing", "flushed")),
]
LATER_S: Final = (0.0003, 0.001, 0.002, 0.003, 0.005, 0.01)


def trap(case: Case, how: str) -> dict[str, Any]:
    times = 2 if case.place == "publishing" and case.is_large else 1
    return {"place": case.place, "batch": case.batch, "how": how, "times": times}


def crash(case: Case, sink: Sink) -> str:
    """Run the case. Returns the name of the driver that must have committed the batch."""
    first = sink.driver("first", list(range(case.batch + 1)), trap(case, "stop" if case.ending == "orphan" else "kill"))
    last = [case.batch, case.batch + 1]
    if case.ending == "orphan":
        first.wait_stopped_at(case.place)
        lines = sink.driver("last", last).wait()
        assert_replayed(case, lines)
        first.resume()
        assert_fenced(case, first.wait())
    else:
        first.wait_killed_at(case.place)
        if case.ending == "twice":
            again = {"place": "marker read", "batch": case.batch, "how": "kill"}
            sink.driver("second", last, again).wait_killed_at("marker read")
        assert_replayed(case, sink.driver("last", last).wait())
    return "first" if case.place in PUBLISHED_AT else "last"


def assert_replayed(case: Case, lines: list[str]) -> None:
    word = "skipped" if case.place in PUBLISHED_AT else "published"
    assert lines == [f"{word} {case.batch}", f"published {case.batch + 1}"]


def assert_fenced(case: Case, lines: list[str]) -> None:
    """A resumed driver keeps what it has committed, and is fenced otherwise."""
    if case.place in PUBLISHED_AT:
        assert lines[-1] == f"published {case.batch}"
    else:
        assert lines[-1].startswith(("failed WriterFenced", "failed StaleCheckpoint", "failed StagingFailed")), lines


def assert_once(case: Case, sink: Sink, committer: str) -> None:
    output = read_output(sink.servers, sink.topic)
    output.assert_exactly_once(range(case.batch + 2), sink.rows)
    assert output.drivers[case.batch] == {committer}
    marker = sink.marker()
    assert marker is not None
    assert (marker.batch, marker.rows) == (case.batch + 1, sink.rows)
    assert sink.staged_files() == []


@pytest.mark.proves("D2")
@pytest.mark.parametrize("case", MATRIX * RUNS or SAMPLE, ids=str)
def test_batch_is_committed_exactly_once_wherever_its_driver_crashes(
    case: Case, make_sink: Callable[..., Sink]
) -> None:
    sink = make_sink(**(LARGE if case.is_large else SMALL), sender=case.sender)
    assert_once(case, sink, crash(case, sink))


@pytest.mark.parametrize("sender", SENDERS)
@pytest.mark.parametrize("later_s", LATER_S * RUNS * 5 or LATER_S[2:3])
def test_driver_killed_during_a_commit_has_committed_all_or_nothing(
    later_s: float, sender: str, make_sink: Callable[..., Sink]
) -> None:
    sink = make_sink(**LARGE, sender=sender)
    trap_later = {"place": "flushed", "batch": 1, "how": "kill", "later_s": later_s}
    sink.driver("first", [0, 1], trap_later).wait_killed_at("flushed")
    lines = sink.driver("last", [1, 2]).wait()
    output = read_output(sink.servers, sink.topic)
    output.assert_exactly_once(range(3), sink.rows)
    assert output.drivers[1] == ({"first"} if lines[0] == "skipped 1" else {"last"})


@pytest.mark.proves("D2")
def test_checkpoint_older_than_the_sink_is_rejected(make_sink: Callable[..., Sink]) -> None:
    sink = make_sink(**SMALL)
    assert sink.driver("first", [0, 1, 2]).wait() == ["published 0", "published 1", "published 2"]
    (lines,) = sink.driver("last", [1]).wait()
    assert lines.startswith("failed StaleCheckpoint")
    assert "older than the sink" in lines
    read_output(sink.servers, sink.topic).assert_exactly_once(range(3), sink.rows)


@pytest.mark.parametrize("sender", SENDERS)
@pytest.mark.parametrize("place", ["begun", "publishing", "flushed"] if RUNS else ["flushed"])
def test_broker_killed_during_a_commit_causes_no_loss_or_duplicate(place: str, sender: str, tmp_path: Path) -> None:
    with Broker(settings={"auto.create.topics.enable": "false", "moldau.metrics.listener": ""}) as broker:
        topic = broker.create_topic("out", PARTITIONS)
        sink = Sink(servers=broker.bootstrap_servers, topic=topic, writer="query", staging=tmp_path, sender=sender)
        first = sink.driver("first", [0, 1], {"place": place, "batch": 1, "how": "stop"})
        first.wait_stopped_at(place)
        broker.kill()
        first.resume()
        broker.start()
        lines = first.wait()
        assert lines[0] == "published 0"
        again = sink.driver("last", [1, 2]).wait()
        assert again == ["skipped 1" if "published 1" in lines else "published 1", "published 2"]
        read_output(sink.servers, topic).assert_exactly_once(range(3), sink.rows)
