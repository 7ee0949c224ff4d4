"""The interface of SASL mechanisms: an exchange takes the peer's messages one by one and returns what follows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

USER: str = "User"


@dataclass(frozen=True, slots=True)
class Challenge:
    """Send this message and wait for the next one."""

    message: bytes


@dataclass(frozen=True, slots=True)
class Authenticated:
    """The exchange succeeded; send the message, which may be empty."""

    name: str
    message: bytes = b""
    expires_at_ms: float | None = None  # wall time at which the credential expires
    is_by_token: bool = False  # by a delegation token, which may not be used to manage tokens


@dataclass(frozen=True, slots=True)
class Derive:
    """Run `work(*arguments)` outside the event loop, then call `resume` with its result."""

    work: Callable[..., Any]
    arguments: tuple[Any, ...]


Step = Challenge | Authenticated | Derive


class AuthenticationFailed(Exception):
    """The exchange failed. The text goes to the peer; without one, the peer gets a general text."""


class ServerExchange(Protocol):
    """The server's side of one exchange. Both methods raise `AuthenticationFailed`."""

    def step(self, message: bytes) -> Step: ...

    def resume(self, derived: Any) -> Step: ...


def principal_of(name: str) -> str:
    """Return the principal of a user, as ACLs and quotas name it."""
    return f"{USER}:{name}"
