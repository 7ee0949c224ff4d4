"""Committed offsets: validation, commit, fetch, deletion and expiration."""

from collections.abc import Iterator
from typing import Final

from moldau.machines.groups.deleted_topics import is_deleted
from moldau.machines.groups.draft import Draft
from moldau.machines.groups.group import Group
from moldau.machines.groups.pending_offsets import OffsetKey
from moldau.machines.groups.records import PendingOffset, offset_record
from moldau.machines.groups.settings import DECISION_BYTES_MAX
from moldau.machines.groups.state import GroupsState, Offsets, Partitions
from moldau.machines.metadata.image import MetadataImage
from moldau.model.errors import (
    ErrorCode,
    GroupIdNotFound,
    IllegalGeneration,
    InvalidCommitOffsetSize,
    KafkaError,
)
from moldau.model.ids import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP, NO_TOPIC_ID
from moldau.wire import messages

CommitTopic = messages.OffsetCommitResponse.OffsetCommitResponseTopic
CommitPartition = messages.OffsetCommitResponse.OffsetCommitResponsePartition
FetchGroup = messages.OffsetFetchResponse.OffsetFetchResponseGroup
FetchTopic = messages.OffsetFetchResponse.OffsetFetchResponseTopics
FetchPartition = messages.OffsetFetchResponse.OffsetFetchResponsePartitions
TransactionTopic = messages.TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
TransactionPartition = messages.TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition
DeleteTopic = messages.OffsetDeleteResponse.OffsetDeleteResponseTopic
DeletePartition = messages.OffsetDeleteResponse.OffsetDeleteResponsePartition

DEFAULT_RETENTION: Final = -1
NEVER_MS: Final = 2**63 - 1  # maximum timestamp of a record
GROUP_ID_NOT_FOUND_VERSION: Final = 9  # version of OffsetCommit
_RECORD_BYTES: Final = 80  # approximate size of an offset record without its strings


def check_commit(group: Group | None, request: messages.OffsetCommitRequest, api_version: int) -> None:
    """Validate a commit. Without a group, only a commit without member and generation is valid."""
    if group is not None:
        group.check_commit(request, api_version)
    elif request.generation_id_or_member_epoch >= 0:
        if api_version >= GROUP_ID_NOT_FOUND_VERSION:
            raise GroupIdNotFound(f"Group {request.group_id} not found.")
        raise IllegalGeneration(f"Group {request.group_id} not found.")


def commit(draft: Draft, request: messages.OffsetCommitRequest) -> messages.OffsetCommitResponse:
    """Commit offsets; each partition has its own error."""
    _check_size(request)
    retention_ms, now_ms = request.retention_time_ms, draft.now.wall_ms
    expires_ms = NO_TIMESTAMP if retention_ms == DEFAULT_RETENTION else min(max(now_ms + retention_ms, 0), NEVER_MS)
    metadata_max = draft.settings.offset_metadata_max_bytes
    topics = []
    for topic in request.topics:
        outcomes = []
        for each in topic.partitions:
            error = ErrorCode.NONE
            if len(each.committed_metadata or "") > metadata_max:  # Kafka counts characters here, despite the name
                error = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                value = _committed(each, topic.topic_id, now_ms, expires_ms)
                draft.records.append(offset_record(request.group_id, topic.name, each.partition_index, value))
            outcomes.append(CommitPartition(partition_index=each.partition_index, error_code=error))
        topics.append(CommitTopic(topic_id=topic.topic_id, name=topic.name, partitions=outcomes))
    return messages.OffsetCommitResponse(topics=topics)


def check_commit_in_transaction(
    group: Group | None, request: messages.TxnOffsetCommitRequest, image: MetadataImage
) -> None:
    """Accept a commit without member and generation: the first versions had neither field."""
    generation, member_id, instance_id = request.generation_id, request.member_id, request.group_instance_id
    if generation < 0 and not member_id and instance_id is None:
        return
    if group is not None:
        topic_partitions = (
            (image.topic_id(each.name), one.partition_index) for each in request.topics for one in each.partitions
        )
        group.check_commit_in_transaction(request, topic_partitions)
    elif generation >= 0:
        raise IllegalGeneration(f"Group {request.group_id} not found.")


