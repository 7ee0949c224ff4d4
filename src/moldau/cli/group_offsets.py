"""Lag of consumer groups, and plans to reset their offsets."""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from moldau.cli.errors import CommandError, usage_error
from moldau.cli.options import duration_ms
from moldau.cli.partial_results import available_offsets
from moldau.cli.positions import parse_position
from moldau.client.groups import DescribedGroup, Groups
from moldau.client.metadata import TopicView
from moldau.client.positions import AtTime, Extent, extents, resolve
from moldau.client.share_groups import ShareGroups
from moldau.client.types import LATEST, Isolation
from moldau.model.ids import TopicPartition
from moldau.node.ports.clock import SystemClock

Move = tuple[TopicPartition, int | None, int]  # from, to


class Progress(NamedTuple):
    """One partition of a group."""

    topic: str
    partition: int
    committed: int | None
    end: int | None
    lag: int | None
    member: str | None
    host: str | None


class Plan(NamedTuple):
    """The options of reset-offsets; one of the last four is given."""

    topics: list[str]
    to: str | None
    shift: int | None
    by_duration: str | None
    from_file: Path | None


async def progress(groups: Groups, described: DescribedGroup) -> list[Progress]:
    """Return every partition that has a committed offset or is assigned, with its lag."""
    committed = await groups.offsets(described.group)
    assigned = {place for member in described.members for place in member.partitions}
    places = sorted(assigned | committed.keys())
    ends = await _ends(groups, places)
    rows = []
    for place in places:
        offset, end, owner = committed.get(place), ends.get(place), described.owner(place)
        lag = None if offset is None or end is None else max(0, end - offset)
        rows.append(
            Progress(
                place.topic,
                place.partition,
                offset,
                end,
                lag,
                owner.member_id if owner else None,
                owner.host if owner else None,
            )
        )
    return rows


class ShareProgress(NamedTuple):
    """One partition of a share group."""

    topic: str
    partition: int
    start: int | None
    lag: int | None
    members: int


async def share_progress(groups: Groups, described: DescribedGroup) -> list[ShareProgress]:
    """Return every partition of a share group with its start offset, lag and number of members."""
    offsets = await ShareGroups(groups.client).start_offsets(described.group)
    counts = Counter(place for member in described.members for place in member.partitions)
    return [
        ShareProgress(place.topic, place.partition, start.offset, start.lag, counts[place])
        for place, start in sorted(offsets.items())
    ]


async def committed_offsets(groups: Groups, group: str, *, is_share_group: bool) -> dict[TopicPartition, int]:
    """Return committed offsets, or the start offsets of a share group that has begun to read."""
    if not is_share_group:
        return await groups.offsets(group)
    offsets = await ShareGroups(groups.client).start_offsets(group)
    return {place: start.offset for place, start in offsets.items() if start.offset is not None}


async def set_offsets(
    groups: Groups, group: str, offsets: Mapping[TopicPartition, int], *, is_share_group: bool
) -> None:
    """Commit offsets, or set the start offsets of a share group."""
    if is_share_group:
        await ShareGroups(groups.client).alter(group, offsets)
    else:
        await groups.commit(group, offsets)


async def delete_start_offsets(groups: Groups, group: str, topics: list[str]) -> None:
    """Delete the start offsets of whole topics of a share group."""
    for text in topics:
        if ":" in text:
            raise usage_error(f"--topic {text}: start offsets of share groups are deleted by whole topics")
    failed = await ShareGroups(groups.client).delete_offsets(group, set(topics))
    if failed:
        raise CommandError("; ".join(f"{name}: {error.message}" for name, error in sorted(failed.items())))


async def _ends(groups: Groups, places: list[TopicPartition]) -> dict[TopicPartition, int]:
    """Return end offsets, of partitions that exist and have a leader."""
    there = {view.name: view for view in await groups.client.describe_topics()}
    led = [place for place in places if place.topic in there and _has_leader(groups, there[place.topic], place)]
    found = await available_offsets(groups.client, [(place, LATEST) for place in led])
    return {place: offset for (place, _), offset in found.items()}


def _has_leader(groups: Groups, topic: TopicView, place: TopicPartition) -> bool:
    partition = topic.partition(place.partition)
    return partition is not None and partition.leader in groups.client.metadata.brokers


async def plan(groups: Groups, committed: Mapping[TopicPartition, int], wanted: Plan) -> list[Move]:
    """Return each partition with its committed and its new offset."""
    if wanted.from_file is not None:
        targets = _read_file(wanted.from_file)
        known = await _extents(groups, targets)
        return [(place, committed.get(place), _within(targets[place], known[place])) for place in sorted(targets)]
    places = await _places(groups, committed, wanted.topics)
    known = await _extents(groups, places)
    if wanted.shift is not None:
        shifted = {place: committed[place] + wanted.shift for place in places if place in committed}
        if not shifted:
            raise CommandError("the group has no offsets to shift there: use --to")
        return [(place, committed[place], _within(offset, known[place])) for place, offset in sorted(shifted.items())]
    position = AtTime(_ago_ms(wanted.by_duration)) if wanted.by_duration else parse_position(wanted.to or "", "--to")
    offsets = await resolve(groups.client, position, known, Isolation.READ_UNCOMMITTED)
    return [(place, committed.get(place), offsets[place]) for place in sorted(places)]


async def _places(groups: Groups, committed: Mapping[TopicPartition, int], topics: list[str]) -> list[TopicPartition]:
    """Return the partitions selected by --topic, or all that the group has committed."""
    if not topics:
        if not committed:
            raise CommandError("the group has no offsets yet: select topics with --topic")
        return sorted(committed)
    views = {view.name: view for view in await groups.client.describe_topics()}
    everything = [TopicPartition(view.name, each.index) for view in views.values() for each in view.partitions]
    return chosen(everything, topics)


def chosen(places: Iterable[TopicPartition], topics: list[str]) -> list[TopicPartition]:
    """Return the partitions selected by the --topic options."""
    known = sorted(places)
    found: dict[TopicPartition, None] = {}
    for text in topics:
        name, _, partition = text.partition(":")
        matching = [each for each in known if each.topic == name and partition in ("", str(each.partition))]
        if not matching:
            raise CommandError(f"--topic {text}: no such topic or partition")
        found.update(dict.fromkeys(matching))
    return sorted(found)


async def _extents(groups: Groups, places: Iterable[TopicPartition]) -> dict[TopicPartition, Extent]:
    return await extents(groups.client, sorted(places), Isolation.READ_UNCOMMITTED)


def _within(offset: int, extent: Extent) -> int:
    return min(max(offset, extent.start), extent.end)


def _ago_ms(text: str | None) -> int:
    # Negative timestamps have other meanings in the protocol (earliest, latest).
    return max(SystemClock().wall_ms() - duration_ms(text or "", "--by-duration"), 0)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError:
        raise usage_error(f"{path} is not UTF-8 text; write topic,partition,offset") from None


def _read_file(path: Path) -> dict[TopicPartition, int]:
    targets: dict[TopicPartition, int] = {}
    for number, line in enumerate(_text(path).splitlines(), 1):
        if not line.strip():
            continue
        parts = [part.strip().strip('"') for part in line.split(",")]
        if len(parts) != 3 or not parts[1].isdecimal() or not parts[2].isdecimal():
            raise usage_error(f"{path}:{number}: write topic,partition,offset")
        targets[TopicPartition(parts[0], int(parts[1]))] = int(parts[2])
    if not targets:
        raise usage_error(f"{path} contains no offsets")
    return targets
