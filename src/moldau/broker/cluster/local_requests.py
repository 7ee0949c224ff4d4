"""The port through which a coordinator sends a request to the node that it runs on.

Coordinators and the controller link address nodes by id. For another node the request goes over a connection; for this
one it goes through this port, straight to the handler. The composition root connects it (`router.LocalHandler`), so
that nothing below the handlers has to import them.
"""

from typing import Any, Protocol


class LocalRequests(Protocol):
    """Handles the requests that a node sends to itself, with all rights."""

    async def handle(self, request: Any, *, version: int | None = None) -> Any:
        """Return the response of the broker's handler (the newest version by default); raise its error."""

    async def decide(self, request: Any) -> Any:
        """Return the active controller's response, errors included; raise only NotController."""
