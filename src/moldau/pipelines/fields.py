"""What a user may name of a record: a field of its JSON value, or what the record has beside it; and spans of time."""

import re
from dataclasses import dataclass
from typing import Final

from moldau.pipelines.requirements import PipelineError

# As `moldau sql` calls them, and without the underscore.
_RECORD: Final = {
    "key": "cast(key as string)",
    "topic": "topic",
    "partition": "cast(partition as string)",
    "offset": "cast(offset as string)",
    "timestamp": "cast(timestamp as string)",
}
_VALUE: Final = "value."
_NAME: Final = re.compile(r"[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*)*")
_SPAN: Final = re.compile(r"(\d+)\s*([A-Za-z]+)")
_UNITS: Final = {
    "ms": "milliseconds",
    "millisecond": "milliseconds",
    "s": "seconds",
    "sec": "seconds",
    "second": "seconds",
    "m": "minutes",
    "min": "minutes",
    "minute": "minutes",
    "h": "hours",
    "hour": "hours",
    "d": "days",
    "day": "days",
    "week": "weeks",
}


@dataclass(frozen=True, slots=True)
class Field:
    """By the name that it has in results."""

    name: str
    path: str | None  # in the JSON of the value; None: the record's own
    of_record: str = ""

    @property
    def text(self) -> str:
        """In SQL, as text; null where the record has no such field."""
        if self.path is None:
            return _RECORD[self.of_record]
        steps = "".join(f"['{each}']" for each in self.path.split("."))
        return f'get_json_object(cast(value as string), "${steps}")'

    @property
    def identity(self) -> str:
        """In SQL, as text that only the same has: the bytes of a key need not be text, and JSON would bend them."""
        return "hex(key)" if self.of_record == "key" else self.text

    @property
    def number(self) -> str:
        return f"try_cast({self.text} as double)"

    @property
    def time(self) -> str:
        """ISO 8601 or milliseconds; null where it is neither."""
        if self.of_record == "timestamp":
            return "timestamp"
        return (
            f"case when {self.text} rlike '^[0-9]{{9,14}}$' then timestamp_millis(cast({self.text} as bigint)) "
            f"else try_to_timestamp({self.text}) end"
        )


def field_of(text: str, option: str) -> Field:
    """`page`, `user.id`: of the value. `key`, `_key`, `partition` …: of the record; `value.key`: of the value again."""
    name = text.strip()
    if name.removeprefix("_") in _RECORD:
        return Field(name.removeprefix("_"), None, name.removeprefix("_"))
    path = name.removeprefix(_VALUE)
    if not _NAME.fullmatch(path):
        raise PipelineError(
            f"{option} {text} is no name of a field; write page, user.id, or one of {', '.join(_RECORD)} of the record"
        )
    return Field(path, path)


def span_of(text: str, option: str, *, may_be_none: bool = False) -> str:
    """A span of time as Spark has it: `90 seconds`. Short forms are taken too: 90s, 5m, 2h. None is `0 seconds`."""
    found = _SPAN.fullmatch(text.strip())
    unit = None if found is None else _UNITS.get(found[2].lower()) or _UNITS.get(found[2].lower().removesuffix("s"))
    if found is None or unit is None or (int(found[1]) == 0 and not may_be_none):
        raise PipelineError(f"{option} {text} is no span of time; write 10 seconds, 1 minute, 2 hours, or 10s, 1m, 2h")
    return f"{found[1]} {unit}"
