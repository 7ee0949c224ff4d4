"""Topic, broker, group and client-metrics configs: set, delete, append, subtract; validated as a whole."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Protocol

from moldau.machines.decision import Decision, respond
from moldau.machines.metadata.cluster_view import MIN_ISR
from moldau.machines.metadata.image import NOTHING_SET, MetadataImage, Resource, ResourceType
from moldau.machines.metadata.records import Record
from moldau.machines.metadata.topic_names import check_topic_name
from moldau.model.errors import (
    BrokerIdNotRegistered,
    ErrorCode,
    InvalidConfig,
    InvalidRequest,
    KafkaError,
    UnknownTopicOrPartition,
)
from moldau.wire import messages
from moldau.wire.limits import STRING_BYTES_MAX

Changes = Mapping[str, str | None]  # None deletes


class ConfigRules(Protocol):
    """Rules of the declared settings; injected, because settings are declared beside the code they govern."""

    def check(self, resource: Resource, configs: Mapping[str, str], changed: Set[str]) -> None:
        """Raise `InvalidConfig` for invalid names and values; `configs` is the resulting state."""
        ...

    def is_list(self, resource: Resource, name: str) -> bool:
        """Whether values can be appended and subtracted."""
        ...

    def default(self, resource: Resource, name: str) -> str | None:
        """The default value."""
        ...


class Operation(IntEnum):
    """Operations of IncrementalAlterConfigs, by number."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """A step of an incremental alteration. The operation number is unvalidated."""

    name: str
    operation: int
    value: str | None


@dataclass(frozen=True, slots=True)
class Alteration:
    """All steps for a resource, applied atomically."""

    resource: Resource
    changes: Sequence[ConfigChange]


@dataclass(frozen=True, slots=True)
class Replacement:
    """All configs of a resource; omitted ones return to their defaults."""

    resource: Resource
    configs: Sequence[tuple[str, str | None]]


@dataclass(frozen=True, slots=True)
class ConfigsAltered:
    """The result for a resource."""

    resource: Resource
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


def config_record(resource: Resource, name: str, value: str | None) -> messages.ConfigRecord:
    return messages.ConfigRecord(resource_type=resource.type, resource_name=resource.name, name=name, value=value)


def decide_incremental_alter_configs(
    image: MetadataImage, rules: ConfigRules, alterations: Sequence[Alteration], *, validate_only: bool = False
) -> Decision[Record, list[ConfigsAltered]]:
    """Alter configs incrementally; each resource has its own error."""
    wanted = [(each.resource, partial(_altered, image, each, rules)) for each in alterations]
    return _decide(image, rules, wanted, validate_only)


def decide_alter_configs(
    image: MetadataImage, rules: ConfigRules, replacements: Sequence[Replacement], *, validate_only: bool = False
) -> Decision[Record, list[ConfigsAltered]]:
    """Replace all configs of each resource (AlterConfigs); each has its own error."""
    wanted = [(each.resource, partial(_replaced, image, each)) for each in replacements]
    return _decide(image, rules, wanted, validate_only)


def _decide(
    image: MetadataImage,
    rules: ConfigRules,
    wanted: Sequence[tuple[Resource, Callable[[], Changes]]],
    validate_only: bool,
) -> Decision[Record, list[ConfigsAltered]]:
    times = Counter(resource for resource, _ in wanted)
    records: list[Record] = []
    outcomes: dict[Resource, ConfigsAltered] = {}
    for resource, changes_of in wanted:
        try:
            if times[resource] > 1:
                raise InvalidRequest("Each resource must appear at most once.")
            _check_resource(image, resource)
            changes = changes_of()
            _check_min_isr(image, resource, changes)
            _check_result(image, rules, resource, changes)
            records.extend(config_record(resource, name, value) for name, value in changes.items())
            outcomes[resource] = ConfigsAltered(resource)
        except KafkaError as error:
            outcomes[resource] = ConfigsAltered(resource, error.code, error.message)
    return respond(list(outcomes.values()), () if validate_only else records)


def _check_resource(image: MetadataImage, resource: Resource) -> None:
    if resource.type == ResourceType.TOPIC:
        if not resource.name:
            raise InvalidRequest("Default topic resources are not allowed.")
        check_topic_name(resource.name)
        if resource.name not in image.topics:
            raise UnknownTopicOrPartition(f"The topic '{resource.name}' does not exist.")
    elif resource.type == ResourceType.BROKER:
        _check_node(image, resource.name)
    elif resource.type == ResourceType.GROUP:
        if not resource.name:
            raise InvalidRequest("Default group resources are not allowed.")
    elif resource.type != ResourceType.CLIENT_METRICS:
        raise InvalidRequest(f"Configs of resource type {resource.type} cannot be altered.")


def _check_node(image: MetadataImage, name: str) -> None:
    """Check that a broker or controller with this id exists: both have dynamic configs."""
    if not name:  # all brokers
        return
    if not name.isdecimal() or not name.isascii():
        raise InvalidRequest("Unable to parse broker name as a base 10 number.")
    if len(name) > 10 or not (int(name) in image.brokers or int(name) in image.controllers):
        raise BrokerIdNotRegistered(f"No node with id {name} found.")


def _check_min_isr(image: MetadataImage, resource: Resource, changes: Changes) -> None:
    """ELR depends on min ISR: it must be equal for all brokers and known to the controller."""
    if not image.has_elr or resource.type != ResourceType.BROKER or MIN_ISR not in changes:
        return
    if resource.name:
        raise InvalidConfig(f"Broker-level {MIN_ISR} cannot be altered while ELR is enabled.")
    if changes[MIN_ISR] is None:
        raise InvalidConfig(f"Cluster-level {MIN_ISR} cannot be removed while ELR is enabled.")


def _check_result(image: MetadataImage, rules: ConfigRules, resource: Resource, changes: Changes) -> None:
    """Validate the resulting configs as a whole: some rules involve two configs."""
    configs = dict(image.configs.get(resource, NOTHING_SET))
    for name, value in changes.items():
        if value is None:
            configs.pop(name, None)
            continue
        if len(value.encode()) > STRING_BYTES_MAX:
            raise InvalidConfig(
                "The configuration value cannot be added because it exceeds the maximum value size of "
                f"{STRING_BYTES_MAX} bytes."
            )
        configs[name] = value
    for together in _in_effect(image, resource, configs):
        rules.check(resource, together, changes.keys())


def _in_effect(image: MetadataImage, resource: Resource, configs: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    """Yield the effective configs. A broker combines the cluster-wide defaults with its own; they must not conflict."""
    if resource.type == ResourceType.BROKER and resource.name:
        yield {**image.configs.get(Resource(ResourceType.BROKER, ""), NOTHING_SET), **configs}
        return
    yield configs
    if resource.type == ResourceType.BROKER:
        for node_id in {*image.brokers, *image.controllers}:
            own = image.configs.get(Resource(ResourceType.BROKER, str(node_id)))
            if own:
                yield {**configs, **own}


def _check_names(names: Sequence[str]) -> None:
    twice = sorted(name for name, times in Counter(names).items() if times > 1)
    if twice:
        raise InvalidRequest(f"Error due to duplicate config keys: {','.join(twice)}")


def _replaced(image: MetadataImage, replacement: Replacement) -> Changes:
    _check_names([name for name, _ in replacement.configs])
    empty = [name for name, value in replacement.configs if value is None]
    if empty:
        raise InvalidRequest(f"Null value not supported for : {','.join(empty)}")
    present = image.configs.get(replacement.resource, NOTHING_SET)
    changes = {
        name: value for name, value in replacement.configs if _is_change(replacement.resource, present, name, value)
    }
    named = {name for name, _ in replacement.configs}
    return {**changes, **{name: None for name in present if name not in named}}


def _altered(image: MetadataImage, alteration: Alteration, rules: ConfigRules) -> Changes:
    _check_names([change.name for change in alteration.changes])
    empty = [each.name for each in alteration.changes if each.value is None and each.operation != Operation.DELETE]
    if empty:
        raise InvalidRequest(f"Null value not supported for : {','.join(empty)}")
    resource = alteration.resource
    present = image.configs.get(resource, NOTHING_SET)
    changes = {each.name: _new_value(resource, present, each, rules) for each in alteration.changes}
    return {name: value for name, value in changes.items() if _is_change(resource, present, name, value)}


def _is_change(resource: Resource, present: Mapping[str, str], name: str, value: str | None) -> bool:
    # A record with an unchanged value makes the broker reload it (a renewed certificate).
    return resource.type == ResourceType.BROKER or present.get(name) != value


def _new_value(resource: Resource, present: Mapping[str, str], change: ConfigChange, rules: ConfigRules) -> str | None:
    match change.operation:
        case Operation.SET:
            return change.value
        case Operation.DELETE:
            return None
        case Operation.APPEND | Operation.SUBTRACT:
            return _new_list(resource, present, change, rules)
        case _:
            raise InvalidRequest(f"Unknown operation type id {change.operation}")


def _new_list(resource: Resource, present: Mapping[str, str], change: ConfigChange, rules: ConfigRules) -> str:
    if not rules.is_list(resource, change.name):
        word = Operation(change.operation).name
        raise InvalidConfig(f"Can't {word} to key {change.name} because its type is not LIST.")
    old = _parts(present[change.name] if change.name in present else rules.default(resource, change.name))
    named = _parts(change.value)
    if change.operation == Operation.SUBTRACT:
        return ",".join(part for part in old if part not in named)
    return ",".join(dict.fromkeys([*old, *named]))


def _parts(value: str | None) -> list[str]:
    return [part.strip() for part in (value or "").split(",") if part.strip()]