def commit_in_transaction(
    draft: Draft, request: messages.TxnOffsetCommitRequest, image: MetadataImage
) -> messages.TxnOffsetCommitResponse:
    """Add pending offsets, which take effect when the transaction commits; each partition has its own error.

    Topics are given by name, and may have been deleted while the transaction was verified.
    """
    _check_size(request)
    metadata_max, now_ms = draft.settings.offset_metadata_max_bytes, draft.now.wall_ms
    topics = []
    for topic in request.topics:
        outcomes = []
        topic_id = image.topic_id(topic.name)
        for each in topic.partitions:
            error = ErrorCode.NONE
            if topic_id == NO_TOPIC_ID and image.offset != NO_OFFSET:
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif len(each.committed_metadata or "") > metadata_max:
                error = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                key = messages.OffsetCommitKey(group=request.group_id, topic=topic.name, partition=each.partition_index)
                value = _committed(each, topic_id, now_ms, NO_TIMESTAMP)
                draft.records.append(PendingOffset(request.producer_id, request.producer_epoch, key, value))
            outcomes.append(TransactionPartition(partition_index=each.partition_index, error_code=error))
        topics.append(TransactionTopic(name=topic.name, partitions=outcomes))
    return messages.TxnOffsetCommitResponse(topics=topics)


def _committed(
    partition: messages.OffsetCommitRequest.OffsetCommitRequestPartition
    | messages.TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition,
    topic_id: bytes,
    now_ms: int,
    expires_ms: int,
) -> messages.OffsetCommitValue:
    """Build the record value. The only version with an expire timestamp has neither leader epoch nor topic id."""
    expires = expires_ms != NO_TIMESTAMP
    return messages.OffsetCommitValue(
        offset=partition.committed_offset,
        leader_epoch=NO_EPOCH if expires else partition.committed_leader_epoch,
        metadata=partition.committed_metadata or "",
        commit_timestamp=now_ms,
        expire_timestamp=expires_ms,
        topic_id=NO_TOPIC_ID if expires else topic_id,
    )


def _check_size(request: messages.OffsetCommitRequest | messages.TxnOffsetCommitRequest) -> None:
    """Limit the size of a commit: its records are one batch."""
    texts = (
        len(request.group_id) + len(topic.name) + len(each.committed_metadata or "") + _RECORD_BYTES
        for topic in request.topics
        for each in topic.partitions
    )
    if sum(texts) > DECISION_BYTES_MAX:
        raise InvalidCommitOffsetSize("The commit has too many offsets for one batch; split it.")


def fetch(
    state: GroupsState,
    group: Group | None,
    request: messages.OffsetFetchRequest.OffsetFetchRequestGroup,
    image: MetadataImage | None,
    *,
    require_stable: bool,
) -> FetchGroup:
    """Fetch committed offsets; -1 for a partition without one. Without topics in the request, fetch all.

    Offsets of deleted topics count as missing, as far as the metadata is known. With `require_stable`, a partition with
    a pending offset has the error UNSTABLE_OFFSET_COMMIT.
    """
    if group is not None:
        try:
            group.check_fetch(request.member_id, request.member_epoch)
        except KafkaError as error:
            return FetchGroup(group_id=request.group_id, error_code=error.code)
    offsets = state.offsets.get(request.group_id, {})
    if request.topics is None:
        topics = [
            FetchTopic(name=name, partitions=[_fetch_partition(index, each) for index, each in partitions.items()])
            for name, partitions in existing_offsets(offsets, image)
        ]
    else:
        topics = [_fetch_topic(offsets.get(topic.name, {}), topic, image) for topic in request.topics]
    if require_stable and state.pending.has_any(request.group_id):
        for topic in topics:
            topic.partitions = [
                _if_stable(state, (request.group_id, topic.name, each.partition_index), each, image)
                for each in topic.partitions
            ]
    return FetchGroup(group_id=request.group_id, topics=topics)


