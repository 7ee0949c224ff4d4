"""All topics that a user may see, as the cluster listed them a moment ago: pages of the list share one listing."""

import asyncio
from dataclasses import dataclass, field
from typing import Final

from moldau.client.async_client import AsyncClient
from moldau.client.metadata import TopicView
from moldau.model.ports import Clock
from moldau.model.units import SECOND_MS

MAX_AGE_MS: Final = 2 * SECOND_MS


@dataclass(slots=True)
class TopicIndex:
    """A listing of all topics, refreshed when it is older than two seconds."""

    client: AsyncClient
    clock: Clock
    _topics: dict[str, TopicView] = field(default_factory=dict)
    _listed_at_ms: float | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def all(self) -> dict[str, TopicView]:
        """Return the topics by name, in order of names."""
        async with self._lock:
            now_ms = self.clock.monotonic_ms()
            if self._listed_at_ms is None or now_ms - self._listed_at_ms > MAX_AGE_MS:
                topics = await self.client.describe_topics()
                self._topics = {each.name: each for each in topics if each.error is None}
                self._listed_at_ms = self.clock.monotonic_ms()
            return self._topics

    def invalidate(self) -> None:
        """List the topics again at the next call: one was changed."""
        self._listed_at_ms = None
