"""The `simple` assignor of KIP-932: several members may share a partition.

Each topic is balanced over its subscribers on its own. With at least as many partitions as subscribers, every partition
goes to one of them; with fewer, every partition gets so many members that each subscriber has one. The counts of two
members, and of two partitions, differ by at most one within a topic. Members keep what they have as far as that allows.
Topics with different remainders start at different members, so that the remainders do not add up on the first ones.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from moldau.machines.groups.consumer.assignors.subscribers import PartitionCounts, Subscriber, subscribers_by_topic
from moldau.machines.groups.consumer.partitions import Assignment
from moldau.model.ids import TopicId

SIMPLE: Final = "simple"


def assign_simple(members: Sequence[Subscriber], counts: PartitionCounts) -> Mapping[str, Assignment]:
    """Assign the partitions of each topic to the topic's subscribers, evenly and sharing if there are too few."""
    members = sorted(members, key=lambda member: member.member_id)
    assigned: list[dict[TopicId, frozenset[int]]] = [{} for _ in members]
    totals = [0] * len(members)
    for topic_id, positions in subscribers_by_topic(members).items():
        if not counts[topic_id]:
            continue
        positions.sort(key=lambda position: totals[position])  # stable: by member id among equals
        previous = [members[position].previous.get(topic_id, frozenset()) for position in positions]
        for position, indexes in zip(
            positions, _share([set(each) for each in previous], counts[topic_id]), strict=True
        ):
            if indexes:
                assigned[position][topic_id] = frozenset(indexes)
                totals[position] += len(indexes)
    return {member.member_id: _kept(member, new) for member, new in zip(members, assigned, strict=True)}


def _kept(member: Subscriber, new: Assignment) -> Assignment:
    return member.previous if new == member.previous else new


def _share(previous: list[set[int]], partitions: int) -> list[set[int]]:
    """Return the partitions of each subscriber: as before where possible, moved only for balance."""
    slots = max(partitions, len(previous))
    most_members = -(-slots // partitions)
    full_partitions = slots - (most_members - 1) * partitions  # partitions that get the larger number of members
    least, extra = divmod(slots, len(previous))
    given: list[set[int]] = [set() for _ in previous]
    members_of = [0] * partitions
    shares = _shares([len(each) for each in previous], least, extra)
    for number, held in enumerate(previous):
        for index in sorted(held):
            if index >= partitions or len(given[number]) >= shares[number]:
                continue
            is_last = members_of[index] == most_members - 1
            if members_of[index] < most_members and (not is_last or full_partitions > 0):
                full_partitions -= is_last
                members_of[index] += 1
                given[number].add(index)
    for number, share in enumerate(shares):
        missing = share - len(given[number])
        if missing > 0:
            free = (index for index in range(partitions) if index not in given[number])
            for index in sorted(free, key=lambda index: (members_of[index], index))[:missing]:
                members_of[index] += 1
                given[number].add(index)
    return given


def _shares(held: Sequence[int], least: int, extra: int) -> list[int]:
    """Return each subscriber's share. The remainder goes to those that hold more already, which saves moves."""
    shares = [least] * len(held)
    for number in sorted(range(len(held)), key=lambda number: held[number] <= least)[:extra]:
        shares[number] += 1
    return shares
