"""Broker settings that Kafka 4.0 removed. Old files still contain them, so they are accepted and ignored."""

from typing import Final

NAMES: Final = frozenset(
    {
        "auto.include.jmx.reporter",
        "broker.id.generation.enable",
        "control.plane.listener.name",
        "controlled.shutdown.max.retries",
        "controlled.shutdown.retry.backoff.ms",
        "delegation.token.master.key",
        "eligible.leader.replicas.enable",
        "inter.broker.protocol.version",
        "leader.imbalance.per.broker.percentage",
        "log.message.downconversion.enable",
        "log.message.format.version",
        "log.message.timestamp.difference.max.ms",
        "offsets.commit.required.acks",
        "reserved.broker.max.id",
    }
)
PREFIXES: Final = ("zookeeper.", "password.encoder.")
