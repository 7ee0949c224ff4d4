"""The mechanisms of one listener, with the credentials that they check."""

import hmac
import logging
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from moldau.broker.authentication.tokens import FetchKeys, TokenValidator, require_jwt
from moldau.broker.configs.resolution import BrokerTexts
from moldau.broker.configs.sasl_settings import SaslSettings, jaas_of, oauth_settings_of, sasl_settings_of
from moldau.machines.access import plain, scram
from moldau.machines.access.exchange import USER, ServerExchange
from moldau.machines.access.oauthbearer import OAUTHBEARER, OAuthBearerServer
from moldau.machines.access.scram import (
    CredentialShape,
    ScramCredential,
    ScramMechanism,
    ScramServer,
    ScramUser,
    TokenSecret,
)
from moldau.machines.metadata.image import MetadataImage
from moldau.model.errors import InvalidConfig
from moldau.model.ids import NO_OFFSET
from moldau.model.ports import Clock, Random
from moldau.model.settings import shorten

log = logging.getLogger(__name__)

SUPPORTED: Final = (plain.PLAIN, *scram.MECHANISMS, OAUTHBEARER)
_DUMMY_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Credentials:
    """Where credentials of users and tokens come from, for every listener of a node."""

    image: Callable[[], MetadataImage]
    clock: Clock
    random: Random
    token_secret: str | None = field(default=None, repr=False)
    fetch: FetchKeys | None = None  # documents at a URL, for OAUTHBEARER
    local: Callable[[], Mapping[ScramUser, ScramCredential]] = dict  # of a node that has no image yet
    cluster_id: str = ""

    @property
    def all_scram(self) -> Mapping[ScramUser, ScramCredential]:
        image = self.image()
        return self.local() if image.offset == NO_OFFSET else image.scram_credentials

    def scram(self, name: str, mechanism: ScramMechanism) -> ScramCredential | None:
        return self.all_scram.get(ScramUser(name, mechanism))

    @property
    def dummy_secret(self) -> bytes:
        """The secret behind the salts of unknown users: the same on every broker and after every restart."""
        return hmac.digest((self.token_secret or "").encode(), f"unknown users of {self.cluster_id}".encode(), "sha512")

    def token(self, token_id: str) -> TokenSecret | None:
        """Return the secret of a delegation token that has not expired."""
        token = self.image().delegation_tokens.get(token_id)
        if token is None or self.token_secret is None or token.expires_at_ms <= self.clock.wall_ms():
            return None
        password = b64encode(token_hmac(self.token_secret, token_id)).decode()
        return TokenSecret(token.owner.removeprefix(f"{USER}:"), password, token.expires_at_ms)


def token_hmac(secret: str, token_id: str) -> bytes:
    """Return the HMAC of a delegation token, which is its password."""
    return hmac.digest(secret.encode(), token_id.encode(), "sha512")


def check_listener(listener: str, texts: Mapping[str, str]) -> tuple[str, ...]:
    """Return the mechanisms of a listener; raise `InvalidConfig` if one is not supported or lacks its credentials."""
    names = tuple(dict.fromkeys(each.upper() for each in sasl_settings_of(texts, listener).sasl_enabled_mechanisms))
    prefix = f"listener.name.{listener.lower()}"
    if not names:
        raise InvalidConfig(f"Listener {listener} uses SASL, but sasl.enabled.mechanisms is empty.")
    for name in names:
        if name not in SUPPORTED:
            raise InvalidConfig(
                f"Listener {listener} uses SASL with mechanism {shorten(name)}, which is not supported: set "
                f"sasl.enabled.mechanisms or {prefix}.sasl.enabled.mechanisms to one or more of {', '.join(SUPPORTED)}."
            )
    if plain.PLAIN in names and jaas_of(texts, listener, plain.PLAIN) is None:
        raise InvalidConfig(
            f'Listener {listener} offers PLAIN: set {prefix}.plain.sasl.jaas.config with user_NAME="password" options.'
        )
    if OAUTHBEARER in names:
        _check_oauth(listener, texts)
    return names


