"""OAUTHBEARER: which tokens are valid, where the keys come from, and the exchange."""

import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st
from sasl_scene import SASL_LISTENER

from moldau.broker.authentication.tokens import RETRY_MS, TokenValidator
from moldau.broker.configs.sasl_settings import OAuthSettings
from moldau.machines.access.exchange import Authenticated, AuthenticationFailed, Challenge, Derive, Step
from moldau.machines.access.oauthbearer import INVALID_TOKEN, Identity, OAuthBearerServer
from moldau.model.errors import InvalidConfig
from moldau.node.configuration import load_configuration

pytestmark = pytest.mark.proves("O4", part="OAUTHBEARER")

NOW_S = 1_700_000_000
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
URL = "https://issuer/keys"
CLAIMS = {"sub": "alice", "exp": NOW_S + 60, "iss": "issuer", "aud": ["kafka", "other"], "scope": "read"}


def jwk(key: Any, name: str) -> dict[str, Any]:
    algorithm = (
        jwt.algorithms.ECAlgorithm if isinstance(key, ec.EllipticCurvePrivateKey) else jwt.algorithms.RSAAlgorithm
    )
    return {**json.loads(algorithm.to_jwk(key.public_key())), "kid": name}


class Issuer:
    """Serves keys, and is the clock."""

    def __init__(self) -> None:
        self.keys = [jwk(RSA_KEY, "rsa"), jwk(EC_KEY, "ec"), {"kty": "oct", "k": "c2VjcmV0c2VjcmV0", "kid": "oct"}]
        self.fetches = 0
        self.now_ms = 0.0
        self.is_down = False

    def fetch(self, url: str) -> bytes:
        assert url == URL
        self.fetches += 1
        if self.is_down:
            raise OSError("the issuer is down")
        return json.dumps({"keys": self.keys}).encode()

    def wall_ms(self) -> int:
        return NOW_S * 1000 + int(self.now_ms)

    def monotonic_ms(self) -> float:
        return self.now_ms


def validator(source: Issuer, **settings: Any) -> TokenValidator:
    return TokenValidator(OAuthSettings(jwks_url=URL, **settings), source, source.fetch)


def token(claims: Mapping[str, Any] = CLAIMS, key: Any = RSA_KEY, kid: str = "rsa", algorithm: str = "RS256") -> str:
    return jwt.encode(dict(claims), key, algorithm=algorithm, headers={"kid": kid})


def exchange(validator: TokenValidator, text: str, authorization_id: str = "") -> Step:
    """Return the outcome of a login."""
    identity = f"a={authorization_id}" if authorization_id else ""
    server = OAuthBearerServer(validator.validate)
    step = server.step(f"n,{identity},\x01auth=Bearer {text}\x01\x01".encode())
    while isinstance(step, Derive):
        step = server.resume(step.work(*step.arguments))
    if isinstance(step, Challenge):
        with pytest.raises(AuthenticationFailed, match="invalid_token"):
            server.step(b"\x01")
    return step


REJECTED = Challenge(INVALID_TOKEN.encode())
EXPECTED = {"issuer": "issuer", "audience": ("kafka",)}


@pytest.mark.parametrize(("key", "kid", "algorithm"), [(RSA_KEY, "rsa", "PS512"), (EC_KEY, "ec", "ES256")])
def test_signed_token_authenticates_its_subject_until_it_expires(key: Any, kid: str, algorithm: str) -> None:
    outcome = exchange(validator(Issuer(), **EXPECTED), token(key=key, kid=kid, algorithm=algorithm))
    assert outcome == Authenticated("alice", b"", (NOW_S + 60) * 1000)


def unsigned(algorithm: str = "none", signature: str = "") -> str:
    parts = [{"alg": algorithm, "kid": "rsa"}, CLAIMS]
    return (
        ".".join(urlsafe_b64encode(json.dumps(each).encode()).decode().rstrip("=") for each in parts) + "." + signature
    )


def with_public_key_as_secret() -> str:
    """Return a token whose signature is an HMAC with the issuer's public key (CVE-2016-10555)."""
    pem = RSA_KEY.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    head, _, body = unsigned("HS256").partition(".")
    signed = f"{head}.{body.rstrip('.')}"
    hashed = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256).sign(signed.encode(), pem)
    return f"{signed}.{urlsafe_b64encode(hashed).decode().rstrip('=')}"


