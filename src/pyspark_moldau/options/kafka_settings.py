"""Maps `kafka.*` options, which have the names of the Java clients, to librdkafka and Moldau settings.

Java settings without an equivalent are ignored with a warning; unknown names are rejected.
"""

import difflib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pyspark_moldau.options.offset_limits import OptionError
from pyspark_moldau.options.security_settings import SECURITY_NAMES, security_settings

log = logging.getLogger("pyspark_moldau")

PREFIX: Final = "kafka."
OWN_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")  # of moldau.client
_BOOTSTRAP: Final = "bootstrap.servers"

# Java's name → librdkafka's name, for every client.
_CLIENT: Final = {
    "client.id": "client.id",
    "client.rack": "client.rack",
    "client.dns.lookup": "client.dns.lookup",
    "connections.max.idle.ms": "connections.max.idle.ms",
    "enable.metrics.push": "enable.metrics.push",
    "metadata.max.age.ms": "metadata.max.age.ms",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "reconnect.backoff.max.ms": "reconnect.backoff.max.ms",
    "reconnect.backoff.ms": "reconnect.backoff.ms",
    "request.timeout.ms": "socket.timeout.ms",
    "retry.backoff.max.ms": "retry.backoff.max.ms",
    "retry.backoff.ms": "retry.backoff.ms",
    "security.protocol": "security.protocol",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "socket.connection.setup.timeout.ms": "socket.connection.setup.timeout.ms",
}
_CONSUMER: Final = {
    "allow.auto.create.topics": "allow.auto.create.topics",
    "check.crcs": "check.crcs",
    "fetch.max.bytes": "fetch.max.bytes",
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "fetch.min.bytes": "fetch.min.bytes",
    "isolation.level": "isolation.level",
    "max.partition.fetch.bytes": "max.partition.fetch.bytes",
}
_PRODUCER: Final = {
    "acks": "acks",
    "batch.size": "batch.size",
    "compression.gzip.level": "compression.level",
    "compression.lz4.level": "compression.level",
    "compression.type": "compression.type",
    "compression.zstd.level": "compression.level",
    "delivery.timeout.ms": "delivery.timeout.ms",
    "enable.idempotence": "enable.idempotence",
    "linger.ms": "linger.ms",
    "max.in.flight.requests.per.connection": "max.in.flight.requests.per.connection",
    "max.request.size": "message.max.bytes",
    "retries": "retries",
    "transaction.timeout.ms": "transaction.timeout.ms",
}
# Java settings without an equivalent.
_IGNORED: Final = frozenset(
    "auto.commit.interval.ms auto.include.jmx.reporter buffer.memory config.providers default.api.timeout.ms "
    "exclude.internal.topics group.instance.id group.protocol group.remote.assignor heartbeat.interval.ms max.block.ms "
    "max.poll.interval.ms max.poll.records metadata.max.idle.ms metadata.recovery.rebootstrap.trigger.ms "
    "metadata.recovery.strategy metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms "
    "partition.assignment.strategy partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms "
    "partitioner.ignore.keys security.providers session.timeout.ms socket.connection.setup.timeout.max.ms "
    "throw.on.fetch.stable.offset.unsupported".split()
)
_ROWS_ARE_BYTES: Final = "keys and values are read and written as bytes; use DataFrame operations to convert them"
_REJECTED_ALWAYS: Final = {
    "interceptor.classes": "Java classes are not supported",
    "key.deserializer": _ROWS_ARE_BYTES,
    "value.deserializer": _ROWS_ARE_BYTES,
    "key.serializer": _ROWS_ARE_BYTES,
    "value.serializer": _ROWS_ARE_BYTES,
}
_REJECTED_FOR_READING: Final = _REJECTED_ALWAYS | {
    "auto.offset.reset": "the checkpoint holds the offsets; use 'startingOffsets'",
    "enable.auto.commit": "the checkpoint holds the offsets; use 'commitOffsets' to report them to a consumer group",
}
_REJECTED_FOR_WRITING: Final = _REJECTED_ALWAYS | {
    "partitioner.class": "Java classes are not supported; use the column 'partition'",
    "transactional.id": "the sink sets its own; enable transactions with 'deliveryGuarantee'",
}
_ISOLATIONS: Final = ("read_uncommitted", "read_committed")


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """Connection settings for librdkafka and for Moldau's own client."""

    bootstrap_servers: str
    librdkafka: Mapping[str, str] = field(default_factory=dict, repr=False)  # it may hold passwords
    group_id: str | None = None
    reads_committed: bool = False
    java: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def suits_own_client(self) -> bool:
        """Whether our own client speaks this security; librdkafka knows further mechanisms, such as GSSAPI."""
        protocol = self.librdkafka.get("security.protocol", "PLAINTEXT").upper()
        mechanism = self.librdkafka.get("sasl.mechanism", "GSSAPI").upper()
        return not protocol.startswith("SASL") or mechanism in OWN_MECHANISMS

    def number(self, name: str, default: int) -> int:
        """Return a numeric setting by its Java name."""
        text = self.java.get(name)
        if text is None:
            return default
        if not text.strip().isdecimal():
            raise OptionError(f"Option '{PREFIX}{name}' must be a number, not {text!r}.")
        return int(text)


