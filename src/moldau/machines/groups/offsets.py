"""Committed offsets: who may commit, what is fetched, and when an offset is forgotten."""

from collections.abc import Iterator
from typing import Final

from moldau.machines.groups.deleted_topics import is_gone
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
NEVER_MS: Final = 2**63 - 1  # as late as a record can say
KNOWS_MISSING_GROUPS_FROM: Final = 9  # the version of OffsetCommit
_RECORD_BYTES: Final = 80  # of an offset's record beside its texts, roughly


def check_commit(group: Group | None, request: messages.OffsetCommitRequest, api_version: int) -> None:
    """Whether whoever commits is entitled to. Without a group anybody is who does not claim to be a member."""
    if group is not None:
        group.check_commit(request, api_version)
    elif request.generation_id_or_member_epoch >= 0:
        if api_version >= KNOWS_MISSING_GROUPS_FROM:
            raise GroupIdNotFound(f"There is no group {request.group_id}.")
        raise IllegalGeneration(f"There is no group {request.group_id}.")


def commit(draft: Draft, request: messages.OffsetCommitRequest) -> messages.OffsetCommitResponse:
    """Each partition is committed or refused by itself."""
    _check_size(request)
    retention_ms, now_ms = request.retention_time_ms, draft.now.wall_ms
    expires_ms = NO_TIMESTAMP if retention_ms == DEFAULT_RETENTION else min(max(now_ms + retention_ms, 0), NEVER_MS)
    note_max = draft.settings.offset_metadata_max_bytes
    topics = []
    for topic in request.topics:
        outcomes = []
        for each in topic.partitions:
            error = ErrorCode.NONE
            if len(each.committed_metadata or "") > note_max:  # Kafka counts characters here, in spite of the name
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
    """Who names neither member nor generation is taken at its word, as in the first versions, which knew neither."""
    generation, member_id, instance_id = request.generation_id, request.member_id, request.group_instance_id
    if generation < 0 and not member_id and instance_id is None:
        return
    if group is not None:
        places = (
            (image.topic_id(each.name), one.partition_index) for each in request.topics for one in each.partitions
        )
        group.check_commit_in_transaction(request, places)
    elif generation >= 0:
        raise IllegalGeneration(f"There is no group {request.group_id}.")


def commit_in_transaction(
    draft: Draft, request: messages.TxnOffsetCommitRequest, image: MetadataImage
) -> messages.TxnOffsetCommitResponse:
    """Each partition is noted or refused by itself; what is noted counts when the transaction is committed.

    Topics have names, and may have gone while it was found out whether the transaction is open.
    """
    _check_size(request)
    note_max, now_ms = draft.settings.offset_metadata_max_bytes, draft.now.wall_ms
    topics = []
    for topic in request.topics:
        outcomes = []
        topic_id = image.topic_id(topic.name)
        for each in topic.partitions:
            error = ErrorCode.NONE
            if topic_id == NO_TOPIC_ID and image.offset != NO_OFFSET:
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif len(each.committed_metadata or "") > note_max:
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
    """What the log is told. The one version that can say when an offset expires can say neither its leader epoch nor
    the id of its topic.
    """
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
    """One commit may not fill the log."""
    texts = (
        len(request.group_id) + len(topic.name) + len(each.committed_metadata or "") + _RECORD_BYTES
        for topic in request.topics
        for each in topic.partitions
    )
    if sum(texts) > DECISION_BYTES_MAX:
        raise InvalidCommitOffsetSize("More offsets than can be written at once.")


