"""`activity`: raw events → validated → deduplicated → counts, sessions, load → topics, Parquet lake, report.

raw topic ── clean ──┬─ <out>.events         checked events, each event id once within the watermark
                     └─ <out>.dead-letters   rejected events unchanged, with the reason; in the same transaction
<out>.events ────────┬─ counts   → <out>.counts     events by window, kind and page
                     ├─ sessions → <out>.sessions   a user's events without a long pause
                     ├─ load     → <out>.load       records by window and key, and by window and partition
                     └─ lake     → Parquet files

Each arrow is a query with its own checkpoint. The report is computed from the lake and refreshed while they run.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from moldau.client.blocking_client import BlockingClient
from moldau.client.types import NewTopic
from moldau.model.errors import TopicAlreadyExists
from moldau.pipelines.archive_sink import ArchiveSink
from moldau.pipelines.flow import Flow, SqlStep, Step, TopicSink, TopicSource
from moldau.pipelines.job_runner import RunConfig, run_queries
from moldau.pipelines.pyspark_script import queries_script
from moldau.pipelines.report_refresh import REPORT_EVERY_S, Refresh, write_report
from moldau.pipelines.restarted_query import RestartingQuery
from moldau.pipelines.run_folder import Run
from moldau.pipelines.steps import DeduplicateStep, WatermarkStep

KINDS: Final = ("view", "click", "search", "cart", "purchase")
EVENT: Final = "event_id string, user string, kind string, page string, at string"
_TOO_LONG: Final = 200
OUTPUTS: Final = ("events", "dead-letters", "counts", "sessions", "load")

_PARSED: Final = f"""
select *, from_json(cast(value as string), '{EVENT}') as event from input
"""
# The first failed check. Times are ISO 8601 or milliseconds; a far future time would make all others late.
_CHECKED: Final = f"""
select *, case
    when value is null then 'no value'
    when event is null or (event.event_id is null and event.user is null and event.at is null) then 'not a JSON event'
    when event.event_id is null or event.event_id = '' then 'event_id is missing'
    when length(event.event_id) > {_TOO_LONG} then 'event_id is too long'
    when event.user is null or event.user = '' then 'user is missing'
    when event.kind is null then 'kind is missing'
    when event.kind not in ({", ".join(f"'{each}'" for each in KINDS)})
        then concat('kind is unknown: ', left(event.kind, 50))
    when happened is null then concat('at is not a time: ', coalesce(left(event.at, 50), 'null'))
    when happened > timestamp + interval 1 day then concat('at is in the future: ', left(event.at, 50))
    end as reason
from (select *, case when event.at rlike '^[0-9]{{9,14}}$' then timestamp_millis(cast(event.at as bigint))
    else try_to_timestamp(event.at) end as happened from input)
"""
# Rejected rows get no event time and a unique identity: they are never late and never duplicates.
_KEYED: Final = """
select *, case when reason is null then happened end as event_time,
    case when reason is null then event.event_id else concat_ws('/', topic, partition, offset) end as identity
from input
"""


def routed_records(out: str) -> str:
    """Route valid rows to the events topic and rejected rows to the dead-letter topic."""
    return f"""
select
    if(reason is null, '{out}.events', '{out}.dead-letters') as topic,
    if(reason is null, cast(event.user as binary), key) as key,
    if(reason is null, cast(to_json(named_struct(
        'event_id', event.event_id, 'user', event.user, 'kind', event.kind, 'page', event.page,
        'at', event_time, 'partition', partition, 'offset', offset)) as binary), value) as value,
    if(reason is null, headers, concat(coalesce(headers, array()), array(
        named_struct('key', 'moldau.reason', 'value', cast(reason as binary)),
        named_struct('key', 'moldau.topic', 'value', cast(topic as binary)),
        named_struct('key', 'moldau.partition', 'value', cast(cast(partition as string) as binary)),
        named_struct('key', 'moldau.offset', 'value', cast(cast(offset as string) as binary))))) as headers
from input
"""


EVENTS: Final = """
select event.* from (select from_json(cast(value as string),
    'event_id string, user string, kind string, page string, at timestamp, partition int, offset bigint') as event
    from input)
"""


def counts(window: str) -> str:
    return f"""
select date_format(window.start, "yyyy-MM-dd'T'HH:mm:ss'Z'") as start, kind, page, events from (
    select window(at, '{window}') as window, kind, page, count(*) as events from input
    group by window(at, '{window}'), kind, page)
"""


def sessions(pause: str) -> str:
    return f"""
select user, date_format(session.start, "yyyy-MM-dd'T'HH:mm:ss'Z'") as start,
    unix_seconds(last) - unix_seconds(session.start) as seconds, events, purchases from (
    select session_window(at, '{pause}') as session, user, max(at) as last, count(*) as events,
        count_if(kind = 'purchase') as purchases
    from input group by session_window(at, '{pause}'), user)
"""


def load(window: str) -> str:
    """Count records by raw partition and by key, which shows hot partitions and hot keys."""
    return f"""
select date_format(window.start, "yyyy-MM-dd'T'HH:mm:ss'Z'") as start, what, name, records from (
    select window(at, '{window}') as window, place.what as what, place.name as name, count(*) as records
    from (select at, explode(array(named_struct('what', 'partition', 'name', cast(partition as string)),
        named_struct('what', 'key', 'name', user))) as place from input)
    group by window(at, '{window}'), place.what, place.name)