def _check_oauth(listener: str, texts: Mapping[str, str]) -> None:
    settings = oauth_settings_of(texts, listener)
    if settings.unsecured_tokens:
        return
    require_jwt()
    if not settings.jwks_url:
        raise InvalidConfig(
            f"Listener {listener} offers OAUTHBEARER: set sasl.oauthbearer.jwks.endpoint.url to the issuer's keys "
            "(or, for development, moldau.sasl.oauthbearer.unsecured.tokens=true)."
        )


class Mechanisms:
    """Starts the exchanges of a listener."""

    def __init__(self, listener: str, texts: Mapping[str, str], credentials: Credentials, secret: bytes) -> None:
        """`secret` is random, for the comparison of an unknown user's password."""
        self.settings: SaslSettings = sasl_settings_of(texts, listener)
        self.names = check_listener(listener, texts)
        self._credentials = credentials
        self._secret = secret
        self._dummy_secret = credentials.dummy_secret
        self._shapes: dict[ScramMechanism, tuple[Mapping[ScramUser, ScramCredential], CredentialShape]] = {}
        self._factories = {name: self._factory(listener, name, texts) for name in self.names}
        self._reauth_ms = {
            name: sasl_settings_of(texts, listener, name).connections_max_reauth_ms for name in self.names
        }

    def _factory(self, listener: str, name: str, texts: Mapping[str, str]) -> Callable[[], ServerExchange]:
        if name == plain.PLAIN:
            jaas = jaas_of(texts, listener, name)
            users, dummy = jaas.users if jaas is not None else {}, self._secret.hex()
            return lambda: plain.PlainServer(users, dummy)
        if name == OAUTHBEARER:
            fetch = self._credentials.fetch
            assert fetch is not None
            validator = TokenValidator(oauth_settings_of(texts, listener), self._credentials.clock, fetch)
            return lambda: OAuthBearerServer(validator.validate)
        mechanism = scram.MECHANISMS[name]
        return lambda: self._scram(mechanism)

    def _scram(self, mechanism: ScramMechanism) -> ServerExchange:
        credentials = self._credentials
        return ScramServer(
            mechanism,
            lambda name: credentials.scram(name, mechanism),
            credentials.token,
            scram.nonce_of(credentials.random.randbytes(scram.NONCE_BYTES)),
            self._dummy_secret,
            self._shape(mechanism),
        )

    def _shape(self, mechanism: ScramMechanism) -> CredentialShape:
        """The usual shape of credentials, counted again once users have changed."""
        users = self._credentials.all_scram
        known = self._shapes.get(mechanism)
        if known is None or known[0] is not users:
            known = self._shapes[mechanism] = users, scram.usual_shape(users, mechanism)
        return known[1]

    def start(self, name: str) -> ServerExchange | None:
        """Start an exchange; None if the listener does not offer the mechanism."""
        factory = self._factories.get(name)
        return None if factory is None else factory()

    def session_ms(self, name: str, expires_at_ms: float | None) -> float | None:
        """Return how long a session lasts, limited by the setting and by its credential; None without limit."""
        limits = [float(self._reauth_ms[name])] if self._reauth_ms[name] > 0 else []
        if expires_at_ms is not None:
            limits.append(max(0.0, expires_at_ms - self._credentials.clock.wall_ms()))
        return min(limits, default=None)


class ListenerMechanisms:
    """The mechanisms of a listener by the settings of now, some of which may change while the node runs."""

    def __init__(self, listener: str, texts: Callable[[], BrokerTexts], credentials: Credentials) -> None:
        self._listener = listener
        self._texts = texts
        self._credentials = credentials
        self._secret = credentials.random.randbytes(_DUMMY_BYTES)
        self._known = texts()
        self._mechanisms = self._read(self._known)

    def _read(self, texts: BrokerTexts) -> Mechanisms:
        return Mechanisms(self._listener, texts.merged(), self._credentials, self._secret)

    @property
    def current(self) -> Mechanisms:
        texts = self._texts()
        if texts is not self._known:
            self._known = texts
            try:
                self._mechanisms = self._read(texts)
            except InvalidConfig as error:
                log.error("listener=%s keeps its SASL mechanisms: %s", self._listener, error)
        return self._mechanisms
