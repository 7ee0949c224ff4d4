"""Options that name a field of the JSON value or a column of the record, and durations."""

import re
from dataclasses import dataclass
from typing import Final

from moldau.pipelines.requirements import PipelineError

# The names that `moldau sql` uses, with or without the underscore.
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
    """A field under its name in results."""

    name: str
    path: str | None  # JSON path in the value; None: a column of the record
    of_record: str = ""

    @property
    def text(self) -> str:
        """SQL for the field as text; null if the record lacks it."""
        if self.path is None:
            return _RECORD[self.of_record]
        steps = "".join(f"['{each}']" for each in self.path.split("."))
        return f'get_json_object(cast(value as string), "${steps}")'

    @property
    def identity(self) -> str:
        """SQL for text that is equal only for equal values; keys are encoded, because their bytes need not be UTF-8."""
        return "hex(key)" if self.of_record == "key" else self.text

    @property
    def number(self) -> str:
        return f"try_cast({self.text} as double)"

    @property
    def time(self) -> str:
        """SQL for a timestamp from ISO 8601 or milliseconds; null for any other text."""
        if self.of_record == "timestamp":
            return "timestamp"
        return (
            f"case when {self.text} rlike '^[0-9]{{9,14}}$' then timestamp_millis(cast({self.text} as bigint)) "
            f"else try_to_timestamp({self.text}) end"
        )


def field_of(text: str, option: str) -> Field:
    """Parse a field: `page`, `user.id`, `value.key` are in the value; `key`, `_key`, `partition` … in the record."""
    name = text.strip()
    if name.removeprefix("_") in _RECORD:
        return Field(name.removeprefix("_"), None, name.removeprefix("_"))
    path = name.removeprefix(_VALUE)
    if not _NAME.fullmatch(path):
        raise PipelineError(
            f"{option} {text} is not a field name; write page, user.id, or one of {', '.join(_RECORD)} of the record"
        )
    return Field(path, path)


def span_of(text: str, option: str, *, may_be_none: bool = False) -> str:
    """Parse a duration to Spark's form (`90 seconds`). Accepts 90s, 5m, 2h; None becomes `0 seconds`."""
    found = _SPAN.fullmatch(text.strip())
    unit = None if found is None else _UNITS.get(found[2].lower()) or _UNITS.get(found[2].lower().removesuffix("s"))
    if found is None or unit is None or (int(found[1]) == 0 and not may_be_none):
        raise PipelineError(f"{option} {text} is not a duration; write 10 seconds, 1 minute, 2 hours, or 10s, 1m, 2h")
    return f"{found[1]} {unit}"
