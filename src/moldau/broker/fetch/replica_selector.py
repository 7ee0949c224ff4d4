"""The preferred read replica of a consumer (KIP-392): one in its own rack, if the rack-aware selector is set."""

from moldau.broker.fetch.contexts import ConsumerFetchContext
from moldau.broker.partitions.partition import Partition
from moldau.wire.messages import FetchRequest


def may_redirect(request: FetchRequest, context: ConsumerFetchContext) -> bool:
    """Whether some replica may be better for the consumer than this broker."""
    settings = context.broker.settings
    return bool(request.rack_id) and settings.chooses_by_rack and settings.broker_rack != request.rack_id


def select_preferred_replica(
    request: FetchRequest, offset: int, partition: Partition, context: ConsumerFetchContext
) -> int | None:
    """The follower that the consumer should fetch from, if there is a better replica than this one."""
    leading = partition.role.leading
    if leading is None or not may_redirect(request, context):
        return None
    broker = context.broker
    image, machine = broker.partitions.image, leading.machine
    near = [
        (progress.end_offset, -replica)
        for replica, progress in machine.followers.items()
        if replica in machine.isr
        and image.is_active(replica)
        and image.brokers[replica].rack == request.rack_id
        and image.brokers[replica].address(context.listener) is not None
        and progress.log_start_offset <= offset <= progress.end_offset
    ]
    # The highest offset; among equals the lowest id.
    return -max(near)[1] if near else None
