"""SCRAM (RFC 5802, RFC 7677) with SHA-256 and SHA-512, both sides, without channel binding.

    client                                     server
      n,,n=USER,r=NONCE  ───────────────────────>          finds the user's salt and iterations
                         <───────────────────────  r=NONCE+NONCE,s=SALT,i=ITERATIONS
      c=biws,r=NONCE+NONCE,p=PROOF  ────────────>          compares the proof with the stored key
                         <───────────────────────  v=SIGNATURE, which proves that the server knows the user

An unknown user gets a salt and an iteration count that look like those of most users, the same from every broker, and
fails at the proof, after the same steps as a user with a wrong password. A delegation token authenticates by the same
exchange with the extension `tokenauth=true`: the user is the token's id and the password its HMAC, so the credential is
derived when it is needed.
"""

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, NamedTuple

from moldau.machines.access.exchange import Authenticated, AuthenticationFailed, Challenge, Derive, Step
from moldau.machines.access.plain import OTHER_IDENTITY

ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16_384
CLIENT_ITERATIONS_MAX: Final = 1_000_000  # of a server of another make: a client computes no longer than this
SALT_BYTES: Final = 20
DUMMY_SALT_BYTES_MAX: Final = 64
NONCE_BYTES: Final = 20
TOKEN_AUTH: Final = "tokenauth"

_NAME: Final = r"(?:[^=,\x00]|=2C|=3D)"
_BASE64: Final = r"[A-Za-z0-9/+]+={0,2}"
_NONCE: Final = r"[\x21-\x2b\x2d-\x7e]+"
_EXTENSIONS: Final = r"(?P<extensions>(?:,[A-Za-z]+=[^,\x00]*)*)"
_CLIENT_FIRST: Final = re.compile(
    rf"(?P<gs2>[ny],(?:a=(?P<authzid>{_NAME}*))?,)n=(?P<name>{_NAME}*),r=(?P<nonce>{_NONCE}){_EXTENSIONS}"
)
_CLIENT_FINAL: Final = re.compile(
    rf"(?P<signed>c=(?P<binding>{_BASE64}),r=(?P<nonce>{_NONCE}){_EXTENSIONS}),p=(?P<proof>{_BASE64})"
)
_SERVER_FIRST: Final = re.compile(
    rf"r=(?P<nonce>{_NONCE}),s=(?P<salt>{_BASE64}),i=(?P<iterations>[0-9]{{1,9}}){_EXTENSIONS}"
)
_SERVER_FINAL: Final = re.compile(rf"(?:e=(?P<error>[^,\x00]+)|v=(?P<signature>{_BASE64})){_EXTENSIONS}")


class ScramMechanism(IntEnum):
    """The mechanisms, with the numbers of Kafka's requests and records."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def sasl_name(self) -> str:
        return self.name.replace("_", "-")

    @property
    def hash_name(self) -> str:
        return "sha256" if self is ScramMechanism.SCRAM_SHA_256 else "sha512"

    @property
    def hash_bytes(self) -> int:
        return 32 if self is ScramMechanism.SCRAM_SHA_256 else 64


MECHANISMS: Final = {each.sasl_name: each for each in ScramMechanism}


class ScramUser(NamedTuple):
    """The key of a credential: a user has one for each mechanism."""

    name: str
    mechanism: int


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """The credential that the server stores instead of a password."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int = ITERATIONS_MIN


def salted_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Derive the salted password: milliseconds of work, for a thread."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)


