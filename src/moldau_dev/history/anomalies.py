"""The anomalies by name, and the report of a check."""

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

SHOWN_MAX: Final = 20


class Name(Enum):
    """The anomalies that the checker detects."""

    INCONSISTENT_OFFSETS = "inconsistent offsets"
    DUPLICATE = "duplicate"
    LOST_WRITE = "lost write"
    UNSEEN = "unseen"
    ABORTED_READ = "aborted read"
    READ_FROM_NOWHERE = "read from nowhere"
    POLL_SKIP = "poll skip"
    NON_MONOTONIC_POLL = "non-monotonic poll"
    NON_MONOTONIC_SEND = "non-monotonic send"
    ACKED_BELOW = "acknowledged below an earlier one"
    G1C = "G1c cycle"
    TORN_TRANSACTION = "torn transaction"
    NOT_EXACTLY_ONCE = "not exactly once"


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One finding: the key and the observation."""

    name: Name
    key: str
    seen: str

    def __str__(self) -> str:
        return f"{self.name.value}: {self.key}: {self.seen}"


@dataclass(slots=True)
class Report:
    """The result of a check. Without acknowledged writes and reads it is inconclusive."""

    anomalies: list[Anomaly] = field(default_factory=list)
    acknowledged: int = 0
    failed: int = 0
    unknown: int = 0
    read: int = 0  # records, counted at each read

    @property
    def is_valid(self) -> bool:
        return not self.anomalies

    @property
    def proves_something(self) -> bool:
        return self.acknowledged > 0 and self.read > 0

    def counts(self) -> dict[str, int]:
        return dict(Counter(anomaly.name.value for anomaly in self.anomalies))

    def text(self) -> str:
        """Format the counts and the first findings of each kind."""
        verdict = "valid" if self.is_valid else "INVALID"
        if not self.proves_something:
            verdict = "inconclusive: no write was acknowledged, or no record read"
        lines = [
            f"{verdict}: {self.acknowledged} acknowledged, {self.failed} failed, {self.unknown} unknown, "
            f"{self.read} records read",
            *(f"{count} x {name}" for name, count in self.counts().items()),
        ]
        shown: Counter[Name] = Counter()
        for anomaly in self.anomalies:
            shown[anomaly.name] += 1
            if shown[anomaly.name] <= SHOWN_MAX:
                lines.append(str(anomaly))
        return "\n".join(lines)
