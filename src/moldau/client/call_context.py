"""One call that is tried until it works: until when it may take, and what was found out on the way."""

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

from moldau.client.metadata import TopicView

# Whatever a call asks in turn ends with it; a look-up that several calls share is none of theirs.
UNDER_WAY: Final[ContextVar["Call | None"]] = ContextVar("the call under way", default=None)


@dataclass(slots=True)
class Call:
    """All the tries of one call together."""

    deadline_ms: float
    used: dict[str, TopicView] = field(default_factory=dict)  # what the last try went by
    known: set[str] = field(default_factory=set)  # topics that any try has found
    unknown_since_ms: float | None = None  # since when we hear that something does not exist, and nothing else

    def begin_try(self) -> None:
        self.used.clear()

    def go_by(self, view: TopicView) -> None:
        self.used[view.name] = view
        self.known.add(view.name)

    def unknown_ms(self, now_ms: float) -> float:
        """How long it has been unknown, with this time."""
        if self.unknown_since_ms is None:
            self.unknown_since_ms = now_ms
        return now_ms - self.unknown_since_ms
