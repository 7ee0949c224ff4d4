"""How a node secures its connections to other brokers and to controllers, from its settings."""

from collections.abc import Mapping
from typing import Final, Protocol

from moldau.broker.configs.broker_settings import BrokerSettings
from moldau.broker.configs.sasl_settings import jaas_of
from moldau.broker.configs.tls_settings import listener_tls
from moldau.client.sasl import RandomBytes, login
from moldau.client.security import PLAINTEXT, ClientSecurity, SaslClient
from moldau.model.errors import InvalidConfig
from moldau.model.listeners import Listeners, SecurityProtocol, parse_protocol_map
from moldau.model.ports import Executor
from moldau.model.quorum import Quorum

BETWEEN_BROKERS: Final = "sasl.mechanism.inter.broker.protocol"
TO_CONTROLLERS: Final = "sasl.mechanism.controller.protocol"


class Configured(Protocol):
    """The configuration of a node, as far as it concerns connections to others."""

    @property
    def settings(self) -> BrokerSettings: ...

    @property
    def listeners(self) -> Listeners: ...

    @property
    def texts(self) -> Mapping[str, str]: ...

    @property
    def quorum(self) -> Quorum: ...


def peer_securities(
    node: Configured, randbytes: RandomBytes = bytes, executor: Executor | None = None
) -> tuple[ClientSecurity, ClientSecurity]:
    """Return the security of connections to brokers and to controllers; `InvalidConfig` if credentials are missing.

    A node that may be a cluster of its own needs no credentials: without others, it has no connections.
    """
    settings, listeners = node.settings, node.listeners

    def security(listener: str, protocol: SecurityProtocol, setting: str, mechanism: str) -> ClientSecurity:
        tls = listener_tls(node.texts, listener) if protocol.needs_tls else None
        if not protocol.needs_sasl:
            return ClientSecurity(protocol=protocol, tls=tls)
        if node.quorum.is_standalone and setting not in node.texts:
            return PLAINTEXT
        sasl = _login(listener, setting, mechanism.upper(), node.texts, randbytes)
        return ClientSecurity(protocol=protocol, tls=tls, sasl=sasl, executor=executor)

    name = listeners.inter_broker
    protocol = next((each.protocol for each in listeners.bound if each.name == name), SecurityProtocol.PLAINTEXT)
    brokers = security(name, protocol, BETWEEN_BROKERS, settings.sasl_mechanism_inter_broker)
    if not listeners.controllers:
        return brokers, PLAINTEXT
    name = listeners.controllers[0]  # as in Kafka, controllers are reached through the first of their listeners
    protocol = parse_protocol_map(settings.protocol_map).get(name, SecurityProtocol.PLAINTEXT)
    return brokers, security(name, protocol, TO_CONTROLLERS, settings.sasl_mechanism_controller)


def _login(listener: str, setting: str, mechanism: str, texts: Mapping[str, str], randbytes: RandomBytes) -> SaslClient:
    name = f"listener.name.{listener.lower()}.{mechanism.lower()}.sasl.jaas.config"
    jaas = jaas_of(texts, listener, mechanism)
    try:
        if jaas is None:
            return login(mechanism, None, None, randbytes)
        return login(mechanism, jaas.username, jaas.password, randbytes)
    except InvalidConfig as error:
        raise InvalidConfig(f"{setting} is {mechanism}, for listener {listener}: {error} ({name})") from None
