"""Consumer groups of real clients: shared partitions, nothing read twice or skipped, resumption."""

from collections.abc import Callable, Iterator

import confluent_kafka
import pytest
from confluent_kafka import admin
from group_consumers import FLAVOURS, ConfluentMember, GroupConsumer, Seen, until

from moldau.testing import Broker

PARTITIONS = 6
MakeMember = Callable[..., GroupConsumer]


@pytest.fixture(scope="module")
def group_broker() -> Iterator[Broker]:
    """A broker without the initial rebalance delay and with short sessions."""
    settings = {
        "group.initial.rebalance.delay.ms": "100",
        "group.consumer.min.heartbeat.interval.ms": "100",
        "group.consumer.heartbeat.interval.ms": "300",
        "moldau.group.consumer.unsettled.heartbeat.interval.ms": "100",
        "offsets.topic.num.partitions": "5",
        "moldau.metrics.listener": "",
    }
    with Broker(settings=settings) as broker:
        yield broker


@pytest.fixture
def topic(group_broker: Broker, topic_name: str) -> str:
    client = admin.AdminClient({"bootstrap.servers": group_broker.bootstrap_servers, "log_level": 0})
    client.create_topics([admin.NewTopic(topic_name, PARTITIONS, 1)])[topic_name].result()
    return topic_name


@pytest.fixture(
    params=FLAVOURS, ids=[f"{kind.__name__.removesuffix('Member').lower()}-{flavour}" for kind, flavour in FLAVOURS]
)
def member(request: pytest.FixtureRequest, group_broker: Broker, topic: str) -> MakeMember:
    """Return a factory of members of one library with one assignor, in a group of this test."""
    kind, flavour = request.param

    def make(group_id: str = "", instance_id: str | None = None) -> GroupConsumer:
        made: GroupConsumer = kind(
            group_broker.bootstrap_servers, f"{topic}-{group_id}", topic, flavour, instance_id=instance_id
        )
        return made

    return make


def _produce(broker: Broker, topic: str, count: int, first: int = 0) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    for number in range(first, first + count):
        producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
    producer.flush(30)


def _values(*members: GroupConsumer) -> list[int]:
    return sorted(int(seen.value) for member in members for seen in member.seen)


def _in_order(seen: list[Seen]) -> bool:
    last: dict[int, int] = {}
    for each in seen:
        if each.offset <= last.get(each.partition, -1):
            return False
        last[each.partition] = each.offset
    return True


@pytest.mark.proves("C2")
@pytest.mark.proves("C3")
def test_group_resumes_where_it_stopped(group_broker: Broker, topic: str, member: MakeMember) -> None:
    _produce(group_broker, topic, 60)
    with member() as first:
        until(lambda: len(first.seen) >= 60, "everything is read")
    _produce(group_broker, topic, 60, first=60)
    with member() as second:
        until(lambda: len(second.seen) >= 60, "the rest is read")
    assert _values(first) == list(range(60))
    assert _values(second) == list(range(60, 120))
    assert _in_order(first.seen)


