"""SaslAuthenticate outside an exchange: an error.

During an exchange, the gate of the connection handles the request (`broker/network/authentication.py`).
"""

from moldau.broker.handlers.contexts import MetadataContext
from moldau.model.errors import IllegalSaslState
from moldau.wire.messages import SaslAuthenticateRequest, SaslAuthenticateResponse


async def handle(request: SaslAuthenticateRequest, context: MetadataContext) -> SaslAuthenticateResponse:  # noqa: ARG001
    """Reject the request."""
    raise IllegalSaslState("SaslAuthenticate request received after successful authentication")
