"""SaslHandshake on a connection that needs no authentication or has it: begin a re-authentication (KIP-368).

Before authentication, the gate of the connection handles the request (`broker/network/authentication.py`).
"""

from moldau.broker.handlers.contexts import MetadataContext
from moldau.model.errors import IllegalSaslState
from moldau.wire.messages import SaslHandshakeRequest, SaslHandshakeResponse


async def handle(request: SaslHandshakeRequest, context: MetadataContext) -> SaslHandshakeResponse:
    """Start the exchange, if the session of the connection has a lifetime."""
    connection = context.connection
    response = connection.reauthenticate(request, context.api_version) if connection is not None else None
    if response is None:
        raise IllegalSaslState("This connection cannot be authenticated again now.")
    return response