@pytest.mark.parametrize(
    "text",
    [
        token(key=OTHER_KEY),
        token(kid="unknown"),
        unsigned(),
        unsigned("None"),
        unsigned("RS256", "AAAA"),
        with_public_key_as_secret(),
        token(key=b"secretsecret" * 4, kid="oct", algorithm="HS256"),
        token({**CLAIMS, "exp": NOW_S - 31}),
        token({name: value for name, value in CLAIMS.items() if name != "exp"}),
        token({**CLAIMS, "nbf": NOW_S + 31}),
        token({**CLAIMS, "iss": "another"}),
        token({**CLAIMS, "aud": "another"}),
        token({**CLAIMS, "sub": ""}),
        token({name: value for name, value in CLAIMS.items() if name != "sub"}),
        token({**CLAIMS, "scope": 7}),
        "a.b.c",
        "e30.e30.e30",
    ],
)
def test_invalid_token_gets_the_reason_and_fails(text: str) -> None:
    assert exchange(validator(Issuer(), **EXPECTED), text) == REJECTED


def test_clock_skew_and_claims_are_those_of_the_settings() -> None:
    claims = {**CLAIMS, "exp": NOW_S - 31, "client": "bob", "scp": ["a"]}
    settings = {"clock_skew_seconds": 60, "sub_claim": "client", "scope_claim": "scp"}
    assert exchange(validator(Issuer(), **settings), token(claims)) == Authenticated("bob", b"", (NOW_S - 31) * 1000)


def test_keys_are_fetched_once_until_they_are_old_or_one_is_unknown() -> None:
    issuer = Issuer()
    keys = validator(issuer, jwks_refresh_ms=100_000)
    later = {**CLAIMS, "exp": NOW_S + 1000}
    for _ in range(3):
        assert isinstance(exchange(keys, token(later)), Authenticated)
    assert issuer.fetches == 1
    assert exchange(keys, token(later, OTHER_KEY, "new")) == REJECTED
    assert issuer.fetches == 1  # not again so soon
    issuer.now_ms += RETRY_MS + 1
    issuer.keys.append(jwk(OTHER_KEY, "new"))
    assert isinstance(exchange(keys, token(later, OTHER_KEY, "new")), Authenticated)
    assert issuer.fetches == 2
    issuer.now_ms += 100_001
    issuer.is_down = True  # the keys at hand stay valid
    assert isinstance(exchange(keys, token(later)), Authenticated)
    assert issuer.fetches == 3


def test_authorization_id_must_be_the_subject() -> None:
    assert isinstance(exchange(validator(Issuer()), token(), "alice"), Authenticated)
    with pytest.raises(AuthenticationFailed, match="authorization id"):
        exchange(validator(Issuer()), token(), "bob")


def test_unsecured_tokens_need_their_setting_and_exclude_signed_ones() -> None:
    allowing = validator(Issuer(), unsecured_tokens=True)
    assert exchange(allowing, unsigned()) == Authenticated("alice", b"", (NOW_S + 60) * 1000)
    assert exchange(allowing, token()) == REJECTED
    assert exchange(allowing, unsigned("none", "AAAA")) == REJECTED


@given(st.one_of(st.binary(max_size=300), st.text('n,a=\x01uthBer .-_AZ{}"', max_size=100).map(str.encode)))
def test_no_invented_message_authenticates_or_crashes(message: bytes) -> None:
    server = OAuthBearerServer(lambda text: Identity(text, 0.0) if text == "valid" else validate_nothing(text))
    try:
        step = server.step(message)
    except AuthenticationFailed:
        return
    assert step == REJECTED


def validate_nothing(text: str) -> Identity:
    return validator(Issuer(), unsecured_tokens=True).validate(text)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((), "set sasl.oauthbearer.jwks.endpoint.url"),
        (("sasl.oauthbearer.clock.skew.seconds=x",), "must be a whole number"),
    ],
)
def test_oauthbearer_without_keys_is_rejected_at_start(settings: tuple[str, ...], message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        load_configuration(overrides=[*SASL_LISTENER, "sasl.enabled.mechanisms=OAUTHBEARER", *settings])
