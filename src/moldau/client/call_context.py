"""The context of one call and all its attempts: its deadline, and the metadata it used."""

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

from moldau.client.metadata import TopicView

# Nested requests share the deadline of their call; a lookup shared by several calls has none.
CURRENT_CALL: Final[ContextVar["CallContext | None"]] = ContextVar("the call under way", default=None)


@dataclass(slots=True)
class CallContext:
    """The state of one call across its attempts."""

    deadline_ms: float
    used: dict[str, TopicView] = field(default_factory=dict)  # the metadata that the last attempt used
    known: set[str] = field(default_factory=set)  # topics that any attempt has found
    unknown_since_ms: float | None = None  # since when every attempt has failed with an unknown topic or broker

    def begin_attempt(self) -> None:
        self.used.clear()

    def record_view(self, view: TopicView) -> None:
        self.used[view.name] = view
        self.known.add(view.name)

    def unknown_ms(self, now_ms: float) -> float:
        """Return for how long the topic or broker has been unknown."""
        if self.unknown_since_ms is None:
            self.unknown_since_ms = now_ms
        return now_ms - self.unknown_since_ms
