"""The backlog of a queue: jobs, ages and rates, and a look at the first ones.

Start offsets and lags come from DescribeShareGroupOffsets (KIP-1226). How many jobs are in flight is known to the
leaders of the partitions alone, which export it as metrics.
"""

import re
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from moldau.cli.cluster_client import connect
from moldau.cli.errors import CommandError
from moldau.cli.interrupts import run_async
from moldau.cli.output import show_json, show_json_line, show_table
from moldau.cli.standard_streams import write_out
from moldau.client.types import EARLIEST, LATEST
from moldau.model.ids import TopicPartition

if TYPE_CHECKING:
    from moldau.client.blocking_client import BlockingClient
    from moldau.client.share_groups import StartOffset
    from moldau.records.record import Record

METRICS_S: Final = 5.0
METRICS_BYTES_MAX: Final = 16 * 1024 * 1024
_ACQUIRED: Final = re.compile(
    r'^moldau_share_group_records\{group="((?:[^"\\]|\\.)*)",state="acquired"\} (\d+)', re.MULTILINE
)


class ListedQueue(NamedTuple):
    """A share group and a topic that it reads."""

    group: str
    state: str
    topic: str | None
    jobs: int | None


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """One sample. None: not known."""

    topic: str
    group: str
    jobs: int | None  # not finished: ready, in flight or delayed
    in_flight: int | None
    dead: int | None
    oldest_age_s: float | None
    put_per_s: float | None
    finished_per_s: float | None
    members: int


class _Sample(NamedTuple):
    taken_s: float
    end: int
    jobs: int


def listed_queues(bootstrap_servers: str) -> list[ListedQueue]:
    """All share groups, one row for each topic."""
    return run_async(_listed(bootstrap_servers))


async def _listed(bootstrap_servers: str) -> list[ListedQueue]:
    from moldau.cli.cluster_client import connect_async
    from moldau.client.groups import Groups
    from moldau.client.share_groups import ShareGroups

    rows: list[ListedQueue] = []
    async with connect_async(bootstrap_servers) as client:
        for each in await Groups(client).all():
            if each.protocol != "share":
                continue
            jobs: Counter[str] = Counter()
            for place, start in (await ShareGroups(client).start_offsets(each.group)).items():
                jobs[place.topic] += start.lag or 0
            named = [ListedQueue(each.group, each.state, topic, count) for topic, count in sorted(jobs.items())]
            rows += named or [ListedQueue(each.group, each.state, None, None)]
    return rows


def show_status(
    bootstrap_servers: str,
    topic: str,
    group: str,
    watch_s: float | None,
    metrics: Sequence[str],
    *,
    is_json: bool,
) -> None:
    """Print the status once, or at an interval until interrupted."""
    before: _Sample | None = None
    with connect(bootstrap_servers) as client:
        client.describe_topic(topic)
        while True:
            status, before = _status(client, topic, group, before, metrics)
            if is_json and watch_s is None:
                show_json(asdict(status))
            elif is_json:
                show_json_line(asdict(status))
            else:
                fields = asdict(status)
                show_table(tuple(fields), [tuple(fields.values())], numbers=tuple(fields)[2:])
            if watch_s is None:
                return
            time.sleep(watch_s)


def _status(
    client: "BlockingClient", topic: str, group: str, before: _Sample | None, metrics: Sequence[str]
) -> tuple[QueueStatus, _Sample]:
    places = [TopicPartition(topic, each.index) for each in client.describe_topic(topic).partitions]
    starts = {place: found for place, found in _starts(client, group).items() if place.topic == topic}
    ends = {place: found.offset for place, found in client.list_offsets(dict.fromkeys(places, LATEST)).items()}
    jobs = _jobs_left(client, starts, ends)
    sample = _Sample(time.monotonic(), sum(ends.values()), jobs)
    put_per_s, finished_per_s = (None, None) if before is None else _rates(before, sample)
    return (
        QueueStatus(
            topic,
            group,
            jobs,
            _in_flight(metrics, group) if metrics else None,
            _dead_count(client, group),
            _oldest_age_s(client, starts, ends),
            put_per_s,
            finished_per_s,
            _member_count(client, group),
        ),
        sample,
    )


