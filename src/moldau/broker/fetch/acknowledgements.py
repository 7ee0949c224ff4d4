"""Acknowledgements in ShareFetch and ShareAcknowledge requests: validated, applied, durable later."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from moldau.broker.access import Operation
from moldau.broker.partitions.table import Partitions
from moldau.broker.requests.context import ContextHost, RequestContext
from moldau.broker.shares.shares import Shares
from moldau.machines.groups.share.settings import ShareGroupConfig
from moldau.machines.shares.acknowledgement import Acknowledgement, AcknowledgeType
from moldau.machines.shares.sessions import FetchedPartition, MemberKey
from moldau.model.errors import InvalidRecordState, InvalidRequest, KafkaError, TopicAuthorizationFailed
from moldau.model.ids import TopicId
from moldau.wire.messages import ShareAcknowledgeRequest, ShareFetchRequest

MEMBER_ID_BYTES_MAX: Final = 36  # a UUID, as Kafka requires


class SharesMember(ContextHost, Protocol):
    """The broker, for requests of share members."""

    @property
    def shares(self) -> Shares: ...

    @property
    def partitions(self) -> Partitions: ...


SharesContext = RequestContext[SharesMember]
Batches = Mapping[FetchedPartition, Sequence[Acknowledgement]]


def member_of(group_id: str | None, member_id: str | None) -> MemberKey:
    """The member of a request; raises if its id is missing or too long."""
    if not group_id:
        raise InvalidRequest("The group id is missing.")
    if not member_id or len(member_id) > MEMBER_ID_BYTES_MAX:
        raise InvalidRequest(f"The member id must have 1 to {MEMBER_ID_BYTES_MAX} characters.")
    return MemberKey(group_id, member_id)


def partitions_of(topics: "Iterable[ShareFetchRequest.FetchTopic]") -> list[FetchedPartition]:
    return [
        FetchedPartition(TopicId(topic.topic_id), partition.partition_index)
        for topic in topics
        for partition in topic.partitions
    ]


def batches_of(
    topics: "Iterable[ShareFetchRequest.FetchTopic | ShareAcknowledgeRequest.AcknowledgeTopic]",
) -> dict[FetchedPartition, list[Acknowledgement]]:
    """The acknowledgements of a request by partition."""
    return {
        FetchedPartition(TopicId(topic.topic_id), partition.partition_index): [
            Acknowledgement(each.first_offset, each.last_offset, each.acknowledge_types)
            for each in partition.acknowledgement_batches
        ]
        for topic in topics
        for partition in topic.partitions
        if partition.acknowledgement_batches
    }


class PendingAcknowledgements:
    """The acknowledgements of one request: applied at once, durable later."""

    def __init__(self) -> None:
        self._pending: dict[FetchedPartition, asyncio.Future[None]] = {}
        self._errors: dict[FetchedPartition, KafkaError] = {}

    def __bool__(self) -> bool:
        return bool(self._pending or self._errors)

    def apply(
        self, member: MemberKey, batches: Batches, config: ShareGroupConfig, context: SharesContext, *, may_renew: bool
    ) -> None:
        """Apply the acknowledgements of each partition, all or none."""
        shares = context.broker.shares
        for fetched, acknowledgements in batches.items():
            try:
                if not context.may(Operation.READ, shares.topic_name(fetched)):
                    raise TopicAuthorizationFailed
                _check_renewals(acknowledgements, config, may_renew=may_renew)
                share = shares.find(member.group_id, fetched, config)
                if share is None:
                    raise InvalidRecordState("The records were not acquired from this leader of the partition.")
                self._pending[fetched] = share.acknowledge(member.member_id, acknowledgements)
            except KafkaError as error:
                self._errors[fetched] = error

    async def results(self) -> dict[FetchedPartition, KafkaError | None]:
        """Wait until all are durable; the error of each partition, None if there is none."""
        results: dict[FetchedPartition, KafkaError | None] = dict(self._errors)
        for fetched, done in self._pending.items():
            try:
                await done
                results[fetched] = None
            except KafkaError as error:
                results[fetched] = error
        return results

    def cancel(self) -> None:
        """The client is gone."""
        for done in self._pending.values():
            done.cancel()


def _check_renewals(acknowledgements: Sequence[Acknowledgement], config: ShareGroupConfig, *, may_renew: bool) -> None:
    if may_renew and config.is_renewal_enabled:
        return
    if any(AcknowledgeType.RENEW in each.types for each in acknowledgements):
        raise InvalidRequest(
            "Renewals are disabled by share.renew.acknowledge.enable."
            if may_renew
            else "A request that renews locks must say so."
        )
