"""AlterReplicaLogDirs: move replicas of this broker between its log dirs (KIP-113)."""

from typing import Final

from moldau.broker.access import CLUSTER, Operation
from moldau.broker.handlers.contexts import LogContext
from moldau.model.errors import (
    ErrorCode,
    InvalidTopic,
    KafkaError,
    LogDirNotFound,
    StorageFailed,
)
from moldau.wire.messages import AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse

TOPIC_LENGTH_MAX: Final = 200  # so that the name of the folder of a copy has at most 255 characters

Result = AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult
TopicResult = AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult


async def handle(request: AlterReplicaLogDirsRequest, context: LogContext) -> AlterReplicaLogDirsResponse:
    """Start the moves. The log dir of a replica that is not here yet is remembered; the error tells so."""
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
        _check_log_dir(path, context)
        _check_partition(topic, index, context)
        if not context.broker.request_log_dir(topic, index, path):
            return _absence(topic, index, context)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


def _check_log_dir(path: str, context: LogContext) -> None:
    log_dirs = context.broker.log_dirs
    if path not in log_dirs.paths and path not in log_dirs.unopened:
        raise LogDirNotFound(f"The log dirs of this broker are {', '.join(log_dirs.paths)}.")
    if not log_dirs.is_online(path):
        raise StorageFailed(f"The log dir {path} is offline.")


def _absence(topic: str, index: int, context: LogContext) -> ErrorCode:
    is_known = context.broker.image.partition(topic, index) is not None
    return ErrorCode.REPLICA_NOT_AVAILABLE if is_known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _check_partition(topic: str, index: int, context: LogContext) -> None:
    """Reject a replica that is here but offline: its log cannot be copied."""
    if len(topic) > TOPIC_LENGTH_MAX:
        raise InvalidTopic(f"Logs of topics with more than {TOPIC_LENGTH_MAX} characters cannot be moved.")
    if (topic, index) in context.broker.partitions.offline:
        raise StorageFailed(f"{topic}-{index} is offline.")


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
