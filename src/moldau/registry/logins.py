"""Clients of users: one per user and password, kept for a few minutes, so that a request costs no new login."""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, TypeAlias

from moldau.client.async_client import AsyncClient
from moldau.model.errors import InvalidConfig, SaslAuthenticationFailed
from moldau.registry.errors import unauthorized

LOGINS_MAX: Final = 100
LOGIN_S_MAX: Final = 300.0  # then the cluster verifies the password again
PARALLEL_MAX: Final = 8  # logins that are under way

# Opens a client with other SASL credentials (`sasl.username`, `sasl.password`) than those of the command.
Connect: TypeAlias = Callable[[Mapping[str, str]], AsyncClient]


@dataclass(slots=True)
class _Login:
    client: AsyncClient
    opened_s: float
    requests: int  # that use the client


class Logins:
    """Clients that act as the users of requests. One that is replaced closes once no request uses it."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._logins: OrderedDict[bytes, _Login] = OrderedDict()  # the least recently used first
        self._replaced: list[_Login] = []
        self._permits = asyncio.Semaphore(PARALLEL_MAX)

    @asynccontextmanager
    async def client_of(self, user: str, password: str) -> AsyncIterator[AsyncClient]:
        """Lend the client of a user; an error for the client if the cluster does not accept the password."""
        login = await self._take(user, password)
        try:
            yield login.client
        finally:
            login.requests -= 1
            while len(self._logins) > LOGINS_MAX:
                self._replaced.append(self._logins.popitem(last=False)[1])
            await self._close_unused()

    async def close(self) -> None:
        """Close all clients. No request is under way."""
        self._replaced += self._logins.values()
        self._logins.clear()
        await self._close_unused()

    async def _take(self, user: str, password: str) -> _Login:
        key = hashlib.sha256(f"{len(user)}:{user}:{password}".encode()).digest()
        now_s = asyncio.get_running_loop().time()
        login = self._logins.get(key)
        if login is not None and now_s - login.opened_s <= LOGIN_S_MAX:
            self._logins.move_to_end(key)
            login.requests += 1
            return login
        client = await self._open(user, password)
        if key in self._logins:  # an outdated one, or that of a request at the same time
            self._replaced.append(self._logins.pop(key))
        login = self._logins[key] = _Login(client, now_s, requests=1)
        return login

    async def _open(self, user: str, password: str) -> AsyncClient:
        async with self._permits:
            try:
                client = self._connect({"sasl.username": user, "sasl.password": password})
            except InvalidConfig as error:
                raise unauthorized(str(error)) from error
            try:
                await client.refresh([])
            except SaslAuthenticationFailed as error:
                await client.close()
                raise unauthorized("the cluster does not accept the user and password") from error
            except BaseException:
                await client.close()
                raise
            return client

    async def _close_unused(self) -> None:
        unused = [each for each in self._replaced if each.requests == 0]
        self._replaced = [each for each in self._replaced if each.requests > 0]
        for each in unused:
            await each.client.close()
