"""A broker with a SASL listener, and peers that authenticate step by step."""

from typing import Any

from broker_scene import Scene, Talker
from raw_peers import Peer, raw_peer

from moldau.machines.access.plain import plain_message
from moldau.machines.access.scram import MECHANISMS, ScramClient, ScramMechanism, salted_password
from moldau.wire.framing import RequestHeader, frame_request
from moldau.wire.messages import (
    AlterUserScramCredentialsRequest,
    MetadataRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)

PLAIN_USERS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="pw-a" user_bob="pw-b";'
SASL_LISTENER = ("listeners=SASL_PLAINTEXT://broker:9092", "security.inter.broker.protocol=SASL_PLAINTEXT")
WITH_PLAIN = (
    *SASL_LISTENER,
    "sasl.enabled.mechanisms=PLAIN",
    f"listener.name.sasl_plaintext.plain.sasl.jaas.config={PLAIN_USERS}",
)
WITH_ALL = (*WITH_PLAIN, "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512")


async def handshake(talker: Talker, mechanism: str = "PLAIN", version: int = 1) -> Any:
    return await talker.ask(version, SaslHandshakeRequest(mechanism=mechanism))


async def authenticate(talker: Talker, message: bytes, version: int = 2) -> Any:
    return await talker.ask(version, SaslAuthenticateRequest(auth_bytes=message))


async def log_in(scene: Scene, name: str = "alice", password: str = "pw-a") -> Talker:
    """Return an authenticated connection."""
    talker = await scene.connect()
    assert (await handshake(talker)).error_code == 0
    assert (await authenticate(talker, plain_message(name, password))).error_code == 0
    return talker


async def log_in_with_scram(
    scene: Scene, mechanism: str, name: str, password: str, *, is_by_token: bool = False
) -> tuple[Talker, Any]:
    """Authenticate as a client does; return the connection and the last response."""
    talker = await scene.connect()
    client = ScramClient(MECHANISMS[mechanism], name, "nonce", is_by_token)
    assert (await handshake(talker, mechanism)).error_code == 0
    challenge = await authenticate(talker, client.first())
    assert challenge.error_code == 0, challenge
    salt, iterations = client.salt(challenge.auth_bytes)
    last = await authenticate(talker, client.final(salted_password(client.mechanism, password, salt, iterations)))
    if last.error_code == 0:
        client.verify(last.auth_bytes)
    return talker, last


async def create_user(admin: Talker, name: str, password: str) -> None:
    """Store credentials of a user for both mechanisms."""
    for mechanism in ScramMechanism:
        upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
            name=name,
            mechanism=mechanism,
            iterations=4096,
            salt=b"salt",
            salted_password=salted_password(mechanism, password, b"salt", 4096),
        )
        response = await admin.ask(0, AlterUserScramCredentialsRequest(upsertions=[upsertion]))
        assert response.results[0].error_code == 0, response


async def is_served(talker: Talker) -> bool:
    """Whether the connection may ask for metadata."""
    try:
        await talker.ask(12, MetadataRequest(topics=[]))
    except ConnectionResetError:
        return False
    return True


async def peer_after(scene: Scene, *requests: tuple[int, Any]) -> Peer:
    """Return a peer that has sent these requests at once, without waiting for responses."""
    peer = await raw_peer(scene)
    for number, (version, request) in enumerate(requests):
        peer.connection.send(frame_request(RequestHeader(request.API_KEY, version, number, "peer"), request))
    return peer
