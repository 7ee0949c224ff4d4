"""The configuration of a node: files and overrides, merged and validated, with warnings about ignored settings."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from moldau.broker.authentication.mechanisms import check_listener
from moldau.broker.configs.broker_settings import BrokerSettings
from moldau.broker.configs.declarations import BROKER_SETTINGS, TOPIC_SETTINGS, broker_setting, unknown
from moldau.broker.configs.tls_settings import METRICS_LISTENER, listener_tls
from moldau.broker.configs.topic_defaults import SYNONYMS
from moldau.machines.metadata.image import CORDONED
from moldau.model.errors import InvalidConfig
from moldau.model.kafka_settings import is_removed
from moldau.model.listeners import Listeners, parse_address, resolve_listeners
from moldau.model.open_listeners import is_loopback, open_listeners
from moldau.model.quorum import BROKER, CONTROLLER, Quorum, resolve_quorum
from moldau.model.tls import ClientAuth
from moldau.node.log_dirs import check_paths
from moldau.node.peer_security import peer_securities
from moldau.node.properties import Entry, read_override, read_properties, read_toml


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings of a node. `texts` has the configured values by name, secrets included: never print it."""

    settings: BrokerSettings
    listeners: Listeners
    texts: Mapping[str, str] = field(repr=False)
    warnings: tuple[str, ...] = ()
    quorum: Quorum = field(default_factory=Quorum)

    @property
    def is_broker(self) -> bool:
        return BROKER in self.settings.process_roles

    @property
    def is_controller(self) -> bool:
        return CONTROLLER in self.settings.process_roles


def load_configuration(files: Iterable[tuple[str, str]] = (), overrides: Iterable[str] = ()) -> Configuration:
    """Load `files` (name and text; TOML by extension, else properties), then `name=value` overrides.

    Later values win. All problems are reported in one `InvalidConfig`, one per line, with file and line number.
    """
    problems: list[str] = []
    entries = _read(files, overrides, problems)
    configured = {entry.name: entry for entry in entries}
    problems += [problem for entry in configured.values() if (problem := _problem_of(entry))]
    if problems:
        raise InvalidConfig("\n".join(problems))
    texts = _texts(configured)
    try:
        settings = BrokerSettings.parse(texts)
        listeners = _listeners(settings, texts)
        quorum = resolve_quorum(
            settings.process_roles,
            settings.node_id,
            settings.quorum_voters,
            settings.quorum_bootstrap_servers,
            listeners,
        )
        _check_supported(settings, listeners, texts)
        peer_securities(Configuration(settings, listeners, texts, quorum=quorum))
    except InvalidConfig as error:
        raise InvalidConfig(_located(str(error), configured)) from None
    warnings = (*_repeated(entries), *_ignored(configured), *listeners.warnings, *_open(listeners, settings, texts))
    return Configuration(settings, listeners, texts, warnings, quorum)


def _read(files: Iterable[tuple[str, str]], overrides: Iterable[str], problems: list[str]) -> list[Entry]:
    entries: list[Entry] = []
    for name, text in files:
        try:
            entries += read_toml(text, name) if name.lower().endswith(".toml") else read_properties(text, name)
        except InvalidConfig as error:
            problems.append(str(error))
    for argument in overrides:
        try:
            entries.append(read_override(argument))
        except InvalidConfig as error:
            problems.append(str(error))
    return entries


def _texts(configured: Mapping[str, Entry]) -> dict[str, str]:
    """Return the values by name, without removed names, and with `broker.id` as `node.id`."""
    texts = {name: entry.text for name, entry in configured.items() if not is_removed(name)}
    if "node.id" not in texts and texts.get("broker.id", "-1") != "-1":
        texts["node.id"] = texts["broker.id"]
    return texts


# Errors ---------------------------------------------------------------------------------------------------------------


def _problem_of(entry: Entry) -> str | None:
    """Validate a single entry. The value of an unknown name is not shown: it may be a secret."""
    setting = broker_setting(entry.name)
    if setting is None:
        return None if is_removed(entry.name) else f"{entry.where}: {_unknown(entry.name)}"
    try:
        setting.parse(entry.text)
    except InvalidConfig as error:
        return f"{entry.where}: {error}"
    return None


