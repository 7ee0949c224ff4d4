"""Partitions of keys equal those of Kafka's producers; keyless records share batches."""

import random
from collections import Counter
from itertools import pairwise

import pytest
from aiokafka.partitioner import murmur2 as murmur2_of_aiokafka

from moldau.client.partitioner import StickyPartitioner, murmur2, partition_for_key

# From the tests of Apache Kafka's own hash.
KNOWN = [
    (b"21", -973932308),
    (b"foobar", -790332482),
    (b"a-little-bit-long-string", -985981536),
    (b"a-little-bit-longer-string", -1486304829),
    (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    (b"abc", 479470107),
]


@pytest.mark.proves("T2", part="keyed")
@pytest.mark.parametrize(("key", "signed"), KNOWN)
def test_hash_equals_kafkas_murmur2(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed & 0xFFFFFFFF


@pytest.mark.proves("T2", part="keyed")
def test_partition_of_a_key_equals_that_of_other_clients() -> None:
    chance = random.Random(5)
    for _ in range(500):
        key = chance.randbytes(chance.randrange(0, 40))
        partitions = chance.randrange(1, 200)
        theirs = murmur2_of_aiokafka(key)
        assert partition_for_key(key, partitions) == (theirs & 0x7FFFFFFF) % partitions


@pytest.mark.proves("T2", part="keyless")
def test_keyless_records_fill_a_batch_before_the_next_partition() -> None:
    sticky = StickyPartitioner(random.Random(1), 8)
    visits = Counter()  # type: Counter[int]
    for _ in range(800):
        before = sticky.current
        assert sticky.current == before
        visits[before] += 1
        sticky.on_batch_sent()
        assert sticky.current != before
    assert set(visits) == set(range(8))
    assert max(visits.values()) < 2 * min(visits.values())


@pytest.mark.proves("T2", part="keyless")
@pytest.mark.parametrize("led", [[1, 3, 6], [5]])
def test_leaderless_partition_is_not_chosen_while_another_has_a_leader(led: list[int]) -> None:
    for seed in range(20):
        sticky = StickyPartitioner(random.Random(seed), 8, lambda: led)
        drawn = [sticky.current]
        for _ in range(50):
            sticky.on_batch_sent()
            drawn.append(sticky.current)
        assert set(drawn) == set(led)
        assert len(led) == 1 or all(one != other for one, other in pairwise(drawn))


def test_all_partitions_are_chosen_when_none_has_a_leader() -> None:
    sticky = StickyPartitioner(random.Random(1), 4, list)
    drawn = set()
    for _ in range(100):
        drawn.add(sticky.current)
        sticky.on_batch_sent()
    assert drawn == {0, 1, 2, 3}


def test_single_partition_is_always_chosen() -> None:
    sticky = StickyPartitioner(random.Random(1), 1)
    sticky.on_batch_sent()
    assert sticky.current == 0
