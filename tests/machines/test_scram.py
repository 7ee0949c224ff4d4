"""SCRAM exchanges: both sides together, the vectors of the RFC, and malformed messages."""

import hashlib
import hmac
from base64 import b64decode, b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.machines.access.exchange import Authenticated, AuthenticationFailed, Challenge, Derive, Step
from moldau.machines.access.plain import OTHER_IDENTITY
from moldau.machines.access.scram import (
    ITERATIONS_MIN,
    CredentialShape,
    ScramClient,
    ScramCredential,
    ScramMechanism,
    ScramRejected,
    ScramServer,
    ScramUser,
    TokenSecret,
    derive_credential,
    salted_password,
    usual_shape,
)

pytestmark = pytest.mark.proves("O4", part="SCRAM")

SHA_256, SHA_512 = ScramMechanism
SALT = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
TOKEN = TokenSecret("alice", "hmac of the token", 5000.0)
PENCIL = {each: derive_credential(each, "pencil", SALT, ITERATIONS_MIN) for each in ScramMechanism}


def server(mechanism: ScramMechanism = SHA_256) -> ScramServer:
    users = {"user": PENCIL[mechanism], "a=b,c": PENCIL[mechanism]}
    return ScramServer(mechanism, users.get, {"t1": TOKEN}.get, SERVER_NONCE, b"secret of the process")


def authenticate(
    one: ScramServer, name: str, password: str, *, is_by_token: bool = False
) -> tuple[Authenticated, ScramClient]:
    client = ScramClient(one.mechanism, name, CLIENT_NONCE, is_by_token)
    challenge = one.step(client.first())
    if isinstance(challenge, Derive):
        challenge = one.resume(challenge.work(*challenge.arguments))
    assert isinstance(challenge, Challenge)
    salt, iterations = client.salt(challenge.message)
    outcome = one.step(client.final(salted_password(one.mechanism, password, salt, iterations)))
    assert isinstance(outcome, Authenticated)
    client.verify(outcome.message)
    return outcome, client


