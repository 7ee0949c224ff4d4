"""Slow consumers keep their group membership and their progress."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import moldau
from moldau.api import Connection, Failed, consumer
from moldau.testing import Broker

pytestmark = pytest.mark.proves("A2", part="publish and consume")

WORK_S = 0.4
TIMEOUTS: dict[str, Any] = {"max_poll_interval_ms": 2000, "session_timeout_ms": 2000, "heartbeat_interval_ms": 200}


@pytest.fixture(scope="module")
def connection() -> Iterator[Connection]:
    quick = {"group.initial.rebalance.delay.ms": 0, "group.min.session.timeout.ms": 500}
    with (
        Broker(settings={**quick, "offsets.topic.num.partitions": 3}) as broker,
        moldau.connect(broker.bootstrap_servers) as connection,
    ):
        yield connection


@pytest.fixture(scope="module")
def slow_to_join() -> Iterator[Connection]:
    """A new group waits for further members, as with Kafka's default."""
    with (
        Broker(settings={"group.initial.rebalance.delay.ms": 3000, "offsets.topic.num.partitions": 3}) as broker,
        moldau.connect(broker.bootstrap_servers) as connection,
    ):
        yield connection


def fill(connection: Connection, topic: str, count: int, partitions: int = 1) -> None:
    connection.create_topic(topic, partitions=partitions)
    for number in range(count):
        connection.publish(topic, str(number), partition=number % partitions)
    connection.flush()


def test_each_message_keeps_the_membership_alive(connection: Connection) -> None:
    fill(connection, "slow", 10)
    found = []
    with connection.consume("slow", group="slow", idle_s=1, **TIMEOUTS) as messages:
        for message in messages:
            found.append(message.text)
            time.sleep(WORK_S)  # the work: in total longer than max.poll.interval.ms
    assert found == [str(number) for number in range(10)]
    connection.publish("slow", "new", waits=True)
    with connection.consume("slow", group="slow", idle_s=15) as messages:
        assert next(messages).text == "new"


def test_second_member_gets_partitions_while_the_first_is_busy(connection: Connection) -> None:
    count = 200
    fill(connection, "shared", count, partitions=2)
    has_second_begun = threading.Event()
    second_partitions: set[int] = set()

    def read_one() -> None:
        with connection.consume("shared", group="sharing", idle_s=15) as second:
            second_partitions.add(next(second).partition)
            has_second_begun.set()
            is_first_done.wait(15)

    is_first_done = threading.Event()
    with connection.consume("shared", group="sharing", idle_s=15, heartbeat_interval_ms=200) as first:
        next(first)
        thread = threading.Thread(target=read_one)
        thread.start()
        taken = 1
        while taken < count // 2 and not has_second_begun.wait(0.1):
            next(first)
            taken += 1
        assert has_second_begun.is_set()
        assert second_partitions.isdisjoint(next(first).partition for _ in range(10))
        is_first_done.set()
        thread.join()


def test_message_beyond_max_poll_interval_fails_and_is_redelivered(connection: Connection) -> None:
    fill(connection, "endless", 1)
    with connection.consume("endless", group="endless", idle_s=15, **TIMEOUTS) as messages:
        first = next(messages)
        time.sleep(4)  # the work: one message, longer than max.poll.interval.ms
        with pytest.raises(Failed, match=r"^Application maximum poll interval"):
            next(messages)
        assert next(messages) == first


def test_message_of_a_revoked_partition_is_not_an_error(connection: Connection) -> None:
    fill(connection, "lost", 2)
    with connection.consume("lost", group="lost", idle_s=0.5) as messages:
        assert next(messages).text == "0"
        messages._consumer.unassign()
        assert next(messages, None) is None
    with connection.consume("lost", group="lost", idle_s=15) as messages:
        assert next(messages).text == "0"


def test_joining_does_not_count_as_idle_time(slow_to_join: Connection) -> None:
    fill(slow_to_join, "late", 3)
    with slow_to_join.consume("late", group="late", idle_s=0.5) as messages:
        assert [message.text for message in messages] == ["0", "1", "2"]


def test_group_without_assignment_raises_failed(slow_to_join: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer, "JOIN_MAX_S", 0.5)
    slow_to_join.create_topic("closed")
    with (
        slow_to_join.consume("closed", group="closed", idle_s=0.1) as messages,
        pytest.raises(Failed, match="The group closed assigned no partitions"),
    ):
        next(messages)
