"""How long clients of users are kept."""

from collections.abc import Mapping
from typing import cast

import pytest

from moldau.client.async_client import AsyncClient
from moldau.registry import logins
from moldau.registry.logins import Logins


class Client:
    """Counts what the registry does with a client."""

    def __init__(self, user: str) -> None:
        self.user, self.is_closed = user, False

    async def refresh(self, _: list[str]) -> None:
        pass

    async def close(self) -> None:
        assert not self.is_closed
        self.is_closed = True


class Cluster:
    """Opens clients, and remembers them."""

    def __init__(self) -> None:
        self.opened: list[Client] = []

    def connect(self, credentials: Mapping[str, str]) -> AsyncClient:
        self.opened.append(Client(credentials["sasl.username"]))
        return cast(AsyncClient, self.opened[-1])

    @property
    def open_users(self) -> list[str]:
        return [each.user for each in self.opened if not each.is_closed]


async def test_client_is_kept_for_the_next_request_of_its_user() -> None:
    cluster = Cluster()
    kept = Logins(cluster.connect)
    for _ in range(3):
        async with kept.client_of("ann", "x"):
            pass
    assert [each.user for each in cluster.opened] == ["ann"]
    await kept.close()
    assert cluster.open_users == []


async def test_outdated_client_closes_when_no_request_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    kept = Logins(cluster.connect)
    async with kept.client_of("ann", "x"):
        monkeypatch.setattr(logins, "LOGIN_S_MAX", -1.0)
        async with kept.client_of("ann", "x"):
            assert cluster.open_users == ["ann", "ann"]
        assert cluster.open_users == ["ann", "ann"]
    assert cluster.open_users == ["ann"]
    assert not cluster.opened[1].is_closed


async def test_least_recently_used_client_closes_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins, "LOGINS_MAX", 2)
    cluster = Cluster()
    kept = Logins(cluster.connect)
    for user in ("ann", "ben", "ann", "cleo"):
        async with kept.client_of(user, "x"):
            pass
    assert cluster.open_users == ["ann", "cleo"]
    async with kept.client_of("ann", "x"), kept.client_of("ben", "x"), kept.client_of("dora", "x"):
        assert set(cluster.open_users) >= {"ann", "ben", "dora"}
    assert len(cluster.open_users) == 2
