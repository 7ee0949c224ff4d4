"""The creation of topics: decided here if this node is the active controller, forwarded to it otherwise."""

from collections.abc import Sequence, Sized
from typing import Final, Protocol

from moldau.broker.cluster.metadata_publisher import MetadataPublisher
from moldau.broker.controllers.controller_channel import FORWARDED, ControllerChannel, ForwardedRequest
from moldau.broker.drivers.metadata import MetadataDriver
from moldau.machines.metadata.mutation_quota import UNLIMITED, MutationQuota
from moldau.machines.metadata.topics import NewTopic, TopicCreated
from moldau.model.errors import (
    ErrorCode,
    PolicyViolation,
    RequestTimedOut,
)
from moldau.model.ids import UUID_BYTES
from moldau.model.ports import Random
from moldau.model.units import SECOND_MS
from moldau.wire.messages import CreateTopicsRequest

PLACEMENT_STARTS: Final = 1 << 16
CREATE_TOPICS: Final = (19, 7)  # the API key and version between brokers
PROPAGATION_MS_MAX: Final = 5 * SECOND_MS  # from the creation until this broker knows the topic


class TopicHost(Protocol):
    """The parts of the broker that the creation of topics uses."""

    @property
    def random(self) -> Random: ...

    @property
    def metadata(self) -> MetadataDriver: ...

    @property
    def controller(self) -> ControllerChannel: ...

    @property
    def metadata_publisher(self) -> MetadataPublisher: ...

    @property
    def partitions(self) -> Sized: ...

    @property
    def partitions_max(self) -> int: ...

    async def catch_up_with_metadata(self) -> None: ...


async def create_topics(
    broker: TopicHost, wanted: Sequence[NewTopic], *, validate_only: bool = False, quota: MutationQuota = UNLIMITED
) -> list[TopicCreated]:
    """Create topics with the metadata machine; on return, their partitions on this broker are open."""
    check_room(broker, sum(len(each.assignments) or max(each.partitions, 1) for each in wanted))
    randomness = [broker.random.randbytes(UUID_BYTES) for _ in wanted]
    start = broker.random.randrange(0, PLACEMENT_STARTS)
    created = await broker.metadata.write(
        lambda machine: machine.decide_create_topics(
            wanted, randomness=randomness, start=start, validate_only=validate_only, quota=quota
        )
    )
    if not validate_only:
        await broker.catch_up_with_metadata()
    return created


async def request_topics(
    broker: TopicHost, wanted: Sequence[NewTopic], client: ForwardedRequest | None = None
) -> list[TopicCreated]:
    """Have the active controller create topics, for a client or for this broker, and wait until they are known.

    A request of this broker is not forwarded: it is authorized by the principal of the connection to the controller.
    """
    if broker.controller.is_here:
        return await create_topics(broker, wanted)
    request = CreateTopicsRequest(topics=[_creatable(topic) for topic in wanted], timeout_ms=PROPAGATION_MS_MAX)
    if client is None:
        response = await broker.controller.ask(request, purpose=FORWARDED)
    else:
        response = await broker.controller.forward(request, client, version=CREATE_TOPICS[1])
    created = [TopicCreated(each.name, ErrorCode(each.error_code), each.error_message) for each in response.topics]
    await _wait_until_known(broker, [each.name for each in created if each.error is ErrorCode.NONE])
    return created


def _creatable(topic: NewTopic) -> CreateTopicsRequest.CreatableTopic:
    return CreateTopicsRequest.CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        configs=[CreateTopicsRequest.CreatableTopicConfig(name=name, value=value) for name, value in topic.configs],
    )


async def _wait_until_known(broker: TopicHost, names: Sequence[str]) -> None:
    if not await broker.metadata_publisher.until(
        lambda image: all(name in image.topics for name in names), PROPAGATION_MS_MAX
    ):
        raise RequestTimedOut("The topics are created, but not yet known to this broker.")


def check_room(broker: TopicHost, more_partitions: int) -> None:
    """Reject partitions beyond the limit of open files; connections need descriptors too."""
    if len(broker.partitions) + more_partitions > broker.partitions_max:
        raise PolicyViolation(
            f"This broker has {len(broker.partitions)} partitions; its limit of open files (ulimit -n) allows "
            f"{broker.partitions_max}."
        )
