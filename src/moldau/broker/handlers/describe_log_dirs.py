"""DescribeLogDirs: the size of each partition on disk, and the total and free space."""

from collections import defaultdict
from collections.abc import Iterable

from moldau.broker.access import CLUSTER, Operation
from moldau.broker.handlers.contexts import LogContext
from moldau.broker.partitions.partition import Partition
from moldau.model.errors import ErrorCode
from moldau.wire.messages import DescribeLogDirsRequest, DescribeLogDirsResponse

Folder = DescribeLogDirsResponse.DescribeLogDirsResult
Topic = DescribeLogDirsResponse.DescribeLogDirsTopic
Size = DescribeLogDirsResponse.DescribeLogDirsPartition


async def handle(request: DescribeLogDirsRequest, context: LogContext) -> DescribeLogDirsResponse:
    """Describe the broker's only log directory."""
    context.authorize(Operation.DESCRIBE, CLUSTER)
    broker = context.broker
    total_bytes, free_bytes = broker.disk_space()
    folder = Folder(
        error_code=int(ErrorCode.NONE if broker.log_dir.is_online else ErrorCode.KAFKA_STORAGE_ERROR),
        log_dir=broker.data_folder,
        topics=_topics(_requested(request, context)),
        total_bytes=total_bytes,
        usable_bytes=free_bytes,
        is_cordoned=broker.image.is_cordoned(broker.node_id),
    )
    return DescribeLogDirsResponse(results=[folder])


def _requested(request: DescribeLogDirsRequest, context: LogContext) -> Iterable[Partition]:
    if request.topics is None:
        return context.broker.partitions.all()
    wanted = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    return [each for each in context.broker.partitions.all() if each.name in wanted]


def _topics(partitions: Iterable[Partition]) -> list[Topic]:
    sizes: defaultdict[str, list[Size]] = defaultdict(list)
    for partition in partitions:
        size = Size(partition_index=partition.name.partition, partition_size=partition.log.size_bytes, offset_lag=0)
        sizes[partition.name.topic].append(size)
    return [Topic(name=name, partitions=sizes[name]) for name in sorted(sizes)]