def consumer_settings(options: Mapping[str, str]) -> KafkaSettings:
    """The settings of a source, from options whose names are in lower case."""
    java = _java_settings(options)
    isolation = java.get("isolation.level", _ISOLATIONS[0])
    if isolation not in _ISOLATIONS:
        raise OptionError(f"Option 'kafka.isolation.level' must be one of {', '.join(_ISOLATIONS)}, not {isolation!r}.")
    group_id = java.pop("group.id", None)
    translated = _translate(java, _CLIENT | _CONSUMER, _REJECTED_FOR_READING)
    return KafkaSettings(java[_BOOTSTRAP], translated, group_id, isolation == _ISOLATIONS[1], java)


def producer_settings(options: Mapping[str, str]) -> KafkaSettings:
    """The settings of a sink, from options whose names are in lower case."""
    java = _java_settings(options)
    return KafkaSettings(java[_BOOTSTRAP], _translate(java, _CLIENT | _PRODUCER, _REJECTED_FOR_WRITING), java=java)


def _java_settings(options: Mapping[str, str]) -> dict[str, str]:
    java = {name.removeprefix(PREFIX): value.strip() for name, value in options.items() if name.startswith(PREFIX)}
    if not java.get(_BOOTSTRAP):
        if near := difflib.get_close_matches(_BOOTSTRAP, java.keys() - {_BOOTSTRAP}, 1, 0.8):
            raise OptionError(_unknown(near[0], [_BOOTSTRAP]))
        raise OptionError(f"Option '{PREFIX}{_BOOTSTRAP}' is required: the addresses of the brokers.")
    return java


def _translate(java: Mapping[str, str], known: Mapping[str, str], rejected: Mapping[str, str]) -> dict[str, str]:
    translated = {_BOOTSTRAP: java[_BOOTSTRAP]}
    for name, value in java.items():
        if name in rejected:
            raise OptionError(f"Option '{PREFIX}{name}' is not supported: {rejected[name]}.")
        if name in known:
            translated[known[name]] = value
        elif name in _IGNORED or name in _CONSUMER or name in _PRODUCER:
            log.warning("Option '%s%s' has no effect here and is ignored.", PREFIX, name)
        elif name not in SECURITY_NAMES and name != _BOOTSTRAP:
            raise OptionError(_unknown(name, [*known, *_IGNORED, *SECURITY_NAMES]))
    return translated | security_settings(java)


def _unknown(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), 1)
    hint = f" Did you mean '{PREFIX}{near[0]}'?" if near else ""
    return f"Option '{PREFIX}{name}' is unknown.{hint}"
