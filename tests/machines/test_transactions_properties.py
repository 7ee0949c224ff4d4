"""Invariants of transactions under any order of requests, network faults, timeouts and failovers."""

from collections import Counter
from random import Random

import pytest
from transactions_scene import NAME, ONE, OTHER, TIMEOUT_MS, TWO, V2
from transactions_world import World

from moldau.machines.transactions.state import (
    COMPLETED,
    EPOCH_BUMP_VERSION,
    EPOCH_EXHAUSTED,
    EPOCH_MAX,
    PREPARED,
    ProducerIdentity,
    Transaction,
    TransactionState,
    transaction_from,
)
from moldau.wire.data_records import decode_transaction_record

pytestmark = pytest.mark.proves("P3")

STEPS = 1_000
WALKS = 40


def step(world: World) -> None:
    """Do one step, mostly successful, so that faults meet a working transaction."""
    random = world.random
    index = int(random.random() < 0.02)  # the second producer fences, or is fenced
    producer = world.producers[index]
    chance = random.random()
    if chance < 0.36:
        world.deliver(again=random.random() < 0.1)
    elif chance < 0.58:
        world.coordinator.commit(random.randint(1, 3))
    elif chance < 0.68:
        world.write(producer, random.choice([ONE, TWO, OTHER]))
    elif chance < 0.76:
        world.end(producer, is_commit=random.random() < 0.8)
    elif chance < 0.88:
        world.deliver_marker(again=random.random() < 0.2)
    elif chance < 0.98:
        ask_again(world, index)
    elif chance < 0.984:
        world.go_on(producer)
    elif chance < 0.99:
        world.coordinator.pass_time(random.choice([1_000, 1_000, TIMEOUT_MS]))
    elif chance < 0.994:
        world.restart(index)
    else:
        fail_over(world)


def ask_again(world: World, index: int) -> None:
    """Retry what has no response yet; a producer with a final error starts over."""
    producer = world.producers[index]
    if producer.is_dead:
        world.restart(index)
    elif producer.request is not None and (producer.request not in world.network or world.random.random() < 0.05):
        world.send(producer.request, producer.version)


def fail_over(world: World) -> None:
    """In version 1 a very late marker may settle another transaction; so earlier ones are dropped."""
    world.outstanding = [each for each in world.outstanding if each[0].transaction_version >= V2]
    world.coordinator.fail_over(world.random.randint(0, 2))


def settle(world: World) -> None:
    """Deliver everything; transactions without an end time out."""
    for _ in range(4):
        for _ in range(10_000):
            world.coordinator.commit(10)
            world.deliver()
            world.deliver_marker()
            if world.is_quiet:
                break
        assert world.is_quiet, "a request waits forever"
        world.coordinator.pass_time(2 * TIMEOUT_MS)
    assert not world.coordinator.machine.state.open


def check(world: World) -> None:
    check_outcomes(world)
    check_history(history(world))


def check_outcomes(world: World) -> None:
    """All or nothing, as requested and as acknowledged."""
    for transaction in range(1, world.transactions + 1):
        outcomes = {
            name: partition.outcomes[transaction]
            for name, partition in world.partitions.items()
            if transaction in partition.outcomes
        }
        assert len(set(outcomes.values())) <= 1, "a torn transaction"
        is_committed = True in outcomes.values()
        assert not is_committed or world.requested.get(transaction) is True, "committed without a request"
        if transaction in world.outcomes:
            assert not outcomes or is_committed is world.outcomes[transaction], "not the acknowledged outcome"
        if is_committed or world.outcomes.get(transaction) is True:
            assert world.acknowledged[transaction] <= outcomes.keys(), "records were lost from a transaction"
    for partition in world.partitions.values():
        assert not any(written.open for written in partition.producers.values()), "a transaction hangs"


def history(world: World) -> list[Transaction]:
    values = [decode_transaction_record(*each)[1] for each in world.coordinator.log]
    return [transaction_from(value) for value in values if value is not None]


def check_history(transactions: list[Transaction]) -> None:
    """Epochs only grow, producer ids are not reused, and from version 2 on no two transactions share an epoch."""
    seen: dict[int, int] = {}
    ended: set[ProducerIdentity] = set()
    before: Transaction | None = None
    for each in transactions:
        assert each.epoch <= EPOCH_MAX
        assert each.epoch >= seen.get(each.producer_id, 0)
        if before is not None and each.producer_id != before.producer_id:
            assert each.producer_id not in seen, "a producer id came back"
        seen[each.producer_id] = each.epoch
        if each.state is TransactionState.ONGOING:
            assert (each.producer_id, each.epoch) not in ended, "a transaction went on after its end"
            assert each.epoch <= EPOCH_EXHAUSTED
        if each.state in PREPARED:
            assert before is not None
            if each.client_version >= EPOCH_BUMP_VERSION:
                ended.add(ProducerIdentity(before.producer_id, before.epoch))
                assert each.epoch > before.epoch
        if each.state in COMPLETED and before is not None and before.state in PREPARED:
            assert (each.state is TransactionState.COMPLETE_COMMIT) is (before.state is TransactionState.PREPARE_COMMIT)
        before = each


def walk(seed: int, epoch: int | None = None) -> World:
    world = World(Random(seed), epoch=epoch)
    for _ in range(STEPS):
        step(world)
    settle(world)
    check(world)
    return world


@pytest.mark.parametrize("chunk", range(3))
def test_every_transaction_ends_once_and_atomically(chunk: int) -> None:
    for seed in range(chunk * WALKS, (chunk + 1) * WALKS):
        walk(seed)


@pytest.mark.parametrize("chunk", range(3))
def test_transactions_are_atomic_when_epochs_are_exhausted(chunk: int) -> None:
    for seed in range(chunk * WALKS, (chunk + 1) * WALKS):
        walk(seed, EPOCH_EXHAUSTED - 1 - seed % 6)


def test_runs_contain_every_kind_of_event() -> None:
    """A property of runs without events would be worth nothing."""
    counts: Counter[str] = Counter()
    for seed in range(WALKS):
        world = walk(seed, EPOCH_EXHAUSTED - 3)
        counts["committed"] += sum(world.outcomes.values())
        counts["aborted"] += len(world.outcomes) - sum(world.outcomes.values())
        counts["failovers"] += world.coordinator.epoch
        counts["rotated"] += world.coordinator.machine.state.transactions[NAME].producer_id > 1
    assert counts["committed"] > 2 * WALKS
    assert counts["aborted"] > 2 * WALKS
    assert counts["failovers"] > WALKS
    assert counts["rotated"] > WALKS // 2
