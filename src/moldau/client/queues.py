"""A queue: a topic and the configs of the share group that reads it.

Names of dead letters are those of KIP-1191. Back-off, order, delay and the acquire mode are extensions of Moldau; other
clusters reject them.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from moldau.client.blocking_client import BlockingClient
from moldau.client.groups import Groups
from moldau.client.types import Resource, ResourceKind
from moldau.model.errors import GroupIdNotFound, TopicAlreadyExists

ACQUIRE_MODE: Final = "share.acquire.mode"
AUTO_OFFSET_RESET: Final = "share.auto.offset.reset"
BACKOFF_FACTOR: Final = "share.retry.backoff.factor"
BACKOFF_MAX_MS: Final = "share.retry.backoff.max.ms"
BACKOFF_MS: Final = "share.retry.backoff.ms"
DEAD_LETTER_COPY: Final = "errors.deadletterqueue.copy.record.enable"
DEAD_LETTER_TOPIC: Final = "errors.deadletterqueue.topic.name"
DEAD_LETTERS_ENABLE: Final = "errors.deadletterqueue.group.enable"  # of a topic that may have dead letters
DELAY_ENABLE: Final = "share.delay.enable"
DELIVERY_COUNT_LIMIT: Final = "share.delivery.count.limit"
LOCK_MS: Final = "share.record.lock.duration.ms"
ORDER: Final = "share.order"


class Order(StrEnum):
    """The order of deliveries of a queue."""

    NONE = "none"
    KEY = "key"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """None keeps the config of the group as it is."""

    max_attempts: int | None = None
    lock_ms: int | None = None
    dead_letters: str | None = None
    order: Order | None = None
    backoff_ms: int | None = None
    backoff_factor: float | None = None
    backoff_max_ms: int | None = None
    has_delays: bool | None = None

    def group_configs(self) -> dict[str, str]:
        """The configs by name; a cluster that lacks one must reject it."""
        wanted = {
            DELIVERY_COUNT_LIMIT: self.max_attempts,
            LOCK_MS: self.lock_ms,
            DEAD_LETTER_TOPIC: self.dead_letters,
            DEAD_LETTER_COPY: None if self.dead_letters is None else "true",
            ORDER: self.order,
            BACKOFF_MS: self.backoff_ms,
            BACKOFF_FACTOR: self.backoff_factor,
            BACKOFF_MAX_MS: self.backoff_max_ms,
            DELAY_ENABLE: None if self.has_delays is None else str(self.has_delays).lower(),
        }
        return {name: str(value) for name, value in wanted.items() if value is not None}


def create_queue(
    client: BlockingClient,
    topic: str,
    group: str,
    configs: Mapping[str, str],
    *,
    partitions: int = -1,
    replication_factor: int = -1,
) -> bool:
    """Set the configs of the group, then create the topic if it does not exist; return whether it was created.

    The group starts at the earliest record, and acquires single records where the cluster supports that. A missing
    dead-letter topic is created too; an existing one must be enabled for dead letters already.
    """
    resource = Resource(ResourceKind.GROUP, group)
    defaults = {AUTO_OFFSET_RESET: "earliest"}
    if any(each.name == ACQUIRE_MODE for each in client.describe_configs(resource)):
        defaults[ACQUIRE_MODE] = "record_limit"
    client.alter_configs(resource, {**defaults, **configs})
    if dead_letters := configs.get(DEAD_LETTER_TOPIC):
        _create_if_missing(client, dead_letters, partitions, replication_factor, {DEAD_LETTERS_ENABLE: "true"})
    return _create_if_missing(client, topic, partitions, replication_factor, {})


def _create_if_missing(
    client: BlockingClient, topic: str, partitions: int, replication_factor: int, configs: Mapping[str, str]
) -> bool:
    try:
        client.create_topic(topic, partitions=partitions, replication_factor=replication_factor, configs=configs)
    except TopicAlreadyExists:
        return False
    return True


def delete_queue(client: BlockingClient, topic: str, group: str, *, with_topic: bool) -> None:
    """Delete the group with its configs, and the topic if wanted. A group without members may be unknown."""
    with suppress(GroupIdNotFound):  # it was never joined
        client.run(Groups(client.asynchronous).delete(group))
    resource = Resource(ResourceKind.GROUP, group)
    own = [each.name for each in client.describe_configs(resource) if not each.is_default]
    if own:
        client.alter_configs(resource, removed=own)
    if with_topic:
        client.delete_topic(topic)
