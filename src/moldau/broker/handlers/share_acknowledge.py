"""ShareAcknowledge: acknowledge what a member of a share group has processed, without fetching (KIP-932)."""

from moldau.broker.access import Operation
from moldau.broker.fetch.acknowledgements import (
    PendingAcknowledgements,
    SharesContext,
    batches_of,
    member_of,
)
from moldau.broker.fetch.share_response import ResponsePartitions
from moldau.model.errors import InvalidShareSessionEpoch, KafkaError
from moldau.model.protocol import FINAL_SESSION_EPOCH, INITIAL_SESSION_EPOCH
from moldau.wire.messages import ShareAcknowledgeRequest, ShareAcknowledgeResponse

PartitionResult = ShareAcknowledgeResponse.PartitionData
TopicResult = ShareAcknowledgeResponse.ShareAcknowledgeTopicResponse


async def handle(request: ShareAcknowledgeRequest, context: SharesContext) -> ShareAcknowledgeResponse:
    """Respond when the acknowledgements are durable."""
    shares = context.broker.shares
    context.authorize_group(Operation.READ, request.group_id or "")
    member = member_of(request.group_id, request.member_id)
    epoch = request.share_session_epoch
    if epoch == INITIAL_SESSION_EPOCH:
        raise InvalidShareSessionEpoch("Only a fetch can open a share session.")
    shares.sessions.resume(member, epoch)
    config = shares.config(member.group_id)
    acknowledged = PendingAcknowledgements()
    try:
        acknowledged.apply(member, batches_of(request.topics), config, context, may_renew=request.is_renew_ack)
        if epoch == FINAL_SESSION_EPOCH:
            shares.close_session(member)
        results = await acknowledged.results()
    finally:
        acknowledged.cancel()
    partitions = ResponsePartitions(ShareAcknowledgeResponse, TopicResult, PartitionResult, context)
    for fetched, error in results.items():
        partitions.get(fetched)
        if error is not None:
            partitions.fail(fetched, error)
    return ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=config.record_lock_duration_ms,
        responses=partitions.topics(),
        node_endpoints=partitions.endpoints(),
    )


def error_response(
    request: ShareAcknowledgeRequest,  # noqa: ARG001 - the common shape
    error: KafkaError,
    version: int,  # noqa: ARG001
) -> ShareAcknowledgeResponse:
    """The whole request failed: the session is unknown, or the client is not authorized."""
    return ShareAcknowledgeResponse(error_code=int(error.code), error_message=error.message, responses=[])