def _unknown(name: str) -> str:
    if name in TOPIC_SETTINGS:
        synonyms = " or ".join(synonym.name for synonym in SYNONYMS.get(name, ()))
        hint = f"; {synonyms} sets it for all topics" if synonyms else ""
        return f"{name} is a setting of topics, not of brokers{hint}."
    return unknown("broker", name, BROKER_SETTINGS)


def _located(problem: str, configured: Mapping[str, Entry]) -> str:
    """Add to a problem the locations of the settings that it names."""
    places = [f"{entry.where} sets {entry.name}" for entry in configured.values() if entry.name in problem.split()]
    return f"{problem} ({'; '.join(places)})" if places else problem


def _listeners(settings: BrokerSettings, texts: Mapping[str, str]) -> Listeners:
    if "inter.broker.listener.name" in texts and "security.inter.broker.protocol" in texts:
        raise InvalidConfig("Only one of inter.broker.listener.name and security.inter.broker.protocol should be set.")
    return resolve_listeners(
        settings.listeners,
        settings.advertised_listeners,
        settings.protocol_map,
        settings.inter_broker_listener,
        settings.inter_broker_protocol,
        settings.controller_listeners,
        settings.process_roles,
    )


def _check_supported(settings: BrokerSettings, listeners: Listeners, texts: Mapping[str, str]) -> None:
    """Reject settings that the node cannot honour."""
    for listener in listeners.bound:
        if listener.protocol.needs_tls:
            _check_tls(listener.name, texts)
        if listener.protocol.needs_sasl:
            check_listener(listener.name, texts)
    if settings.serves_metrics_by_tls:
        _check_tls(METRICS_LISTENER, texts)
    check_paths(settings.folders)


def _check_tls(listener: str, texts: Mapping[str, str]) -> None:
    tls = listener_tls(texts, listener)
    if tls.keystore.is_empty:
        raise InvalidConfig(
            f"Listener {listener} uses TLS but has no certificate: set ssl.keystore.location, or for this listener "
            f"listener.name.{listener.lower()}.ssl.keystore.location."
        )


# Warnings -------------------------------------------------------------------------------------------------------------


def _repeated(entries: Sequence[Entry]) -> Iterator[str]:
    """Warn about a name repeated in one file; an override of a file is intended."""
    seen: dict[tuple[str, str], Entry] = {}
    for entry in entries:
        file = entry.where.rpartition(":")[0]
        if file and (file, entry.name) in seen:
            yield f"{entry.where}: {entry.name} overrides the value set at {seen[file, entry.name].where}."
        seen[file, entry.name] = entry


def _ignored(configured: Mapping[str, Entry]) -> Iterator[str]:
    gone = sorted(name for name in configured if is_removed(name))
    if gone:
        yield f"Ignoring settings that Kafka 4.0 removed: {', '.join(gone)}."
    if CORDONED in configured:
        yield f"{CORDONED} takes effect only when set on a running broker (moldau broker drain), not at startup."
    idle = sorted(name for name in configured if (setting := broker_setting(name)) and not setting.has_effect)
    if idle:
        yield f"These settings are accepted but have no effect: {', '.join(idle)}."


def _open(listeners: Listeners, settings: BrokerSettings, texts: Mapping[str, str]) -> Iterator[str]:
    """Warn once about all listeners, and a metrics page, that let other hosts in without authentication."""
    found = ", ".join(map(str, open_listeners(listeners.bound, texts)))
    if found:
        yield (
            f"Anyone who can reach {found} may read, write and delete everything: no authentication is required there. "
            "Listen on localhost, or require authentication: docs/security.md"
        )
    if not settings.metrics_listener or settings.metrics_token or _requires_metrics_certificate(settings, texts):
        return
    if not is_loopback(parse_address(settings.metrics_listener).host):
        yield (
            f"Anyone who can reach {settings.metrics_listener} may read the metrics, which name topics, groups and "
            "clients. Listen on localhost, or set moldau.metrics.token."
        )


def _requires_metrics_certificate(settings: BrokerSettings, texts: Mapping[str, str]) -> bool:
    if not settings.serves_metrics_by_tls:
        return False
    return listener_tls(texts, METRICS_LISTENER).client_auth is ClientAuth.REQUIRED