def existing_offsets(offsets: Offsets, image: MetadataImage | None) -> Iterator[tuple[str, Partitions]]:
    """Yield the offsets of existing topics, by topic; all of them if the metadata is unknown."""
    for name, partitions in offsets.items():
        kept = partitions
        if image is not None:
            topic = image.topics.get(name)
            kept = {index: each for index, each in partitions.items() if not is_deleted(each, topic)}
        if kept:
            yield name, kept


def _if_stable(
    state: GroupsState, key: OffsetKey, found: FetchPartition, image: MetadataImage | None
) -> FetchPartition:
    topic = None if image is None else image.topics.get(key[1])
    if all(image is not None and is_deleted(each, topic) for each in state.pending.at(key)):
        return found
    unknown = _fetch_partition(found.partition_index, None)
    unknown.error_code = ErrorCode.UNSTABLE_OFFSET_COMMIT
    return unknown


def _fetch_topic(
    partitions: Partitions,
    topic: messages.OffsetFetchRequest.OffsetFetchRequestTopics,
    image: MetadataImage | None,
) -> FetchTopic:
    """A topic given by id never matches a new topic of the same name."""
    found = {index: partitions.get(index) for index in topic.partition_indexes}
    if image is not None:
        known = image.topics.get(topic.name)
        if known is not None and topic.topic_id not in (NO_TOPIC_ID, known.topic_id):
            known = None
        found = {index: each for index, each in found.items() if each is not None and not is_deleted(each, known)}
    return FetchTopic(
        topic_id=topic.topic_id,
        name=topic.name,
        partitions=[_fetch_partition(index, found.get(index)) for index in topic.partition_indexes],
    )


def _fetch_partition(index: int, committed: messages.OffsetCommitValue | None) -> FetchPartition:
    if committed is None:
        return FetchPartition(
            partition_index=index, committed_offset=NO_OFFSET, committed_leader_epoch=NO_EPOCH, metadata=""
        )
    return FetchPartition(
        partition_index=index,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
    )


def delete(
    draft: Draft, state: GroupsState, group: Group, request: messages.OffsetDeleteRequest
) -> messages.OffsetDeleteResponse:
    """Delete offsets of topics without subscribers in the group."""
    offsets = state.offsets.get(request.group_id, {})
    topics = []
    for topic in request.topics:
        is_rejected = group.is_subscribed(topic.name)
        error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_rejected else ErrorCode.NONE
        indexes = list(dict.fromkeys(each.partition_index for each in topic.partitions))
        known = {} if is_rejected else offsets.get(topic.name, {})
        draft.records += [
            offset_record(request.group_id, topic.name, index, None)
            for index in indexes
            if index in known or (not is_rejected and state.pending.has(request.group_id, topic.name, index))
        ]
        outcomes = [DeletePartition(partition_index=index, error_code=error) for index in indexes]
        topics.append(DeleteTopic(name=topic.name, partitions=outcomes))
    return messages.OffsetDeleteResponse(topics=topics)


def delete_all(draft: Draft, state: GroupsState, group_id: str) -> None:
    """Delete all offsets of a group, pending ones included."""
    topic_partitions = [(topic, index) for topic, each in state.offsets.get(group_id, {}).items() for index in each]
    for topic, index in dict.fromkeys([*topic_partitions, *state.pending.partitions(group_id)]):
        draft.records.append(offset_record(group_id, topic, index, None))


def expired(offsets: Offsets, group: Group, retention_ms: int, now_ms: int) -> Iterator[tuple[str, int]]:
    """Yield topic and partition of expired offsets."""
    base = group.expiry_base()
    if base is None:
        return
    for topic, partitions in offsets.items():
        if group.is_subscribed(topic):
            continue
        for index, committed in partitions.items():
            expires_ms = committed.expire_timestamp
            if expires_ms == NO_TIMESTAMP:
                expires_ms = base(committed) + retention_ms
            if now_ms >= expires_ms:
                yield topic, index
