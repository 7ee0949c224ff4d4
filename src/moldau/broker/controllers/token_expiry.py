"""Removal of delegation tokens that have expired, by the active controller."""

import asyncio
from typing import TYPE_CHECKING, Protocol

from moldau.broker.runtime.rate_limited_logger import RateLimitedLogger
from moldau.model.errors import KafkaError
from moldau.model.ports import Clock

if TYPE_CHECKING:
    from moldau.broker.configs.broker_settings import BrokerSettings
    from moldau.broker.drivers.metadata import MetadataDriver


class TokenExpiryHost(Protocol):
    """The parts of the node that it uses."""

    @property
    def clock(self) -> Clock: ...

    @property
    def limited_logger(self) -> RateLimitedLogger: ...

    @property
    def metadata(self) -> "MetadataDriver": ...

    @property
    def settings(self) -> "BrokerSettings": ...


class TokenExpiry:
    """Checks in the interval of the setting. An expired token is invalid before it is removed."""

    def __init__(self, host: TokenExpiryHost) -> None:
        self._host = host
        self._timer: asyncio.TimerHandle | None = None
        self._removal: asyncio.Task[None] | None = None

    def start(self) -> None:
        interval_s = self._host.settings.delegation_token_expiry_check_interval_ms / 1000
        self._timer = asyncio.get_running_loop().call_later(interval_s, self._check)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._removal is not None:
            self._removal.cancel()
            await asyncio.wait([self._removal])

    def _check(self) -> None:
        self.start()
        metadata = self._host.metadata
        is_busy = self._removal is not None and not self._removal.done()
        if metadata.is_active and metadata.image.delegation_tokens and not is_busy:
            self._removal = asyncio.get_running_loop().create_task(self._remove())

    async def _remove(self) -> None:
        now_ms = self._host.clock.wall_ms()
        try:
            await self._host.metadata.write(lambda machine: machine.decide_remove_expired_tokens(now_ms))
        except KafkaError as error:  # another controller is active, or the next check removes them
            self._host.limited_logger.write("token expiry", f"Expired delegation tokens are kept for now: {error}")
