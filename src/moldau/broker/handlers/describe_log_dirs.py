"""DescribeLogDirs: the size of each partition on disk, and the total and free space of each log dir."""

from collections import defaultdict
from collections.abc import Iterable

from moldau.broker.access import CLUSTER, Operation
from moldau.broker.handlers.contexts import LogContext
from moldau.broker.partitions.partition import Partition
from moldau.broker.replicas.log_moves import LogMove
from moldau.broker.runtime.log_dirs import path_of
from moldau.model.errors import ErrorCode
from moldau.wire.messages import DescribeLogDirsRequest, DescribeLogDirsResponse

Folder = DescribeLogDirsResponse.DescribeLogDirsResult
Topic = DescribeLogDirsResponse.DescribeLogDirsTopic
Size = DescribeLogDirsResponse.DescribeLogDirsPartition


async def handle(request: DescribeLogDirsRequest, context: LogContext) -> DescribeLogDirsResponse:
    """Describe the log dirs of this broker. One that is offline has an error, and what can still be read."""
    context.authorize(Operation.DESCRIBE, CLUSTER)
    by_path: defaultdict[str, list[Partition]] = defaultdict(list)
    for partition in _requested(request, context):
        by_path[path_of(partition.log.folder)].append(partition)
    log_dirs = context.broker.log_dirs
    results = [_described(path, by_path[path], context) for path in log_dirs.paths]
    results += [Folder(error_code=int(ErrorCode.KAFKA_STORAGE_ERROR), log_dir=path) for path in log_dirs.unopened]
    return DescribeLogDirsResponse(results=results)


def _described(path: str, partitions: Iterable[Partition], context: LogContext) -> Folder:
    broker = context.broker
    is_online = broker.log_dirs.is_online(path)
    total_bytes, free_bytes = _space(path, context)
    return Folder(
        error_code=int(ErrorCode.NONE if is_online else ErrorCode.KAFKA_STORAGE_ERROR),
        log_dir=path,
        topics=_topics(partitions, [each for each in broker.log_moves.all if each.path == path]),
        total_bytes=total_bytes,
        usable_bytes=free_bytes,
        is_cordoned=broker.image.is_log_dir_cordoned(broker.node_id, path),
    )


def _space(path: str, context: LogContext) -> tuple[int, int]:
    """The total and free bytes; unknown if the disk of one of several log dirs fails."""
    try:
        return context.broker.disk_space(path)
    except OSError:
        if len(context.broker.log_dirs.paths) == 1:
            raise
        return -1, -1


def _requested(request: DescribeLogDirsRequest, context: LogContext) -> Iterable[Partition]:
    if request.topics is None:
        return context.broker.partitions.all()
    wanted = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    return [each for each in context.broker.partitions.all() if each.name in wanted]


def _topics(partitions: Iterable[Partition], moves: Iterable[LogMove]) -> list[Topic]:
    """The sizes of logs, and of the copies of logs that move here."""
    sizes: defaultdict[str, list[Size]] = defaultdict(list)
    for move in moves:
        size = Size(
            partition_index=move.partition.name.partition,
            partition_size=0 if move.future is None else move.future.size_bytes,
            offset_lag=move.lag,
            is_future_key=True,
        )
        sizes[move.partition.name.topic].append(size)
    for partition in partitions:
        size = Size(partition_index=partition.name.partition, partition_size=partition.log.size_bytes, offset_lag=0)
        sizes[partition.name.topic].append(size)
    return [Topic(name=name, partitions=sizes[name]) for name in sorted(sizes)]