@pytest.mark.proves("C2")
@pytest.mark.proves("C5")
def test_members_share_partitions_and_take_them_over(group_broker: Broker, topic: str, member: MakeMember) -> None:
    everything = set(range(PARTITIONS))
    with member() as first:
        until(lambda: first.owned == everything, "the first has all")
        # librdkafka starts a partition again from its beginning if it is revoked and assigned again while the first
        # lookup of its offset is pending.
        _produce(group_broker, topic, 30)
        until(lambda: len(first.seen) >= 30, "the first reads every partition")
        with member() as second:
            until(lambda: len(first.owned) == len(second.owned) == PARTITIONS // 2, "both have their half")
            assert first.owned | second.owned == everything
            _produce(group_broker, topic, 30, first=30)
            until(lambda: len(first.seen) + len(second.seen) >= 60, "everything is read")
            assert _values(first, second) == list(range(60))
        until(lambda: first.owned == everything, "the first has all again", wait_s=5)
        _produce(group_broker, topic, 60, first=60)
        until(lambda: len(first.seen) + len(second.seen) >= 120, "the rest is read")
    assert _values(first, second) == list(range(120)), "nothing twice, nothing left out"


@pytest.mark.proves("C2")
def test_each_group_reads_all_records(group_broker: Broker, topic: str, member: MakeMember) -> None:
    with member("a") as first, member("b") as second, member("c") as third:
        _produce(group_broker, topic, 60)
        for each in (first, second, third):
            until(lambda each=each: len(each.seen) >= 60, "everything is read")  # type: ignore[misc]
    assert _values(first) == _values(second) == _values(third) == list(range(60))


@pytest.mark.proves("C5")
def test_static_member_restarts_without_a_rebalance(group_broker: Broker, topic: str, member: MakeMember) -> None:
    with member() as other, member(instance_id="kitchen") as old:
        # A leader that joined before it knew the topic's partitions joins again: only readers are surely settled.
        _produce(group_broker, topic, 60)
        until(lambda: len(other.seen) + len(old.seen) >= 60, "everything is read")
        until(lambda: len(other.owned) == len(old.owned) == PARTITIONS // 2, "both have their half")
        had, revocations = set(old.owned), len(other.revoked)
        old.stop()
        read = len(other.seen)
        with member(instance_id="kitchen") as new:
            until(lambda: new.owned == had, "it has what it had", wait_s=10)
            _produce(group_broker, topic, 60)
            until(lambda: len(other.seen) - read + len(new.seen) >= 60, "everything is read again")
            assert len(other.revoked) == revocations, "the other member was rebalanced"


@pytest.mark.proves("C5")
@pytest.mark.parametrize("flavour", ["cooperative-sticky", "consumer"])
def test_retained_partitions_are_never_revoked(group_broker: Broker, topic: str, flavour: str) -> None:
    servers = group_broker.bootstrap_servers
    with ConfluentMember(servers, topic, topic, flavour) as first:
        until(lambda: len(first.owned) == PARTITIONS, "the first has all")
        with ConfluentMember(servers, topic, topic, flavour) as second:
            until(lambda: len(second.owned) == PARTITIONS // 2, "the second has its half")
            assert first.revoked == [second.owned]


@pytest.mark.proves("C2")
@pytest.mark.parametrize("flavour", ["range", "consumer"])
def test_new_topics_are_read_by_pattern_subscribers(group_broker: Broker, topic: str, flavour: str) -> None:
    client = admin.AdminClient({"bootstrap.servers": group_broker.bootstrap_servers, "log_level": 0})
    with ConfluentMember(group_broker.bootstrap_servers, topic, f"^{topic}.*", flavour) as member:
        until(lambda: len(member.owned) == PARTITIONS, "the first topic is there")
        client.create_topics([admin.NewTopic(f"{topic}-later", PARTITIONS, 1)])[f"{topic}-later"].result()
        _produce(group_broker, f"{topic}-later", 30)
        until(lambda: len(member.seen) >= 30, "the second topic is read")


@pytest.mark.proves("C5")
def test_group_changes_its_protocol_member_by_member(group_broker: Broker, topic: str) -> None:
    servers, everything = group_broker.bootstrap_servers, set(range(PARTITIONS))
    with ConfluentMember(servers, topic, topic, "range") as old:
        until(lambda: old.owned == everything, "the classic member has all")
        with ConfluentMember(servers, topic, topic, "consumer") as new:
            until(lambda: len(new.owned) == PARTITIONS // 2, "both have their half")
            until(lambda: old.owned | new.owned == everything, "nothing is left out")
            old.stop()
            until(lambda: new.owned == everything, "the new one has all", wait_s=10)
            with ConfluentMember(servers, topic, topic, "range") as back:
                until(lambda: len(back.owned) == PARTITIONS // 2, "and back again")
                new.stop()
                until(lambda: back.owned == everything, "the group is classic again", wait_s=10)
                _produce(group_broker, topic, 60)
                until(lambda: len(back.seen) >= 60, "everything is read")


@pytest.mark.proves("C5")
def test_consumer_joins_and_outlives_cooperative_members(group_broker: Broker, topic: str) -> None:
    servers, everything = group_broker.bootstrap_servers, set(range(PARTITIONS))
    first, second = (ConfluentMember(servers, topic, topic, "cooperative-sticky") for _ in range(2))
    with first:
        until(lambda: first.owned == everything, "the first has all")
        with second:
            until(lambda: len(second.owned) == PARTITIONS // 2, "the second has its half")
            with ConfluentMember(servers, topic, topic, "consumer") as new:
                until(lambda: len(new.owned) == PARTITIONS // 3, "the new one has its third")
                first.stop()
                second.stop()
                until(lambda: new.owned == everything, "the new one has all", wait_s=10)