def _starts(client: "BlockingClient", group: str) -> "dict[TopicPartition, StartOffset]":
    from moldau.client.share_groups import ShareGroups
    from moldau.model.errors import GroupIdNotFound

    try:
        return client.run(ShareGroups(client.asynchronous).start_offsets(group))
    except GroupIdNotFound:
        return {}  # before the first member joins


def _jobs_left(
    client: "BlockingClient", starts: "dict[TopicPartition, StartOffset]", ends: "dict[TopicPartition, int]"
) -> int:
    """The lags; a partition that was never delivered counts from its start, where a queue begins."""
    unread = [place for place in ends if place not in starts or starts[place].lag is None]
    first = client.list_offsets(dict.fromkeys(unread, EARLIEST)) if unread else {}
    return sum(each.lag or 0 for each in starts.values()) + sum(ends[place] - first[place].offset for place in unread)


def _rates(before: _Sample, now: _Sample) -> tuple[float, float]:
    elapsed_s = max(now.taken_s - before.taken_s, 1e-3)
    put = now.end - before.end
    return round(put / elapsed_s, 1), round((before.jobs + put - now.jobs) / elapsed_s, 1)


def _oldest_age_s(
    client: "BlockingClient", starts: "dict[TopicPartition, StartOffset]", ends: "dict[TopicPartition, int]"
) -> float | None:
    """The age of the first unfinished record of any partition."""
    first = (next(_unfinished(client, place, starts.get(place), end), None) for place, end in ends.items())
    oldest = [record.timestamp for record in first if record is not None]
    return round(max(0.0, time.time() - min(oldest) / 1000), 3) if oldest else None


def _unfinished(
    client: "BlockingClient", place: "TopicPartition", start: "StartOffset | None", end: int
) -> "Iterator[Record]":
    """The records from the start offset on; some of them may be finished, out of order."""
    from moldau.cli.queue_records import records_between

    first = client.list_offset(*place, EARLIEST).offset
    offset = first if start is None or start.offset is None else max(first, start.offset)
    return records_between(client, place, offset, end)


def peek_jobs(bootstrap_servers: str, topic: str, group: str, count: int, template: str) -> None:
    """Print the first unfinished records of each partition, `count` in all."""
    from moldau.cli.queue_records import extents
    from moldau.cli.record_format import compile_template

    formatter = compile_template(template)
    left = count
    with connect(bootstrap_servers) as client:
        starts = _starts(client, group)
        for place, (_, end) in extents(client, topic).items():
            for record in islice(_unfinished(client, place, starts.get(place), end), left):
                write_out(formatter(place.topic, place.partition, record))
                left -= 1


def _in_flight(urls: Sequence[str], group: str) -> int:
    """Add up what the brokers export."""
    total = 0
    for url in urls:
        try:
            with urllib.request.urlopen(url, timeout=METRICS_S) as page:
                text = page.read(METRICS_BYTES_MAX).decode()
        except (OSError, ValueError) as error:
            raise CommandError(f"--metrics {url}: {error}") from error
        total += sum(int(value) for each, value in _ACQUIRED.findall(text) if each == group)
    return total


def _dead_count(client: "BlockingClient", group: str) -> int | None:
    from moldau.cli.queue_dead import dead_letter_topic
    from moldau.cli.queue_records import extents
    from moldau.model.errors import UnknownTopicOrPartition

    topic = dead_letter_topic(client, group)
    try:
        return None if topic is None else sum(end - start for start, end in extents(client, topic).values())
    except UnknownTopicOrPartition:
        return 0  # it is created with the first dead letter


def _member_count(client: "BlockingClient", group: str) -> int:
    from moldau.client.groups import Groups
    from moldau.model.errors import GroupIdNotFound

    try:
        return len(client.run(Groups(client.asynchronous).describe(group)).members)
    except GroupIdNotFound:
        return 0