def fetch(
    state: GroupsState,
    group: Group | None,
    request: messages.OffsetFetchRequest.OffsetFetchRequestGroup,
    image: MetadataImage | None,
    *,
    require_stable: bool,
) -> FetchGroup:
    """What was committed; a partition without an offset has the offset -1. Without topics, everything there is.

    What was committed for topics that are gone is none, as far as the metadata is known. Whoever asks for what is
    stable is not told an offset that an open transaction may be about to change.
    """
    if group is not None:
        try:
            group.check_fetch(request.member_id, request.member_epoch)
        except KafkaError as refusal:
            return FetchGroup(group_id=request.group_id, error_code=refusal.code)
    offsets = state.offsets.get(request.group_id, {})
    if request.topics is None:
        topics = [
            FetchTopic(name=name, partitions=[_fetched(index, each) for index, each in partitions.items()])
            for name, partitions in present(offsets, image)
        ]
    else:
        topics = [_fetched_topic(offsets.get(topic.name, {}), topic, image) for topic in request.topics]
    if require_stable and state.pending.has_any(request.group_id):
        for topic in topics:
            topic.partitions = [
                _if_stable(state, (request.group_id, topic.name, each.partition_index), each, image)
                for each in topic.partitions
            ]
    return FetchGroup(group_id=request.group_id, topics=topics)


def present(offsets: Offsets, image: MetadataImage | None) -> Iterator[tuple[str, Partitions]]:
    """The offsets of topics that exist, by topic; where the metadata is not known, all."""
    for name, partitions in offsets.items():
        kept = partitions
        if image is not None:
            topic = image.topics.get(name)
            kept = {index: each for index, each in partitions.items() if not is_gone(each, topic)}
        if kept:
            yield name, kept


def _if_stable(
    state: GroupsState, key: OffsetKey, found: FetchPartition, image: MetadataImage | None
) -> FetchPartition:
    topic = None if image is None else image.topics.get(key[1])
    if all(image is not None and is_gone(each, topic) for each in state.pending.at(key)):
        return found
    unknown = _fetched(found.partition_index, None)
    unknown.error_code = ErrorCode.UNSTABLE_OFFSET_COMMIT
    return unknown


def _fetched_topic(
    partitions: Partitions,
    topic: messages.OffsetFetchRequest.OffsetFetchRequestTopics,
    image: MetadataImage | None,
) -> FetchTopic:
    """Who names the topic by its id is told of no other, though another may have its name already."""
    found = {index: partitions.get(index) for index in topic.partition_indexes}
    if image is not None:
        known = image.topics.get(topic.name)
        if known is not None and topic.topic_id not in (NO_TOPIC_ID, known.topic_id):
            known = None
        found = {index: each for index, each in found.items() if each is not None and not is_gone(each, known)}
    return FetchTopic(
        topic_id=topic.topic_id,
        name=topic.name,
        partitions=[_fetched(index, found.get(index)) for index in topic.partition_indexes],
    )


def _fetched(index: int, committed: messages.OffsetCommitValue | None) -> FetchPartition:
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
    """Offsets of topics that nobody in the group reads are forgotten."""
    offsets = state.offsets.get(request.group_id, {})
    topics = []
    for topic in request.topics:
        is_refused = group.is_subscribed(topic.name)
        error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_refused else ErrorCode.NONE
        indexes = list(dict.fromkeys(each.partition_index for each in topic.partitions))
        known = {} if is_refused else offsets.get(topic.name, {})
        draft.records += [
            offset_record(request.group_id, topic.name, index, None)
            for index in indexes
            if index in known or (not is_refused and state.pending.has(request.group_id, topic.name, index))
        ]
        outcomes = [DeletePartition(partition_index=index, error_code=error) for index in indexes]
        topics.append(DeleteTopic(name=topic.name, partitions=outcomes))
    return messages.OffsetDeleteResponse(topics=topics)


def forget_all(draft: Draft, state: GroupsState, group_id: str) -> None:
    """The group goes, and its offsets with it, those of open transactions too."""
    places = [(topic, index) for topic, each in state.offsets.get(group_id, {}).items() for index in each]
    for topic, index in dict.fromkeys([*places, *state.pending.places(group_id)]):
        draft.records.append(offset_record(group_id, topic, index, None))


def expired(offsets: Offsets, group: Group, retention_ms: int, now_ms: int) -> Iterator[tuple[str, int]]:
    """The offsets that need not be kept any longer, by topic and partition."""
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
