"""Sessions: a user of the console with a client of the cluster that acts as this user.

Without login there is one session for all, with the credentials of the command. With login, a session begins when the
cluster accepts a user's SASL credentials. The browser keeps its random id in a cookie that scripts cannot read; the
credentials stay in this process, and end with the session.
"""

from dataclasses import dataclass, field
from typing import Final

from moldau.client.async_client import AsyncClient
from moldau.client.merged_batches import MergedBatches
from moldau.console.errors import ConsoleError
from moldau.console.schema_values import SchemaValues
from moldau.console.settings import Connect, ConsoleSettings
from moldau.console.topic_index import TopicIndex
from moldau.model.errors import InvalidConfig
from moldau.model.ports import Clock, Random
from moldau.model.units import HOUR_MS, MINUTE_MS
from moldau.web.schema_service import SchemaService

SESSIONS_MAX: Final = 100
IDLE_MS_MAX: Final = 8 * HOUR_MS
TOKEN_BYTES: Final = 32
FAILURES_MAX: Final = 10  # failed logins of all users within the window
FAILURES_WINDOW_MS: Final = MINUTE_MS
TAILS_MAX: Final = 10  # live tails of one session


@dataclass(slots=True)
class Session:
    """A user, the client that acts as the user, and the token that changes must carry."""

    client: AsyncClient
    topics: TopicIndex
    csrf_token: str
    values: SchemaValues
    batches: MergedBatches
    user: str | None = None
    last_used_ms: float = 0.0
    tails: int = 0


@dataclass(slots=True)
class Sessions:
    """The sessions of this process. The number is bounded: the one that was idle for longest ends first."""

    client: AsyncClient  # with the credentials of the command
    settings: ConsoleSettings
    connect: Connect
    clock: Clock
    random: Random
    schemas: SchemaService
    _by_token: dict[str, Session] = field(default_factory=dict)
    _shared: Session | None = None
    _failures_ms: list[float] = field(default_factory=list)

    async def find(self, token: str | None) -> Session:
        """Return the session of a cookie, or the shared one; an error if a login is needed."""
        if not self.settings.needs_login:
            if self._shared is None:
                self._shared = self._open(self.client, None)
            return self._shared
        await self._end_idle()
        session = self._by_token.get(token or "")
        if session is None:
            raise ConsoleError(401, "login_required", "Log in with your SASL user of the cluster.")
        session.last_used_ms = self.clock.monotonic_ms()
        return session

    async def log_in(self, user: str, password: str, mechanism: str | None) -> tuple[str, Session]:
        """Begin a session if the cluster accepts the credentials; return its cookie."""
        now_ms = self.clock.monotonic_ms()
        self._failures_ms = [each for each in self._failures_ms if now_ms - each < FAILURES_WINDOW_MS]
        if len(self._failures_ms) >= FAILURES_MAX:
            raise ConsoleError(
                429, "too_many_failures", "Too many failed logins; try again in a minute.", {"Retry-After": "60"}
            )
        credentials = {"sasl.username": user, "sasl.password": password}
        if mechanism:
            credentials["sasl.mechanism"] = mechanism
        try:
            session = self._open(self.connect(credentials), user)
        except InvalidConfig as error:
            raise ConsoleError(400, "invalid_login", str(error)) from None
        try:
            await session.client.refresh([])
        except Exception:
            self._failures_ms.append(now_ms)
            await session.client.close()
            raise
        while len(self._by_token) >= SESSIONS_MAX:
            await self.log_out(min(self._by_token, key=lambda each: self._by_token[each].last_used_ms))
        token = self._new_token()
        session.last_used_ms = now_ms
        self._by_token[token] = session
        return token, session

    async def log_out(self, token: str | None) -> None:
        session = self._by_token.pop(token or "", None)
        if session is not None:
            await session.client.close()

    async def close(self) -> None:
        """End the sessions of all users."""
        for token in list(self._by_token):
            await self.log_out(token)

    async def _end_idle(self) -> None:
        oldest_ms = self.clock.monotonic_ms() - IDLE_MS_MAX
        for token in [each for each, session in self._by_token.items() if session.last_used_ms < oldest_ms]:
            await self.log_out(token)

    def _open(self, client: AsyncClient, user: str | None) -> Session:
        values = SchemaValues(self.schemas, client, user, self.clock)
        batches = MergedBatches(client, self.clock)
        return Session(client, TopicIndex(client, self.clock), self._new_token(), values, batches, user)

    def _new_token(self) -> str:
        return self.random.randbytes(TOKEN_BYTES).hex()
