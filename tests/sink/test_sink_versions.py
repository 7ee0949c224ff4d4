"""Batch writes with `txnAppId` and `txnVersion`: each version once, and one driver at a time."""

from collections.abc import Callable
from pathlib import Path

import pytest
from sink_drivers import PARTITIONS
from sink_output import staged, values

from moldau.testing import Broker
from pyspark_moldau.options.sink_options import BatchIdentity, SinkOptions, sink_batch_options
from pyspark_moldau.sink.transaction_commit import BatchCommitters, WriterFenced


def identity_of(options: SinkOptions) -> BatchIdentity:
    assert options.identity is not None
    return options.identity


@pytest.mark.proves("D2")
def test_application_version_is_written_once_to_each_topic(broker: Broker, topic: str, tmp_path: Path) -> None:
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "stagingLocation": str(tmp_path)}
    other = broker.create_topic(f"{topic}-other", PARTITIONS)
    chosen = [
        sink_batch_options({**given, "topic": each, "txnAppId": f"app-{topic}", "txnVersion": "5"})
        for each in (topic, other)
    ]
    committers = BatchCommitters()
    parts = [staged(each, identity_of(each), {"value": [f"to {each.topic}"]}) for each in chosen]
    for repetition in range(2):
        for options, part in zip(chosen, parts, strict=True):
            assert committers.commit(options, identity_of(options), [part]) == (repetition == 0)
    assert [values(options) for options in chosen] == [[f"to {each}".encode()] for each in (topic, other)]


def version(topic: str, number: int, driver: str = "a") -> BatchIdentity:
    """Return the identity of a batch write with `txnAppId` and `txnVersion`."""
    return BatchIdentity(f"w-{topic}", number, run=driver, is_user_versioned=True)


def write(committers: BatchCommitters, options: SinkOptions, identity: BatchIdentity, value: str = "") -> bool:
    return committers.commit(options, identity, [staged(options, identity, {"value": [value or f"{identity.batch}"]})])


def write_of_another(options: SinkOptions, identity: BatchIdentity) -> Callable[[str], None]:
    """Return a step hook that commits another version once, while one is being published."""
    second, is_due = BatchCommitters(), [True]

    def on_step(place: str) -> None:
        if place == "publishing" and is_due.pop():
            is_due.append(False)
            assert write(second, options, identity)

    return on_step


@pytest.mark.proves("D2")
def test_processes_of_one_driver_take_turns_with_versions(options: SinkOptions, topic: str) -> None:
    """Versions may have gaps, and a repeated version does not mean another driver."""
    first, second = BatchCommitters(), BatchCommitters()
    turns = ((first, 0), (second, 0), (first, 1), (second, 2), (first, 40), (second, 41), (second, 42), (first, 43))
    written = [write(committers, options, version(topic, number)) for committers, number in turns]
    assert written == [True, False, True, True, True, True, True, True]
    assert values(options) == sorted(f"{number}".encode() for number in (0, 1, 2, 40, 41, 42, 43))


@pytest.mark.proves("D2")
@pytest.mark.parametrize("number", [1, 2, 3])
def test_driver_is_fenced_when_another_takes_over_its_application(
    options: SinkOptions, topic: str, number: int
) -> None:
    first, second = BatchCommitters(), BatchCommitters()
    assert write(first, options, version(topic, 0, driver="a"))
    assert write(second, options, version(topic, 1, driver="b"))
    with pytest.raises(WriterFenced, match="has fenced this one"):
        write(first, options, version(topic, number, driver="a"), "stray")
    assert values(options) == [b"0", b"1"]
    assert write(second, options, version(topic, 2, driver="b")), "the new owner is not fenced"
    assert values(options) == [b"0", b"1", b"2"]


@pytest.mark.proves("D2")
def test_driver_is_fenced_when_another_takes_over_during_its_write(options: SinkOptions, topic: str) -> None:
    """A driver that has just initialised its producer id cannot mistake the fencing for an expired id."""
    on_step = write_of_another(options, version(topic, 0, driver="b"))
    with pytest.raises(WriterFenced, match="has fenced this one"):
        write(BatchCommitters(on_step), options, version(topic, 0, driver="a"), "stray")
    assert values(options) == [b"0"]


@pytest.mark.proves("D2")
def test_threads_sharing_an_application_get_an_error_with_advice(options: SinkOptions, topic: str) -> None:
    """Both threads belong to one driver, each with its own committing process."""
    on_step = write_of_another(options, version(topic, 1, driver="a"))
    advice = "run writes with one txnAppId to one topic in sequence, or use a separate txnAppId for each"
    with pytest.raises(WriterFenced, match=f"has fenced this one.*{advice}"):
        write(BatchCommitters(on_step), options, version(topic, 0, driver="a"), "stray")
    assert values(options) == [b"1"]
