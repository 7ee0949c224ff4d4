"""The lines of a history: the operations of clients and their results.

{"index": 7, "time_ns": 12, "process": "producer-1", "type": "invoke", "f": "send", "value": {"key": "a-0", "value": 5}}

f           value when invoked              value when ok
send        {key, value}                    {key, value, offset}
poll        null                            {key: [[offset, value], …], …}
txn         [["send", key, value],          [["send", key, [offset, value]],
             ["poll"], …]                    ["poll", {key: [[offset, value], …]}], …]
assign      [key, …] it reads from now on   the same; other keys lose their positions
subscribe   {"group": name, "topics": […]}  the same
crash       null                            the client was discarded with its open operations

A key is a partition, `topic-0`; a value is written to a key once only. `fail` means that it certainly did not happen,
`info` that the outcome is unknown.
"""

import json
from dataclasses import dataclass
from enum import Enum
from typing import Any

Value = int | str
Read = tuple[int, Value]  # offset and value
Reads = dict[str, list[Read]]


class Kind(Enum):
    """The state of an operation."""

    INVOKE = "invoke"
    OK = "ok"
    FAIL = "fail"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Operation:
    """One line of a history."""

    index: int
    time_ns: int
    process: str
    kind: Kind
    f: str
    value: Any = None

    def line(self) -> str:
        fields = {"index": self.index, "time_ns": self.time_ns, "process": self.process}
        return json.dumps({**fields, "type": self.kind.value, "f": self.f, "value": self.value}, separators=(",", ":"))

    @classmethod
    def parse(cls, line: str) -> "Operation":
        fields = json.loads(line)
        return cls(
            fields["index"],
            fields["time_ns"],
            str(fields["process"]),
            Kind(fields["type"]),
            fields["f"],
            fields.get("value"),
        )
