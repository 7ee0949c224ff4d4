"""The figures of the activity report, from the lake and from the dead letters: a batch job."""

from typing import Any, Final

from moldau.pipelines.activity import Activity, load, sessions
from moldau.pipelines.flow import FORMAT, SqlStep
from moldau.pipelines.report import Report, Share

_TOP: Final = 15
_WINDOWS_MAX: Final = 100_000
_SCHEMA: Final = (
    "event_id string, user string, kind string, page string, at timestamp, partition int, offset bigint, "
    "run string, batch bigint, date date"
)
_LENGTHS: Final = ((0, "at once"), (60, "1 min"), (300, "5 min"), (900, "15 min"), (3600, "1 h"), (10**9, "longer"))


def make_report(spark: Any, activity: Activity, made_at: str) -> Report:
    events = spark.read.schema(_SCHEMA).parquet(activity.lake)
    facts = _sql(
        events, "select count(*) as events, count(distinct user) as users, min(at) as first, max(at) as last from input"
    ).first()
    lengths = _session_lengths(SqlStep(sessions(activity.pause)).apply(events))
    loads = SqlStep(load(activity.window)).apply(events)
    return Report(
        title=f"Activity of {activity.topic}",
        made_at=made_at,
        first=str(facts["first"]),
        last=str(facts["last"]),
        events=facts["events"],
        users=facts["users"],
        by_window=_shares(events, _by_time(activity.window)),
        by_kind=_shares(events, _by("kind", "count(*)")),
        pages=_shares(events, f"{_by('page', 'count(*)')} limit {_TOP}"),
        sessions=sum(each.count for each in lengths),
        session_lengths=lengths,
        keys=_shares(loads, _by("name", "sum(records)", "where what = 'key'") + f" limit {_TOP}"),
        partitions=_shares(
            loads,
            "select name, sum(records) as count from input where what = 'partition' group by name order by int(name)",
        ),
        dead_letters=_dead_letters(spark, activity),
    )


def _sql(frame: Any, text: str) -> Any:
    return SqlStep(text).apply(frame)


def _shares(frame: Any, text: str) -> list[Share]:
    return [Share(str(row["name"]), row["count"]) for row in _sql(frame, text).collect()]


def _by(column: str, measure: str, where: str = "") -> str:
    return f"select {column} as name, {measure} as count from input {where} group by {column} order by count desc, name"


def _by_time(window: str) -> str:
    return (
        f"select window(at, '{window}').start as name, count(*) as count from input "
        f"group by window(at, '{window}') order by name limit {_WINDOWS_MAX}"
    )


def _session_lengths(frame: Any) -> list[Share]:
    cases = " ".join(f"when seconds <= {limit} then {number}" for number, (limit, _) in enumerate(_LENGTHS))
    text = f"select cast(case {cases} end as string) as name, count(*) as count from input group by 1"
    found = {each.name: each.count for each in _shares(frame, text)}
    return [Share(name, found.get(str(number), 0)) for number, (_, name) in enumerate(_LENGTHS)]


def _dead_letters(spark: Any, activity: Activity) -> list[Share]:
    options = {
        "kafka.bootstrap.servers": activity.bootstrap_servers,
        "subscribe": f"{activity.out}.dead-letters",
        "kafka.isolation.level": "read_committed",
        "includeHeaders": "true",
    }
    letters = spark.read.format(FORMAT).options(**options).load()
    reason = "cast(filter(headers, each -> each.key = 'moldau.reason')[0].value as string)"
    return _shares(letters, f"{_by(reason, 'count(*)')} limit {_TOP}")
