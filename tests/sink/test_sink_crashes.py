"""The commit protocol under crashes: a process is killed or stopped at every place that matters, others follow it.

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
    """Where the first life ends, in which batch, how it goes on, how many rows there are, and who sends them."""

    place: str
    batch: int
    ending: str
    is_large: bool
    sender: str = "raw"

    def __str__(self) -> str:
        size = "large" if self.is_large else "small"
        named = f"{self.place.replace(' ', '-')}-{self.batch}-{self.ending}-{size}"
        return named if self.sender == "raw" else f"{named}-{self.sender}"


# Only the first batch of a life has these places: afterwards the producer is kept.
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
    *(Case(place, 0, "restart", True) for place in ("initialised", "begun")),
    *(Case(place, 2, "restart", True) for place in ("publishing", "marker sent", "flushed", "committed", "swept")),
    *(Case(place, 0, "orphan", True) for place in ("marker read", "publishing", "flushed")),
    Case("flushed", 0, "twice", False),
    Case("started", 0, "orphan", False),
    *(Case(place, 2, "restart", True, "librdkafka") for place in ("publishing", "flushed", "committed")),
    *(Case(place, 0, "orphan", True, "librdkafka") for place in ("marker read", "publishing", "flushed")),
]
LATER_S: Final = (0.0003, 0.001, 0.002, 0.003, 0.005, 0.01)


def trap(case: Case, how: str) -> dict[str, Any]:
    times = 2 if case.place == "publishing" and case.is_large else 1
    return {"place": case.place, "batch": case.batch, "how": how, "times": times}


def crash(case: Case, sink: Sink) -> str:
    """Play the case; the name of the life that must have published the batch."""
    first = sink.life("first", list(range(case.batch + 1)), trap(case, "stop" if case.ending == "orphan" else "kill"))
    last = [case.batch, case.batch + 1]
    if case.ending == "orphan":
        first.stands_still_at(case.place)
        said = sink.life("last", last).ends()
        assert_replayed(case, said)
        first.goes_on()
        assert_shut_out(case, first.ends())
    else:
        first.is_killed_at(case.place)
        if case.ending == "twice":
            again = {"place": "marker read", "batch": case.batch, "how": "kill"}
            sink.life("second", last, again).is_killed_at("marker read")
        assert_replayed(case, sink.life("last", last).ends())
    return "first" if case.place in PUBLISHED_AT else "last"


def assert_replayed(case: Case, said: list[str]) -> None:
    word = "skipped" if case.place in PUBLISHED_AT else "published"
    assert said == [f"{word} {case.batch}", f"published {case.batch + 1}"]


def assert_shut_out(case: Case, said: list[str]) -> None:
    """A life that was thought dead and goes on: what it had committed stays, more it cannot do."""
    if case.place in PUBLISHED_AT:
        assert said[-1] == f"published {case.batch}"
    else:
        assert said[-1].startswith(("failed WriterFenced", "failed StaleCheckpoint", "failed StagingFailed")), said


def assert_once(case: Case, sink: Sink, committer: str) -> None:
    output = read_output(sink.servers, sink.topic)
    output.assert_exactly_once(range(case.batch + 2), sink.rows)
    assert output.lives[case.batch] == {committer}
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
    fall = {"place": "flushed", "batch": 1, "how": "kill", "later_s": later_s}
    sink.life("first", [0, 1], fall).is_killed_at("flushed")
    said = sink.life("last", [1, 2]).ends()
    output = read_output(sink.servers, sink.topic)
    output.assert_exactly_once(range(3), sink.rows)
    assert output.lives[1] == ({"first"} if said[0] == "skipped 1" else {"last"})


@pytest.mark.proves("D2")
def test_checkpoint_older_than_the_sink_is_rejected(make_sink: Callable[..., Sink]) -> None:
    sink = make_sink(**SMALL)
    assert sink.life("first", [0, 1, 2]).ends() == ["published 0", "published 1", "published 2"]
    (said,) = sink.life("last", [1]).ends()
    assert said.startswith("failed StaleCheckpoint")
    assert "older than what the sink has committed" in said
    read_output(sink.servers, sink.topic).assert_exactly_once(range(3), sink.rows)


@pytest.mark.parametrize("sender", SENDERS)
@pytest.mark.parametrize("place", ["begun", "publishing", "flushed"] if RUNS else ["flushed"])
def test_broker_killed_during_a_commit_causes_no_loss_or_duplicate(place: str, sender: str, tmp_path: Path) -> None:
    with Broker(settings={"auto.create.topics.enable": "false", "moldau.metrics.listener": ""}) as broker:
        topic = broker.create_topic("out", PARTITIONS)
        sink = Sink(servers=broker.bootstrap_servers, topic=topic, writer="query", staging=tmp_path, sender=sender)
        first = sink.life("first", [0, 1], {"place": place, "batch": 1, "how": "stop"})
        first.stands_still_at(place)
        broker.kill()
        first.goes_on()
        broker.start()
        said = first.ends()
        assert said[0] == "published 0"
        again = sink.life("last", [1, 2]).ends()
        assert again == ["skipped 1" if "published 1" in said else "published 1", "published 2"]
        read_output(sink.servers, topic).assert_exactly_once(range(3), sink.rows)
