"""AlterReplicaLogDirs: which folder of this broker a partition shall lie in. There is one, and all lie in it."""

from moldau.broker.access import CLUSTER, Operation
from moldau.broker.requests.context import RequestContext
from moldau.model.errors import (
    ErrorCode,
    KafkaError,
    LogDirNotFound,
    NotLeaderOrFollower,
    ReplicaNotAvailable,
)
from moldau.wire.messages import AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse

Answer = AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult
TopicAnswer = AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult


async def handle(request: AlterReplicaLogDirsRequest, context: RequestContext) -> AlterReplicaLogDirsResponse:
    """Whoever names our folder is told that it is done, for the partitions that are here."""
    context.authorize(Operation.ALTER, CLUSTER)
    codes: dict[str, dict[int, ErrorCode]] = {}
    for folder in request.dirs:
        for topic in folder.topics:
            answers = codes.setdefault(topic.name, {})
            for index in topic.partitions:
                answers[index] = _answer(folder.path, topic.name, index, context)
    return _response(codes)


def _answer(path: str, topic: str, index: int, context: RequestContext) -> ErrorCode:
    try:
        if path != context.broker.data_folder:
            raise LogDirNotFound(f"The data of this broker lies in {context.broker.data_folder}, not in {path}.")
        _check_presence(topic, index, context)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


def _check_presence(topic: str, index: int, context: RequestContext) -> None:
    try:
        context.broker.partitions.get_replica(topic, index)
    except NotLeaderOrFollower:
        if context.broker.partitions.find(topic, index) is None:
            raise ReplicaNotAvailable(f"No replica of {topic}-{index} is on this broker.") from None


def _response(codes: dict[str, dict[int, ErrorCode]]) -> AlterReplicaLogDirsResponse:
    return AlterReplicaLogDirsResponse(
        results=[
            TopicAnswer(
                topic_name=topic,
                partitions=[Answer(partition_index=index, error_code=int(code)) for index, code in answers.items()],
            )
            for topic, answers in codes.items()
        ]
    )


def refuse(request: AlterReplicaLogDirsRequest, error: KafkaError, version: int) -> AlterReplicaLogDirsResponse:  # noqa: ARG001
    """The same error for every partition."""
    codes: dict[str, dict[int, ErrorCode]] = {}
    for folder in request.dirs:
        for topic in folder.topics:
            codes.setdefault(topic.name, {}).update(dict.fromkeys(topic.partitions, error.code))
    return _response(codes)
