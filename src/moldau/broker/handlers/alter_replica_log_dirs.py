"""AlterReplicaLogDirs: move a replica to another log directory. This broker has one, so there is nothing to move."""

from moldau.broker.access import CLUSTER, Operation
from moldau.broker.handlers.contexts import LogContext
from moldau.model.errors import (
    ErrorCode,
    KafkaError,
    LogDirNotFound,
    NotLeaderOrFollower,
    ReplicaNotAvailable,
)
from moldau.wire.messages import AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse

Result = AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult
TopicResult = AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult


async def handle(request: AlterReplicaLogDirsRequest, context: LogContext) -> AlterReplicaLogDirsResponse:
    """Accept this broker's own log directory for replicas that exist here; any other path is an error."""
    context.authorize(Operation.ALTER, CLUSTER)
    codes: dict[str, dict[int, ErrorCode]] = {}
    for folder in request.dirs:
        for topic in folder.topics:
            results = codes.setdefault(topic.name, {})
            for index in topic.partitions:
                results[index] = _result(folder.path, topic.name, index, context)
    return _response(codes)


def _result(path: str, topic: str, index: int, context: LogContext) -> ErrorCode:
    try:
        if path not in context.broker.log_dirs.paths:
            raise LogDirNotFound(f"The log dirs of this broker are {', '.join(context.broker.log_dirs.paths)}.")
        _check_presence(topic, index, context)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


def _check_presence(topic: str, index: int, context: LogContext) -> None:
    try:
        context.broker.partitions.get_replica(topic, index)
    except NotLeaderOrFollower:
        if context.broker.partitions.find(topic, index) is None:
            raise ReplicaNotAvailable(f"This broker has no replica of {topic}-{index}.") from None


def _response(codes: dict[str, dict[int, ErrorCode]]) -> AlterReplicaLogDirsResponse:
    return AlterReplicaLogDirsResponse(
        results=[
            TopicResult(
                topic_name=topic,
                partitions=[Result(partition_index=index, error_code=int(code)) for index, code in results.items()],
            )
            for topic, results in codes.items()
        ]
    )


def error_response(request: AlterReplicaLogDirsRequest, error: KafkaError, version: int) -> AlterReplicaLogDirsResponse:  # noqa: ARG001
    """Return the same error for every partition."""
    codes: dict[str, dict[int, ErrorCode]] = {}
    for folder in request.dirs:
        for topic in folder.topics:
            codes.setdefault(topic.name, {}).update(dict.fromkeys(topic.partitions, error.code))
    return _response(codes)
