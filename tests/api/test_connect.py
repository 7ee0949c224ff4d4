"""The Python API against a real broker."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest

import moldau
from moldau.api import Connection, Consumption, Failed, Message
from moldau.api.publisher import Publisher
from moldau.testing import Broker

pytestmark = pytest.mark.proves("A2")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings={"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 3}) as broker:
        yield broker


@pytest.fixture
def connection(broker: Broker) -> Iterator[Connection]:
    with moldau.connect(broker.bootstrap_servers) as connection:
        yield connection


def test_connection_logs_no_routine_to_standard_error(broker: Broker, capfd: pytest.CaptureFixture[str]) -> None:
    with moldau.connect(broker.bootstrap_servers) as connection:
        for number in range(20):
            connection.publish("quiet", b"%d" % number)
    assert "%6|" not in capfd.readouterr().err


def read(connection: Connection, topic: str, count: int, **options: object) -> list[Message]:
    found: list[Message] = []
    with connection.consume(topic, idle_s=15, **options) as messages:  # type: ignore[arg-type]
        for message in messages:
            found.append(message)
            if len(found) == count:
                break
    return found


def test_published_message_is_consumed_with_key_headers_and_time(connection: Connection) -> None:
    connection.create_topic("orders", partitions=3)
    place = connection.publish(
        "orders", {"id": 7}, key="customer-1", headers={"source": "web"}, timestamp_ms=1_700_000_000_000, waits=True
    )
    (message,) = read(connection, "orders", 1)
    assert message.place == place
    assert message.json() == {"id": 7}
    assert message.key == b"customer-1"
    assert message.headers == (("source", b"web"),)
    assert message.time == datetime.fromtimestamp(1_700_000_000, UTC)


@pytest.mark.parametrize(
    ("value", "stored"),
    [(b"\x00\xff", b"\x00\xff"), ("žluťoučký", "žluťoučký".encode()), ([1, 2], b"[1,2]"), (3, b"3"), (None, None)],
)
def test_values_are_encoded_by_type(connection: Connection, value: object, stored: bytes | None) -> None:
    connection.create_topic("values")
    place = connection.publish("values", value, key="k", waits=True)  # type: ignore[arg-type]
    assert place is not None
    (message,) = read(connection, "values", 1, start=place.offset)
    assert message.value == stored


def test_group_resumes_at_its_committed_offset(connection: Connection) -> None:
    connection.create_topic("clicks")
    for number in range(10):
        connection.publish("clicks", str(number))
    connection.flush()
    assert [message.text for message in read(connection, "clicks", 4, group="counting")] == ["0", "1", "2", "3"]
    # No further message was requested, but the block was left without an error.
    assert [message.text for message in read(connection, "clicks", 2, group="counting")] == ["4", "5"]


@pytest.mark.proves("C6", part="at least once")
def test_message_is_redelivered_when_processing_fails(connection: Connection) -> None:
    connection.create_topic("jobs")
    for number in range(3):
        connection.publish("jobs", str(number))
    connection.flush()

    def work() -> None:
        with connection.consume("jobs", group="workers", idle_s=15) as messages:
            for message in messages:
                if message.text == "1":
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert [message.text for message in read(connection, "jobs", 2, group="workers")] == ["1", "2"]


def test_offsets_are_committed_manually(connection: Connection) -> None:
    connection.create_topic("manual")
    for number in range(5):
        connection.publish("manual", str(number))
    connection.flush()
    with connection.consume("manual", group="careful", commits=False, idle_s=15) as messages:
        for message in messages:
            if message.text == "2":
                messages.commit_offset(message)
            if message.text == "4":
                break
    assert [message.text for message in read(connection, "manual", 2, group="careful")] == ["3", "4"]
    connection.commit_offset(moldau.api.Place("manual", 0, 0), "careful")
    assert read(connection, "manual", 1, group="careful")[0].text == "1"


def test_consume_starts_at_an_offset_or_a_time(connection: Connection) -> None:
    connection.create_topic("replayed")
    for number in range(5):
        connection.publish("replayed", str(number), timestamp_ms=1_700_000_000_000 + number * 1000)
    connection.flush()
    assert read(connection, "replayed", 1, start=3)[0].text == "3"
    when = datetime.fromtimestamp(1_700_000_002, UTC)
    assert read(connection, "replayed", 1, start=when)[0].text == "2"
    assert read(connection, "replayed", 1, start=when, group="since")[0].text == "2"


def test_invalid_calls_raise_failed(connection: Connection, broker: Broker) -> None:
    with pytest.raises(Failed, match="Name at least one topic"):
        connection.consume()
    with pytest.raises(Failed, match="nothing-here"):
        connection.delete_topic("nothing-here")
    connection.create_topic("once")
    connection.create_topic("once")
    with pytest.raises(Failed, match="already exists"):
        connection.create_topic("once", exists_ok=False)
    assert "once" in connection.topics()
    with connection.consume("once", idle_s=1) as messages, pytest.raises(Failed, match="without a group"):
        messages.commit_offset(moldau.api.Place("once", 0, 0))
    other = moldau.connect(broker.bootstrap_servers, message_timeout_ms=500)
    with pytest.raises(Failed, match="once"):
        other.publish("once", b"x", partition=99, waits=True)
    other.close()


def test_unreachable_cluster_raises_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moldau.api.connection.TIMEOUT_S", 0.5)
    with moldau.connect("127.0.0.1:1") as unreachable:
        for ask in (unreachable.create_topic, unreachable.delete_topic):
            with pytest.raises(Failed, match=r"orders: no response from 127\.0\.0\.1:1 in 0\.5 s"):
                ask("orders")


@pytest.mark.proves("C4", part="resetting the offsets of a group")
@pytest.mark.parametrize(
    "members", [{"partition_assignment_strategy": "cooperative-sticky"}, {"group_protocol": "consumer"}]
)
def test_cooperative_group_starts_at_the_given_position(connection: Connection, members: dict[str, str]) -> None:
    connection.create_topic("stepwise", partitions=2)
    group = f"of-{next(iter(members.values()))}"
    for number in range(5):
        connection.publish("stepwise", str(number), partition=1)
    connection.flush()
    assert read(connection, "stepwise", 1, start=3, group=group, **members)[0].text == "3"
    assert read(connection, "stepwise", 1, start=0, group=group, **members)[0].text == "4"


@pytest.mark.proves("A2", part="publish and consume")
def test_failed_lookup_during_assignment_raises_failed(
    connection: Connection, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection.create_topic("interrupted")
    monkeypatch.setattr("moldau.api.consumer.LOOKUP_S", 0.5)
    seek = Consumption._seek

    def seek_while_the_broker_is_silent(self: Consumption, *arguments: Any) -> None:
        broker.pause()
        seek(self, *arguments)

    monkeypatch.setattr(Consumption, "_seek", seek_while_the_broker_is_silent)
    with connection.consume("interrupted", group="unlucky", start=3) as messages:
        try:
            with pytest.raises(Failed, match="Could not look up the start position"):
                next(messages)
        finally:
            broker.resume()


def test_callback_settings_keep_their_names(connection: Connection) -> None:
    connection.create_topic("counted")
    results: list[str] = []
    with connection.consume("counted", stats_cb=results.append, statistics_interval_ms=50, idle_s=1) as messages:
        assert list(messages) == []
    assert results


@pytest.mark.proves("A2", part="publish and consume")
def test_waiting_publish_returns_its_own_result(connection: Connection) -> None:
    connection.create_topic("letters", partitions=2, max_message_bytes=1000)
    letters = [b"x", random.randbytes(5000)]  # the second is too large, and does not compress

    def send_many(which: int) -> list[str]:
        return [send(which) for _ in range(30)]

    def send(which: int) -> str:
        try:  # one partition per case: a batch is rejected as a whole
            place = connection.publish("letters", letters[which], partition=which, waits=True)
        except Failed as failed:
            return str(failed)
        assert place is not None
        return place.topic

    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(send_many, [0, 1, 0, 1]))
    assert set(results[0] + results[2]) == {"letters"}
    assert set(results[1] + results[3]) == {"letters: Broker: Message size too large"}
    connection.flush()  # those failures were raised already


@pytest.mark.proves("A2", part="publish and consume")
def test_concurrent_first_publishes_are_all_flushed(
    connection: Connection, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection.create_topic("together", max_message_bytes=1000)

    def make_while_another_thread_publishes(config: dict[str, Any]) -> Publisher:
        monkeypatch.undo()
        other.publish("together", random.randbytes(5000))
        return Publisher(config)

    monkeypatch.setattr("moldau.api.connection.Publisher", make_while_another_thread_publishes)
    other = moldau.connect(broker.bootstrap_servers)
    with pytest.raises(Failed, match="too large"), other:
        other.publish("together", "here")


@pytest.mark.proves("A2", part="publish and consume")
def test_unawaited_failure_is_raised_by_the_next_call(connection: Connection, broker: Broker) -> None:
    connection.create_topic("late")
    with moldau.connect(broker.bootstrap_servers, message_timeout_ms=2_000) as other:
        other.publish("late", "first", waits=True)
        broker.pause()
        try:
            with pytest.raises(Failed, match=r"late: not acknowledged in 0\.5 s"):
                other.publish("late", "second", waits=True, timeout_s=0.5)
            with pytest.raises(Failed, match="timed out"):
                other.flush()
        finally:
            broker.resume()


@pytest.mark.proves("A2", part="publish and consume")
@pytest.mark.parametrize("group", [None, "from-behind-the-end"])
@pytest.mark.parametrize("start", [4, 1000, 10**25])
def test_start_beyond_the_end_is_clamped_to_the_end(connection: Connection, group: str | None, start: int) -> None:
    topic = f"behind-{group}-{start}"
    connection.create_topic(topic)
    for number in range(3):
        connection.publish(topic, number, waits=True)
    with connection.consume(topic, group=group and f"{group}-{start}", start=start, idle_s=1) as messages:
        assert [message.offset for message in messages] == []


def test_empty_group_name_is_rejected(connection: Connection) -> None:
    with pytest.raises(Failed, match="use a name"):
        connection.consume("orders", group="")


@pytest.mark.parametrize("group", [None, "beginners"])
def test_invalid_start_is_rejected_at_once(connection: Connection, group: str | None) -> None:
    with pytest.raises(Failed, match="start='beginning' is invalid: use 'earliest' or 'latest', an off"):
        connection.consume("orders", group=group, start="beginning")
