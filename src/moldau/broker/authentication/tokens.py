"""Validation of OAUTHBEARER tokens: JSON Web Tokens signed by keys that the issuer publishes.

Keys come from the setting's URL, a file or a web address. They are fetched with the first token, again when they are
old, and when a token names a key that is unknown. Only asymmetric signatures are accepted: a token without signature,
or with one that is made from a public key, is never valid (unless unsecured tokens are allowed, for development).
"""

import importlib
import json
import logging
from base64 import urlsafe_b64decode
from collections.abc import Callable, Mapping
from typing import Any, Final

from moldau.broker.configs.sasl_settings import OAuthSettings
from moldau.machines.access.exchange import Derive
from moldau.machines.access.oauthbearer import Identity, KeysNeeded, TokenRejected
from moldau.model.errors import InvalidConfig
from moldau.model.ports import Clock
from moldau.model.settings import shorten
from moldau.model.units import SECOND_MS

log = logging.getLogger(__name__)

FetchKeys = Callable[[str], bytes]

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
RETRY_MS: Final = 10.0 * SECOND_MS  # between fetches for keys that are not known
NAME_CHARACTERS_MAX: Final = 1000


def require_jwt() -> Any:
    """Return the library that verifies signatures, or say how to install it."""
    try:
        return importlib.import_module("jwt")
    except ImportError:
        raise InvalidConfig(
            "OAUTHBEARER needs packages that are not installed: install the extra moldau[security]."
        ) from None


class TokenValidator:
    """Validates the tokens of one listener."""

    def __init__(self, settings: OAuthSettings, clock: Clock, fetch: FetchKeys) -> None:
        """`fetch` returns what is at a URL; it is called outside the event loop."""
        self._settings = settings
        self._clock = clock
        self._fetch = fetch
        self._jwt = None if settings.unsecured_tokens else require_jwt()
        self._keys: dict[str, Any] = {}
        self._fetched_ms: float | None = None

    def validate(self, token: str) -> Identity:
        """Return the user of a valid token; raise `TokenRejected`, or `KeysNeeded` and call it again."""
        try:
            claims = self._unsecured_claims(token) if self._settings.unsecured_tokens else self._signed_claims(token)
            return self._identity(claims)
        except TokenRejected as error:
            log.info("Rejected an OAUTHBEARER token: %s", error)
            raise

    # Signatures

    def _signed_claims(self, token: str) -> Mapping[str, Any]:
        jwt = self._jwt
        assert jwt is not None
        try:
            header = jwt.get_unverified_header(token)
            if header.get("alg") not in ALGORITHMS:
                raise TokenRejected("its algorithm is not accepted")
            key = self._key(str(header.get("kid", "")))
            # Times are checked below, by the clock of the node.
            options = {"verify_exp": False, "verify_nbf": False, "verify_iat": False, "verify_aud": False}
            claims = jwt.decode(token, key.key, algorithms=list(ALGORITHMS), options={**options, "verify_iss": False})
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise TokenRejected(shorten(str(error))) from None
        return claims if isinstance(claims, dict) else {}

    def _key(self, key_id: str) -> Any:
        now_ms, fetched_ms = self._clock.monotonic_ms(), self._fetched_ms
        age_ms = None if fetched_ms is None else now_ms - fetched_ms
        is_old = age_ms is None or age_ms > self._settings.jwks_refresh_ms
        if is_old or (key_id not in self._keys and age_ms is not None and age_ms > RETRY_MS):
            self._fetched_ms = now_ms
            raise KeysNeeded(Derive(_fetched, (self._fetch, self._settings.jwks_url)), self._keep)
        if key_id not in self._keys:
            raise TokenRejected(f"the issuer has no key {shorten(key_id)}")
        return self._keys[key_id]

    def _keep(self, fetched: bytes | Exception) -> None:
        """Take new keys; keep the present ones if these cannot be fetched or parsed."""
        assert self._jwt is not None
        try:
            if isinstance(fetched, Exception):
                raise fetched
            published = self._jwt.PyJWKSet.from_dict(json.loads(fetched)).keys
        except (OSError, ValueError, TypeError, AttributeError, self._jwt.PyJWTError) as error:
            log.error("Cannot fetch keys from %s: %s", self._settings.jwks_url, error)
            return
        self._keys = {each.key_id or "": each for each in published if each.key_type != "oct"}

    # Claims

    def _unsecured_claims(self, token: str) -> Mapping[str, Any]:
        header, _, rest = token.partition(".")
        payload, _, signature = rest.partition(".")
        if signature or _json(header).get("alg") != "none":
            raise TokenRejected("only unsecured tokens are accepted here")
        return _json(payload)

    def _identity(self, claims: Mapping[str, Any]) -> Identity:
        settings, now_s = self._settings, self._clock.wall_ms() / 1000
        expires_s = _time(claims, "exp")
        if expires_s is None or expires_s + settings.clock_skew_seconds <= now_s:
            raise TokenRejected("it has expired, or has no exp claim")
        for begin in ("nbf", "iat"):
            from_s = _time(claims, begin)
            if from_s is not None and from_s - settings.clock_skew_seconds > now_s:
                raise TokenRejected(f"its {begin} claim is in the future")
        if settings.issuer is not None and claims.get("iss") != settings.issuer:
            raise TokenRejected("its issuer is not the expected one")
        if settings.audience and not _texts(claims.get("aud")) & set(settings.audience):
            raise TokenRejected("its audience is not an expected one")
        if settings.scope_claim in claims and not _is_scope(claims[settings.scope_claim]):
            raise TokenRejected(f"its {settings.scope_claim} claim is neither a string nor a list of strings")
        name = claims.get(settings.sub_claim)
        if not isinstance(name, str) or not name.strip() or len(name) > NAME_CHARACTERS_MAX:
            raise TokenRejected(f"its {settings.sub_claim} claim is not a user name")
        return Identity(name, expires_s * 1000)


def _fetched(fetch: FetchKeys, url: str) -> bytes | Exception:
    """An exception is a result: the keys at hand stay valid."""
    try:
        return fetch(url)
    except Exception as error:
        return error


def _json(part: str) -> dict[str, Any]:
    try:
        parsed = json.loads(urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, RecursionError):
        raise TokenRejected("it is not a JSON Web Token") from None
    return parsed if isinstance(parsed, dict) else {}


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not -(2**53) < value < 2**53:
        raise TokenRejected(f"its {name} claim is not a time")
    return float(value)


def _texts(value: object) -> set[str]:
    if isinstance(value, str):
        return {value}
    return {each for each in value if isinstance(each, str)} if isinstance(value, list) else set()


def _is_scope(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(each, str) for each in value))
