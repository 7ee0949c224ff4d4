"""The `uniform` assignor: equal partition counts with as few moves as possible.

Balance has priority over stickiness. With equal subscriptions the counts differ by at most one, and no assignment with
that property moves fewer partitions. With different subscriptions no single move could improve the balance.
"""

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace

from moldau.machines.groups.consumer.assignors.subscribers import (
    PartitionCounts,
    Subscriber,
    is_homogeneous,
    subscribers_by_topic,
)
from moldau.machines.groups.consumer.partitions import NO_PARTITIONS, Assignment
from moldau.model.ids import TopicId

Partition = tuple[TopicId, int]


def assign_uniform(members: Sequence[Subscriber], counts: PartitionCounts) -> Mapping[str, Assignment]:
    """Assign every partition to one of its subscribers, evenly."""
    if not members:
        return {}
    members = sorted(members, key=lambda member: member.member_id)
    return _deal(members, counts) if is_homogeneous(members) else _Balance(members, counts).run()


def _deal(members: Sequence[Subscriber], counts: PartitionCounts) -> Mapping[str, Assignment]:
    """Equal subscriptions: each keeps partitions up to its share, the rest is distributed in turn."""
    topic_ids = sorted(members[0].topic_ids)
    free = {topic_id: set(range(counts[topic_id])) for topic_id in topic_ids}
    held = [_claim(member.previous, free) for member in members]
    shares = _shares([len(kept) for kept in held], sum(counts[topic_id] for topic_id in topic_ids))
    for kept, share in zip(held, shares, strict=True):
        for topic_id, index in kept[share:]:
            free[topic_id].add(index)
        del kept[share:]
    _deal_out([(topic_id, index) for topic_id in topic_ids for index in sorted(free[topic_id])], held, shares)
    return {member.member_id: _as_assignment(member, kept) for member, kept in zip(members, held, strict=True)}


def _claim(previous: Assignment, free: Mapping[TopicId, set[int]]) -> list[Partition]:
    """Return the partitions a member may keep, in order of preference: spread over topics first."""
    claimed: list[tuple[int, TopicId, int]] = []
    for topic_id, indexes in previous.items():
        left = free.get(topic_id)
        if left is not None:
            mine = sorted(left.intersection(indexes))
            left.difference_update(mine)
            claimed.extend((rank, topic_id, index) for rank, index in enumerate(mine))
    claimed.sort()
    return [(topic_id, index) for _, topic_id, index in claimed]


def _shares(held: Sequence[int], total: int) -> list[int]:
    """Return each member's share. The remainder goes to the members with most partitions, which saves moves."""
    least, extra = divmod(total, len(held))
    shares = [least] * len(held)
    for position in sorted(range(len(held)), key=lambda position: -held[position])[:extra]:
        shares[position] += 1
    return shares


def _deal_out(free: Sequence[Partition], held: Sequence[list[Partition]], shares: Sequence[int]) -> None:
    """Assign in turn, so that a topic is spread over many members."""
    open_positions = [position for position, kept in enumerate(held) if len(kept) < shares[position]]
    turn = 0
    for partition in free:
        position = open_positions[turn % len(open_positions)]
        held[position].append(partition)
        if len(held[position]) == shares[position]:
            del open_positions[turn % len(open_positions)]
        else:
            turn += 1


def _as_assignment(member: Subscriber, partitions: Sequence[Partition]) -> Assignment:
    if not partitions:
        return NO_PARTITIONS
    by_topic: dict[TopicId, set[int]] = {}
    for topic_id, index in partitions:
        by_topic.setdefault(topic_id, set()).add(index)
    return member.previous if by_topic == member.previous else by_topic


class _Balance:
    """Different subscriptions: keep previous partitions, place the rest at the least loaded, then balance."""

    def __init__(self, members: Sequence[Subscriber], counts: PartitionCounts) -> None:
        self._members = members
        self._readers = subscribers_by_topic(members)
        self._free = {topic_id: set(range(counts[topic_id])) for topic_id in self._readers}
        # By topic, then by position of the member: kept partitions first, then new ones.
        self._held: dict[TopicId, dict[int, list[int]]] = {topic_id: {} for topic_id in self._readers}
        self._load = [0] * len(members)

    def run(self) -> Mapping[str, Assignment]:
        self._keep()
        # Topics with few subscribers have the least choice and go first.
        for topic_id in sorted(self._readers, key=lambda topic_id: (len(self._readers[topic_id]), topic_id)):
            self._place(topic_id)
        while sum(self._even_out(topic_id) for topic_id in self._readers):
            pass  # terminates: every move improves the balance
        return self._assignments()

    def _keep(self) -> None:
        for position, member in enumerate(self._members):
            for topic_id, indexes in member.previous.items():
                if topic_id in member.topic_ids:
                    mine = sorted(self._free[topic_id].intersection(indexes))
                    self._free[topic_id].difference_update(mine)
                    if mine:
                        self._held[topic_id][position] = mine
                        self._load[position] += len(mine)

    def _place(self, topic_id: TopicId) -> None:
        """Assign each free partition to the subscriber with the smallest load."""
        free = sorted(self._free[topic_id])
        if not free:
            return
        held, load = self._held[topic_id], self._load
        idlest = [(load[position], position) for position in self._readers[topic_id]]
        heapify(idlest)
        for index in free:
            position = idlest[0][1]
            held.setdefault(position, []).append(index)
            load[position] += 1
            heapreplace(idlest, (load[position], position))

    def _even_out(self, topic_id: TopicId) -> int:
        """Move a topic's partitions from its most to its least loaded members while that helps; return the number."""
        held, load = self._held[topic_id], self._load
        idlest = [(load[position], position) for position in self._readers[topic_id]]
        busiest = [(-load[position], position) for position in held]
        heapify(idlest)
        heapify(busiest)
        moved = 0
        while busiest:
            donor, receiver = busiest[0][1], idlest[0][1]
            if load[donor] - load[receiver] <= 1:
                break
            held.setdefault(receiver, []).append(held[donor].pop())
            load[donor] -= 1
            load[receiver] += 1
            heapreplace(idlest, (load[receiver], receiver))
            heappop(busiest)
            if held[donor]:
                heappush(busiest, (-load[donor], donor))
            else:
                del held[donor]
            moved += 1
        return moved

    def _assignments(self) -> dict[str, Assignment]:
        new: list[dict[TopicId, set[int]]] = [{} for _ in self._members]
        for topic_id, held in self._held.items():
            for position, indexes in held.items():
                new[position][topic_id] = set(indexes)
        return {
            member.member_id: member.previous if mine == member.previous else mine
            for member, mine in zip(self._members, new, strict=True)
        }