def credential_of(mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """Return the credential that a server stores for a salted password."""
    client_key = _hmac(mechanism, salted, b"Client Key")
    return ScramCredential(
        salt=salt,
        stored_key=hashlib.new(mechanism.hash_name, client_key).digest(),
        server_key=_hmac(mechanism, salted, b"Server Key"),
        iterations=iterations,
    )


def derive_credential(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> ScramCredential:
    """Return the credential for a password; for a thread, as `salted_password`."""
    return credential_of(mechanism, salted_password(mechanism, password, salt, iterations), salt, iterations)


class CredentialShape(NamedTuple):
    """The part of a credential that the server's first message shows."""

    iterations: int = ITERATIONS_MIN
    salt_bytes: int = SALT_BYTES


USUAL_SHAPE: Final = CredentialShape()


def usual_shape(credentials: Mapping[ScramUser, ScramCredential], mechanism: ScramMechanism) -> CredentialShape:
    """Return the most frequent shape among the users of a mechanism, of equally frequent ones the largest."""
    counts = Counter(
        CredentialShape(each.iterations, len(each.salt))
        for user, each in credentials.items()
        if user.mechanism == mechanism
    )
    return max(counts, key=lambda shape: (counts[shape], shape), default=USUAL_SHAPE)


def dummy_credential(mechanism: ScramMechanism, name: str, secret: bytes, shape: CredentialShape) -> ScramCredential:
    """Return a credential that no password matches, the same for a user at each attempt."""
    seed = hmac.digest(secret, name.encode(), "sha512") + hmac.digest(secret, b"\0" + name.encode(), "sha512")
    size = mechanism.hash_bytes
    return ScramCredential(
        salt=seed[: min(shape.salt_bytes, DUMMY_SALT_BYTES_MAX)],
        stored_key=seed[-size:],
        server_key=bytes(size),
        iterations=shape.iterations,
    )


class TokenSecret(NamedTuple):
    """The part of a delegation token in an exchange."""

    owner: str
    password: str
    expires_at_ms: float


@dataclass(slots=True)
class ScramServer:
    """The server's side of one exchange."""

    mechanism: ScramMechanism
    find: Callable[[str], ScramCredential | None]
    find_token: Callable[[str], TokenSecret | None]
    nonce: str
    secret: bytes = field(repr=False)  # for credentials of unknown users; the same on every broker of a cluster
    shape: CredentialShape = USUAL_SHAPE  # of credentials of unknown users
    _name: str = ""
    _credential: ScramCredential | None = field(default=None, repr=False)
    _is_known: bool = False
    _token: TokenSecret | None = field(default=None, repr=False)
    _is_by_token: bool = False
    _gs2: str = ""
    _nonce: str = ""
    _signed: str = field(default="", repr=False)

    def step(self, message: bytes) -> Step:
        try:
            text = message.decode()
        except UnicodeDecodeError:
            raise AuthenticationFailed from None
        return self._first(text) if not self._nonce else self._final(text)

    def resume(self, derived: Any) -> Step:
        self._credential = derived
        return self._challenge()

    def _first(self, text: str) -> Step:
        found = _CLIENT_FIRST.fullmatch(text)
        if found is None:
            raise AuthenticationFailed
        self._name, self._gs2 = _decode_name(found["name"]), found["gs2"]
        if found["authzid"] and _decode_name(found["authzid"]) != self._name:
            raise AuthenticationFailed(OTHER_IDENTITY)
        self._nonce = found["nonce"] + self.nonce
        self._signed = text[len(self._gs2) :]
        dummy = dummy_credential(self.mechanism, self._name, self.secret, self.shape)
        self._is_by_token = f",{TOKEN_AUTH}=true" in found["extensions"].lower()
        if self._is_by_token:
            self._token = self.find_token(self._name)
            self._is_known = self._token is not None
            password = self._token.password if self._token is not None else "-"
            return Derive(derive_credential, (self.mechanism, password, dummy.salt, ITERATIONS_MIN))
        credential = self.find(self._name)
        self._is_known = credential is not None
        self._credential = credential or dummy
        return self._challenge()

    def _challenge(self) -> Challenge:
        assert self._credential is not None
        salt = b64encode(self._credential.salt).decode()
        first = f"r={self._nonce},s={salt},i={self._credential.iterations}"
        self._signed += "," + first
        return Challenge(first.encode())

    def _final(self, text: str) -> Step:
        found = _CLIENT_FINAL.fullmatch(text)
        if found is None or self._credential is None:
            raise AuthenticationFailed
        binding, proof = _decode_base64(found["binding"]), _decode_base64(found["proof"])
        is_bound = hmac.compare_digest(binding, self._gs2.encode())
        is_fresh = hmac.compare_digest(found["nonce"].encode(), self._nonce.encode())
        message = f"{self._signed},{found['signed']}".encode()
        is_proved = self._is_proof(self._credential, message, proof)
        if not (is_bound and is_fresh and is_proved and self._is_known):
            raise AuthenticationFailed
        signature = _hmac(self.mechanism, self._credential.server_key, message)
        reply = b"v=" + b64encode(signature)
        if self._token is not None:
            return Authenticated(self._token.owner, reply, self._token.expires_at_ms, is_by_token=True)
        return Authenticated(self._name, reply)

    def _is_proof(self, credential: ScramCredential, message: bytes, proof: bytes) -> bool:
        signature = _hmac(self.mechanism, credential.stored_key, message)
        if len(proof) != len(signature):
            return False
        client_key = _xor(proof, signature)
        return hmac.compare_digest(hashlib.new(self.mechanism.hash_name, client_key).digest(), credential.stored_key)


class ScramRejected(Exception):
    """The server's messages violate the protocol, or do not prove that it knows the user."""


@dataclass(slots=True)
class ScramClient:
    """The client's side of one exchange: `first`, then `salt`, `final` with the salted password, and `verify`."""

    mechanism: ScramMechanism
    name: str
    nonce: str
    is_by_token: bool = False
    _nonce: str = ""
    _signed: str = field(default="", repr=False)
    _salted: bytes = field(default=b"", repr=False)

    def first(self) -> bytes:
        name = self.name.replace("=", "=3D").replace(",", "=2C")
        extension = f",{TOKEN_AUTH}=true" if self.is_by_token else ""
        self._signed = f"n={name},r={self.nonce}{extension}"
        return f"n,,{self._signed}".encode()

    def salt(self, message: bytes) -> tuple[bytes, int]:
        """Take the server's first message; return salt and iterations, from which the password is derived."""
        found = _SERVER_FIRST.fullmatch(message.decode(errors="replace"))
        if found is None or not found["nonce"].startswith(self.nonce) or found["nonce"] == self.nonce:
            raise ScramRejected("the first message of the server is invalid")
        iterations = int(found["iterations"])
        if not ITERATIONS_MIN <= iterations <= CLIENT_ITERATIONS_MAX:
            raise ScramRejected(f"the server requires {iterations} iterations")
        self._nonce = found["nonce"]
        self._signed += "," + message.decode()
        return _decode_base64(found["salt"]), iterations

    def final(self, salted: bytes) -> bytes:
        """Return the message with the proof."""
        self._salted = salted
        without_proof = f"c=biws,r={self._nonce}"
        self._signed += "," + without_proof
        client_key = _hmac(self.mechanism, salted, b"Client Key")
        stored_key = hashlib.new(self.mechanism.hash_name, client_key).digest()
        proof = _xor(client_key, _hmac(self.mechanism, stored_key, self._signed.encode()))
        return f"{without_proof},p={b64encode(proof).decode()}".encode()

    def verify(self, message: bytes) -> None:
        """Check the server's signature; `ScramRejected` if it does not know the user."""
        found = _SERVER_FINAL.fullmatch(message.decode(errors="replace"))
        if found is None or found["signature"] is None:
            raise ScramRejected("the last message of the server is invalid")
        server_key = _hmac(self.mechanism, self._salted, b"Server Key")
        expected = _hmac(self.mechanism, server_key, self._signed.encode())
        if not hmac.compare_digest(expected, _decode_base64(found["signature"])):
            raise ScramRejected("the signature of the server is wrong: it does not know this user's credential")


def nonce_of(randomness: bytes) -> str:
    """Return random bytes as a nonce."""
    return b64encode(randomness).decode().replace("=", "")


def _hmac(mechanism: ScramMechanism, key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, mechanism.hash_name)


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(first ^ second for first, second in zip(one, other, strict=True))


def _decode_name(text: str) -> str:
    return text.replace("=2C", ",").replace("=3D", "=")


def _decode_base64(text: str) -> bytes:
    """Decode; what is not base64 compares as different from everything."""
    try:
        return b64decode(text, validate=True)
    except ValueError:
        return b""
