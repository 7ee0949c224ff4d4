"""From files and flags to the settings of a node: read, merged, checked, with warnings for what has no effect."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from moldau.broker.configs.broker_settings import BrokerSettings
from moldau.broker.configs.declarations import BROKER_SETTINGS, TOPIC_SETTINGS, broker_setting, unknown
from moldau.broker.configs.topic_defaults import SYNONYMS
from moldau.machines.metadata.image import CORDONED
from moldau.model.errors import InvalidConfig
from moldau.model.kafka_settings import is_removed
from moldau.model.listeners import Listeners, SecurityProtocol, resolve_listeners
from moldau.model.quorum import BROKER, CONTROLLER, Quorum, resolve_quorum
from moldau.node.properties import Entry, read_override, read_properties, read_toml


@dataclass(frozen=True, slots=True)
class Configuration:
    """What a node is started with. `texts` is what was said, by name: it may hold secrets, so it is never shown."""

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
    """The configuration in `files` (name and text; TOML by its ending, else properties), then `name=value` overrides.

    What comes later counts. All that is wrong is told in one `InvalidConfig`, a line each, with file and line number.
    """
    problems: list[str] = []
    entries = _read(files, overrides, problems)
    said = {entry.name: entry for entry in entries}
    problems += [problem for entry in said.values() if (problem := _problem_of(entry))]
    if problems:
        raise InvalidConfig("\n".join(problems))
    texts = _texts(said)
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
        _check_supported(settings, listeners)
    except InvalidConfig as refusal:
        raise InvalidConfig(_located(str(refusal), said)) from None
    warnings = (*_repeated(entries), *_ignored(said), *_unprotected(texts), *listeners.warnings)
    return Configuration(settings, listeners, texts, warnings, quorum)


def _read(files: Iterable[tuple[str, str]], overrides: Iterable[str], problems: list[str]) -> list[Entry]:
    entries: list[Entry] = []
    for name, text in files:
        try:
            entries += read_toml(text, name) if name.lower().endswith(".toml") else read_properties(text, name)
        except InvalidConfig as refusal:
            problems.append(str(refusal))
    for argument in overrides:
        try:
            entries.append(read_override(argument))
        except InvalidConfig as refusal:
            problems.append(str(refusal))
    return entries


def _texts(said: Mapping[str, Entry]) -> dict[str, str]:
    """What was said, without names that are gone, and with the node's id under its present name."""
    texts = {name: entry.text for name, entry in said.items() if not is_removed(name)}
    if "node.id" not in texts and texts.get("broker.id", "-1") != "-1":
        texts["node.id"] = texts["broker.id"]
    return texts


# What is wrong --------------------------------------------------------------------------------------------------------


def _problem_of(entry: Entry) -> str | None:
    """What is wrong with one entry by itself; the value of an unknown name is not shown, it may be a secret."""
    setting = broker_setting(entry.name)
    if setting is None:
        return None if is_removed(entry.name) else f"{entry.where}: {_unknown(entry.name)}"
    try:
        setting.parse(entry.text)
    except InvalidConfig as refusal:
        return f"{entry.where}: {refusal}"
    return None


def _unknown(name: str) -> str:
    if name in TOPIC_SETTINGS:
        synonyms = " or ".join(synonym.name for synonym in SYNONYMS.get(name, ()))
        hint = f"; {synonyms} sets it for all topics" if synonyms else ""
        return f"{name} is a setting of topics, not of brokers{hint}."
    return unknown("broker", name, BROKER_SETTINGS)


def _located(problem: str, said: Mapping[str, Entry]) -> str:
    """A problem between several settings, with the places where those that it names were set."""
    places = [f"{entry.where} sets {entry.name}" for entry in said.values() if entry.name in problem.split()]
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


def _check_supported(settings: BrokerSettings, listeners: Listeners) -> None:
    """Refuse what would make a node do something quite different from what its settings ask for."""
    for listener in listeners.bound:
        if listener.protocol is not SecurityProtocol.PLAINTEXT:
            raise InvalidConfig(
                f"Listener {listener.name} asks for {listener.protocol.name}, and only PLAINTEXT is served so far."
            )
    if len(settings.folders) > 1:
        raise InvalidConfig("log.dirs names several folders, and a node keeps its data in one, for now.")


# What is worth a warning ----------------------------------------------------------------------------------------------


def _repeated(entries: Sequence[Entry]) -> Iterator[str]:
    """A name twice in one file is a slip; a flag that goes over a file is not."""
    seen: dict[tuple[str, str], Entry] = {}
    for entry in entries:
        file = entry.where.rpartition(":")[0]
        if file and (file, entry.name) in seen:
            yield f"{entry.where}: {entry.name} was set on {seen[file, entry.name].where} already; this one counts."
        seen[file, entry.name] = entry


def _ignored(said: Mapping[str, Entry]) -> Iterator[str]:
    gone = sorted(name for name in said if is_removed(name))
    if gone:
        yield f"Kafka 4.0 removed these settings, and they are ignored: {', '.join(gone)}."
    if CORDONED in said:
        yield f"{CORDONED} has its effect where it is set on a running broker (moldau broker drain), not at the start."
    idle = sorted(name for name in said if (setting := broker_setting(name)) and not setting.has_effect)
    if idle:
        yield f"These settings are accepted and have no effect here: {', '.join(idle)}."


def _unprotected(texts: Mapping[str, str]) -> Iterator[str]:
    if texts.get("authorizer.class.name"):
        yield "authorizer.class.name is set, but nothing is authorised yet: every client may do everything."
