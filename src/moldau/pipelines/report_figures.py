"""Computes the activity report from the lake and the dead letters, as a batch job."""

from datetime import UTC, datetime
from typing import Any, Final

from moldau.pipelines.activity import Activity, sessions
from moldau.pipelines.flow import FORMAT, SqlStep
from moldau.pipelines.hadoop_files import make_directory
from moldau.pipelines.plots import Series, Share
from moldau.pipelines.report import Report

_TOP: Final = 12
_REASONS_MAX: Final = 100_000
_STEPS_MAX: Final = 120
_SCHEMA: Final = (
    "event_id string, user string, kind string, page string, at timestamp, partition int, offset bigint, "
    "run string, batch bigint, date date"
)
_LENGTHS: Final = (
    (0, "one moment"),
    (60, "to 1 min"),
    (300, "to 5 min"),
    (900, "to 15 min"),
    (3600, "to 1 h"),
    (10**9, "longer"),
)
_UNITS: Final = (("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1))
_NICE_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200)
_DAY_S: Final = 86_400
_FACTS: Final = (
    "select count(*) as events, count(distinct user) as users, unix_seconds(min(at)) as first, "
    "unix_seconds(max(at)) as last from input"
)


def make_report(spark: Any, activity: Activity, made_at: str, *, late: int = 0, is_live: bool = False) -> Report:
    make_directory(spark, activity.lake)  # missing until the first event
    events = spark.read.schema(_SCHEMA).parquet(activity.lake)
    facts = _sql(events, _FACTS).first()
    first_s, last_s = facts["first"] or 0, facts["last"] or 0
    step_s = step_of(last_s - first_s)
    starts = range(first_s // step_s * step_s, last_s + 1, step_s)
    lengths = _session_lengths(SqlStep(sessions(activity.pause)).apply(events))
    letters, dead_letter_count = _dead_letters(spark, activity)
    return Report(
        title=f"Activity of {activity.topic}",
        made_at=made_at,
        first=moment(first_s),
        last=moment(last_s),
        events=facts["events"],
        users=facts["users"],
        step=in_words(step_s),
        times=[moment(each) for each in starts],
        by_partition=_by_partition(events, starts),
        by_kind=_shares(events, _by("kind")),
        pages=_shares(events, f"{_by('page')} limit {_TOP}"),
        sessions=sum(each.count for each in lengths),
        session_lengths=lengths,
        keys=_shares(events, f"{_by('user')} limit {_TOP}"),
        dead_letters=letters,
        dead_letter_count=dead_letter_count,
        late=late,
        is_live=is_live,
    )


def step_of(span_s: int) -> int:
    """Return a round step length that divides the span into at most _STEPS_MAX steps."""
    for nice_s in _NICE_S:
        if span_s < nice_s * _STEPS_MAX:
            return nice_s
    return _DAY_S * (1 + span_s // (_DAY_S * _STEPS_MAX))


def in_words(seconds: int) -> str:
    name, size = next((name, size) for name, size in _UNITS if seconds % size == 0)
    count = seconds // size
    return name if count == 1 else f"{count} {name}s"


def moment(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _sql(frame: Any, text: str) -> Any:
    return SqlStep(text).apply(frame)


def _shares(frame: Any, text: str) -> list[Share]:
    return [Share(str(row["name"]), row["count"]) for row in _sql(frame, text).collect()]


def _by(column: str) -> str:
    return f"select {column} as name, count(*) as count from input group by {column} order by count desc, name"


def _by_partition(events: Any, starts: range) -> list[Series]:
    """Count events per partition and step; steps without events are included as 0."""
    step = f"cast(floor((unix_seconds(at) - {starts.start}) / {starts.step}) as int)"
    rows = _sql(events, f"select partition, {step} as step, count(*) as count from input group by 1, 2").collect()
    counts = {row["partition"]: [0] * len(starts) for row in rows}
    for row in rows:
        counts[row["partition"]][row["step"]] = row["count"]
    return [Series(str(partition), counts[partition]) for partition in sorted(counts)]


def _session_lengths(frame: Any) -> list[Share]:
    cases = " ".join(f"when seconds <= {limit} then {number}" for number, (limit, _) in enumerate(_LENGTHS))
    text = f"select cast(case {cases} end as string) as name, count(*) as count from input group by 1"
    found = {each.name: each.count for each in _shares(frame, text)}
    return [Share(name, found.get(str(number), 0)) for number, (_, name) in enumerate(_LENGTHS)]


def _dead_letters(spark: Any, activity: Activity) -> tuple[list[Share], int]:
    """Return the most frequent reasons and the total number of dead letters."""
    options = {
        "kafka.bootstrap.servers": activity.bootstrap_servers,
        "subscribe": f"{activity.out}.dead-letters",
        "kafka.isolation.level": "read_committed",
        "includeHeaders": "true",
        **activity.options,
    }
    letters = spark.read.format(FORMAT).options(**options).load()
    # `get` returns null for a record without the header, where an index would fail.
    reason = "cast(get(filter(headers, each -> each.key = 'moldau.reason'), 0).value as string)"
    found = _shares(letters, f"{_by(reason)} limit {_REASONS_MAX}")
    return found[:_TOP], sum(each.count for each in found)