"""


def as_record(key: str, *names: str) -> str:
    columns = ", ".join(names)
    return f"select cast({key} as binary) as key, cast(to_json(struct({columns})) as binary) as value from input"


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """The flows of the pipeline; each is a query with its own name."""

    name: str
    bootstrap_servers: str
    topic: str
    out: str
    lake: str
    starting: str = "earliest"
    lateness: str = "10 minutes"
    window: str = "1 minute"
    pause: str = "30 minutes"
    every: str = "1 second"
    rows_per_batch_max: int = 500_000
    options: Mapping[str, str] = field(default_factory=dict)  # Kafka client options for all reads and writes
    raw_options: Mapping[str, str] = field(default_factory=dict)  # further client options for the raw topic

    def clean(self) -> Flow:
        source = TopicSource(
            bootstrap_servers=self.bootstrap_servers,
            topics=(self.topic,),
            starting=self.starting,
            group=self.name,
            rows_per_batch_max=self.rows_per_batch_max,
            options={**self.options, **self.raw_options},
        )
        once = (WatermarkStep("event_time", self.lateness), DeduplicateStep("identity"))
        steps = (*self.checking(), *once, SqlStep(routed_records(self.out)))
        sink = TopicSink(bootstrap_servers=self.bootstrap_servers, options=self.options)
        return Flow(job="activity", name=f"{self.name}-clean", source=source, steps=steps, sink=sink)

    @staticmethod
    def checking() -> tuple[Step, ...]:
        return SqlStep(_PARSED), SqlStep(_CHECKED), SqlStep(_KEYED)

    def results(self) -> list[Flow]:
        """Return the flows that read the checked events."""
        return [
            self._result("counts", counts(self.window), as_record("page", "start", "kind", "page", "events")),
            self._result(
                "sessions", sessions(self.pause), as_record("user", "user", "start", "seconds", "events", "purchases")
            ),
            self._result("load", load(self.window), as_record("name", "start", "what", "name", "records")),
            Flow(
                job="activity",
                name=f"{self.name}-lake",
                source=self._events("lake"),
                steps=(SqlStep(EVENTS), SqlStep("select *, to_date(at) as date from input")),
                sink=ArchiveSink(self.lake, "date"),
            ),
        ]

    def _result(self, what: str, query: str, record: str) -> Flow:
        steps = (SqlStep(EVENTS), WatermarkStep("at", self.lateness), SqlStep(query), SqlStep(record))
        sink = TopicSink(bootstrap_servers=self.bootstrap_servers, topic=f"{self.out}.{what}", options=self.options)
        return Flow(job="activity", name=f"{self.name}-{what}", source=self._events(what), steps=steps, sink=sink)

    def _events(self, reader: str) -> TopicSource:
        return TopicSource(
            bootstrap_servers=self.bootstrap_servers,
            topics=(f"{self.out}.events",),
            group=f"{self.name}-{reader}",
            rows_per_batch_max=self.rows_per_batch_max,
            options=self.options,
        )

    def run(self, config: RunConfig, run: Run, report: Path, report_every_s: float = REPORT_EVERY_S) -> None:
        """Run all queries in parallel; with `once`, in sequence, because each reads the output of the one before."""
        parts = self.parts()
        stages = [[part] for part in parts] if config.once else [parts]
        refresh = Refresh(lambda spark: self._write_report(spark, config, report, is_live=True), report_every_s)
        run_queries(
            [partial(self._start, flows, config) for flows in stages],
            config,
            run,
            finish=lambda spark: self._write_report(spark, config, report, is_live=False),
            meanwhile=refresh,
        )

    def parts(self) -> list[Flow]:
        return [self.clean(), *self.results()]

    def checkpoint_of(self, flow: Flow, place: str) -> str:
        return f"{place}/{flow.name.removeprefix(f'{self.name}-')}"

    def script(self, *, master: str | None, checkpoint: str, once: bool) -> str:
        """Return a plain PySpark script with all queries."""
        flows = [(part, self.checkpoint_of(part, checkpoint)) for part in self.parts()]
        return queries_script(self.name, flows, self.topics, master=master, every=None if once else self.every)

    def _start(self, flows: list[Flow], config: RunConfig, spark: Any) -> Iterator[Any]:
        for flow in flows:
            checkpoint = self.checkpoint_of(flow, config.checkpoint_place)
            query = RestartingQuery(partial(flow.start, spark, checkpoint, once=config.once, every=self.every))
            yield query
            query.wait_until_started()

    def _write_report(self, spark: Any, config: RunConfig, place: Path, *, is_live: bool) -> None:
        from moldau.pipelines.report_figures import make_report

        made_at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
        late = sum(each.late_total for each in config.folder.parts if each.part == "clean")
        write_report(place, make_report(spark, self, made_at, late=late, is_live=is_live))

    @property
    def topics(self) -> list[str]:
        return [f"{self.out}.{each}" for each in OUTPUTS]

    def create_topics(self, client: BlockingClient, partitions: int) -> None:
        """Create the topics that do not exist."""
        for outcome in client.create_topics([NewTopic(each, partitions) for each in self.topics]):
            if outcome.error is not None and not isinstance(outcome.error, TopicAlreadyExists):
                raise outcome.error
