"""A controller registers its endpoints with the active controller, for DescribeCluster."""

import asyncio
import logging
from typing import Final

from moldau.broker.controllers.controller_channel import ControllerChannel
from moldau.client.errors import error_of
from moldau.model.errors import ErrorCode, RequestTimedOut
from moldau.model.units import SECOND_MS
from moldau.wire.messages import ControllerRegistrationRequest

logger = logging.getLogger(__name__)

TIMEOUT_MS: Final = 10 * SECOND_MS
RETRY_S: Final = 10.0


class ControllerRegistration:
    """Retries until it is registered; nothing waits for it."""

    def __init__(self, controller: ControllerChannel, request: ControllerRegistrationRequest) -> None:
        self._controller = controller
        self._request = request
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._register())

    async def _register(self) -> None:
        while True:
            try:
                response = await self._controller.ask(self._request, timeout_ms=TIMEOUT_MS)
            except RequestTimedOut as error:
                logger.debug("Controller registration failed, will retry: %s", error.message)
                continue
            if response.error_code == ErrorCode.NONE:
                return
            message = error_of(response.error_code, response.error_message).message
            logger.warning("Controller registration rejected: %s", message)
            await asyncio.sleep(RETRY_S)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