def test_exchange_agrees_with_the_vectors_of_rfc_7677() -> None:
    one = server()
    first = one.step(f"n,,n=user,r={CLIENT_NONCE}".encode())
    expected = f"r={CLIENT_NONCE}{SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
    assert first == Challenge(expected)
    proof = "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    last = one.step(f"c=biws,r={CLIENT_NONCE}{SERVER_NONCE},p={proof}".encode())
    assert last == Authenticated("user", b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize("mechanism", ScramMechanism)
@pytest.mark.parametrize("name", ["user", "a=b,c"])
def test_both_sides_authenticate_each_other(mechanism: ScramMechanism, name: str) -> None:
    outcome, _ = authenticate(server(mechanism), name, "pencil")
    assert (outcome.name, outcome.is_by_token, outcome.expires_at_ms) == (name, False, None)


@pytest.mark.parametrize(("name", "password"), [("user", "pen"), ("unknown", "pencil"), ("unknown", "")])
def test_wrong_password_and_unknown_user_fail_at_the_same_step(name: str, password: str) -> None:
    with pytest.raises(AuthenticationFailed, match=r"^$"):
        authenticate(server(), name, password)


def test_unknown_user_has_the_same_salt_at_each_attempt() -> None:
    first = f"n,,n=unknown,r={CLIENT_NONCE}".encode()
    assert server().step(first) == server().step(first)
    other = server().step(f"n,,n=unknown2,r={CLIENT_NONCE}".encode())
    assert isinstance(other, Challenge)
    assert server().step(first) != other


def test_token_authenticates_as_its_owner_until_it_expires() -> None:
    outcome, _ = authenticate(server(SHA_512), "t1", TOKEN.password, is_by_token=True)
    assert (outcome.name, outcome.is_by_token, outcome.expires_at_ms) == ("alice", True, 5000.0)


@pytest.mark.parametrize("name", ["t1", "t2"])
def test_token_with_a_wrong_hmac_and_unknown_token_fail_alike(name: str) -> None:
    with pytest.raises(AuthenticationFailed, match=r"^$"):
        authenticate(server(), name, "guess", is_by_token=True)


def test_token_is_no_user_without_the_extension() -> None:
    with pytest.raises(AuthenticationFailed):
        authenticate(server(), "t1", TOKEN.password)


def test_other_authorization_id_is_rejected() -> None:
    with pytest.raises(AuthenticationFailed, match=OTHER_IDENTITY):
        server().step(f"n,a=admin,n=user,r={CLIENT_NONCE}".encode())


@pytest.mark.parametrize(
    "change",
    [
        (b"c=biws", b"c=eSws"),  # the channel binding of another first message
        (CLIENT_NONCE.encode(), CLIENT_NONCE[:-1].encode() + b"p"),
        (SERVER_NONCE.encode(), b""),  # the client's own nonce alone
        (b",p=", b",m=ext,p="),
        (b",p=", b",p=A"),
        (b",p=", b",q="),
    ],
)
def test_altered_final_message_is_rejected(change: tuple[bytes, bytes]) -> None:
    one, client = server(), ScramClient(SHA_256, "user", CLIENT_NONCE)
    challenge = one.step(client.first())
    assert isinstance(challenge, Challenge)
    final = client.final(salted_password(SHA_256, "pencil", *client.salt(challenge.message)))
    with pytest.raises(AuthenticationFailed):
        one.step(final.replace(*change))


@pytest.mark.parametrize(
    "first",
    [b"", b"\xff", b"n,,n=user", b"p=tls-unique,,n=user,r=x", b"n,,m=1,n=user,r=x", b"n,,n=us=er,r=x", b"n,,n=u,r="],
)
def test_malformed_first_message_is_rejected(first: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        server().step(first)


@pytest.mark.parametrize(
    "challenge",
    [
        b"r=%s,s=AA==,i=4096" % CLIENT_NONCE.encode(),  # the server adds nothing to the nonce
        b"r=other,s=AA==,i=4096",
        b"r=%sx,s=AA==,i=1" % CLIENT_NONCE.encode(),
        b"r=%sx,s=AA==,i=999999999" % CLIENT_NONCE.encode(),
        b"\xff",
    ],
)
def test_client_rejects_a_bad_challenge(challenge: bytes) -> None:
    client = ScramClient(SHA_256, "user", CLIENT_NONCE)
    client.first()
    with pytest.raises(ScramRejected):
        client.salt(challenge)


@pytest.mark.parametrize("last", [b"v=" + b64encode(bytes(32)), b"e=other-error", b"", b"v=?"])
def test_client_rejects_a_server_that_does_not_know_the_user(last: bytes) -> None:
    _, client = authenticate(server(), "user", "pencil")
    with pytest.raises(ScramRejected):
        client.verify(last)


def test_credential_hides_its_secrets_in_repr() -> None:
    assert repr(ScramCredential(b"s", b"k", b"v", 4096)) == "ScramCredential(iterations=4096)"
    assert "pencil" not in repr(server())


def drive(one: ScramServer, messages: list[bytes]) -> None:
    """Send messages until the exchange ends."""
    for message in messages:
        try:
            outcome: Step = one.step(message)
            if isinstance(outcome, Derive):
                outcome = one.resume(outcome.work(*outcome.arguments))
        except AuthenticationFailed:
            return
        assert isinstance(outcome, Challenge), message


PARTS = st.sampled_from(
    ["n,,", "y,,", "p=x,,", "n,a=b,", "n=user", "r=abc", ",", "=", "c=biws", "p=AAAA", "tokenauth=true", "\0", "é", "="]
)
MESSAGES = st.one_of(st.lists(PARTS, max_size=12).map(lambda parts: "".join(parts).encode()), st.binary(max_size=200))


@given(st.lists(MESSAGES, max_size=4))
def test_no_invented_exchange_authenticates_or_crashes(messages: list[bytes]) -> None:
    drive(server(), messages)


@given(MESSAGES)
def test_no_invented_second_message_authenticates_or_crashes(message: bytes) -> None:
    drive(server(), [f"n,,n=user,r={CLIENT_NONCE}".encode(), message])


def test_unknown_users_look_like_most_users_of_their_mechanism() -> None:
    few, many = ScramCredential(b"4567", b"", b"", 4096), ScramCredential(bytes(26), b"", b"", 8192)
    users = {ScramUser("a", SHA_512): few, ScramUser("b", SHA_512): many, ScramUser("c", SHA_256): few}
    assert usual_shape(users, SHA_512) == CredentialShape(8192, 26)  # equally frequent: the largest
    assert usual_shape(users | {ScramUser("d", SHA_512): few}, SHA_512) == CredentialShape(4096, 4)
    assert usual_shape({}, SHA_512) == CredentialShape(4096, 20)
    one = ScramServer(SHA_512, lambda _: None, lambda _: None, SERVER_NONCE, b"secret", usual_shape(users, SHA_512))
    challenge = one.step(f"n,,n=unknown,r={CLIENT_NONCE}".encode())
    assert isinstance(challenge, Challenge)
    salt, iterations = ScramClient(SHA_512, "unknown", CLIENT_NONCE).salt(challenge.message)
    assert (len(salt), iterations) == (26, 8192)


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_unknown_user_costs_as_many_hashes_as_a_known_one(
    mechanism: ScramMechanism, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[tuple[str, int]] = []
    digest, new = hmac.digest, hashlib.new

    def count_digest(key: bytes, message: bytes, name: str) -> bytes:
        hashed.append((name, len(message) // 128))
        return digest(key, message, name)

    def count_new(name: str, message: bytes) -> Any:
        hashed.append((name, len(message) // 128))
        return new(name, message)

    def hashes_of(name: str) -> list[tuple[str, int]]:
        one, client = server(mechanism), ScramClient(mechanism, name, CLIENT_NONCE)
        hashed.clear()
        challenge = one.step(client.first())
        assert isinstance(challenge, Challenge)
        of_first = list(hashed)
        salt, iterations = client.salt(challenge.message)
        final = client.final(salted_password(mechanism, "wrong", salt, iterations))
        hashed.clear()
        with pytest.raises(AuthenticationFailed):
            one.step(final)
        return of_first + hashed

    monkeypatch.setattr(hmac, "digest", count_digest)
    monkeypatch.setattr(hashlib, "new", count_new)
    known = hashes_of("user")
    assert known
    assert hashes_of("nope") == known
