"""Before a partition takes the first records of a transaction, its coordinator is asked, and its word is checked."""

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from moldau.broker.coordinators.host import ClusterView
from moldau.broker.partitions.partition import Partition
from moldau.broker.transactions.add_partitions import Codes, Wish
from moldau.broker.transactions.transaction_coordinator import Transactions
from moldau.client.errors import error_of
from moldau.model.errors import ErrorCode, InvalidTxnState, KafkaError
from moldau.model.ids import NO_SEQUENCE, TopicPartition
from moldau.model.ports import Clock

ROUNDS_MAX: Final = 3  # a marker that comes between question and answer makes another necessary
RETRIES_MAX: Final = 5  # while the transaction before it is about to end, as it mostly is within some milliseconds
RETRY_S: Final = 0.02


class Speaker(NamedTuple):
    """Who writes, and what its version of the protocol knows."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    enrols: bool  # partitions join the transaction by being written to; of others the producer tells the coordinator
    knows_abortable: bool  # the word for a transaction that can only be aborted


class Beginning(NamedTuple):
    """A partition that is about to get a producer's first batch of a transaction."""

    partition: Partition
    sequence: int = NO_SEQUENCE


Refusals = dict[TopicPartition, ErrorCode]


class TransactionHost(ClusterView, Protocol):
    """What a partition needs to verify a transaction with its coordinator."""

    @property
    def clock(self) -> Clock: ...

    @property
    def transactions(self) -> Transactions: ...


async def begin(broker: TransactionHost, speaker: Speaker, beginnings: Sequence[Beginning]) -> Refusals:
    """The partitions that may not be written to, and why. The others may, as long as nothing is waited for."""
    refused: Refusals = {}
    for _ in range(ROUNDS_MAX):
        refusals, beginnings = await _ask_once(broker, speaker, beginnings)
        refused |= refusals
        if not beginnings:
            return refused
    return refused | {each.partition.name: ErrorCode.INVALID_TXN_STATE for each in beginnings}


async def _ask_once(
    broker: TransactionHost, speaker: Speaker, beginnings: Sequence[Beginning]
) -> tuple[Refusals, Sequence[Beginning]]:
    """Who is refused, and of whom has to be asked again because a marker came meanwhile."""
    now_ms = broker.clock.wall_ms()
    producer_id, epoch = speaker.producer_id, speaker.producer_epoch
    sought = [
        (each, each.partition.log.producers.verifications.seek(producer_id, epoch, each.sequence, now_ms))
        for each in beginnings
    ]
    codes = await _codes(broker, speaker, [each.partition.name for each in beginnings])
    refused: Refusals = {}
    again: list[Beginning] = []
    for each, verification in sought:
        code = codes[each.partition.name]
        verifications = each.partition.log.producers.verifications
        if code is not ErrorCode.NONE:
            refused[each.partition.name] = code
            if code not in _PASSING:
                verifications.reject(producer_id, verification)
        elif not verifications.complete(producer_id, verification):
            again.append(each)
    return refused, again


async def _codes(broker: TransactionHost, speaker: Speaker, partitions: Sequence[TopicPartition]) -> Codes:
    if not speaker.enrols and not broker.settings.transaction_partition_verification_enable:
        return dict.fromkeys(partitions, ErrorCode.NONE)
    wish = Wish(speaker.transactional_id, speaker.producer_id, speaker.producer_epoch, not speaker.enrols, partitions)
    for _ in range(RETRIES_MAX if speaker.enrols else 0):
        codes = await broker.transactions.enrolment.ask(wish)
        if ErrorCode.CONCURRENT_TRANSACTIONS not in codes.values():
            return codes
        await asyncio.sleep(RETRY_S)
    return await broker.transactions.enrolment.ask(wish)


_UNREACHED: Final = (
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.OPERATION_NOT_ATTEMPTED,
)

_PASSING: Final = (*_UNREACHED, ErrorCode.CONCURRENT_TRANSACTIONS)  # the producer will come back with the same batch


def told_to_producer(code: ErrorCode, speaker: Speaker) -> KafkaError:
    """As Kafka tells it: older producers try again after `NOT_ENOUGH_REPLICAS`, and know little else of this kind."""
    if code in _UNREACHED or (code is ErrorCode.CONCURRENT_TRANSACTIONS and not speaker.enrols):
        return error_of(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"The coordinator of the transaction could not be asked whether the partition is part of it ({code.name}).",
        )
    return _told(code, speaker)


def told_to_committer(code: ErrorCode, speaker: Speaker) -> KafkaError:
    """To a producer that commits offsets: it talks to the coordinator of a group, not to that of its transaction."""
    if code in (ErrorCode.NETWORK_EXCEPTION, ErrorCode.OPERATION_NOT_ATTEMPTED) or (
        code is ErrorCode.CONCURRENT_TRANSACTIONS and not speaker.enrols
    ):
        return error_of(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    return _told(code, speaker)


def _told(code: ErrorCode, speaker: Speaker) -> KafkaError:
    if code is ErrorCode.PRODUCER_FENCED:
        return error_of(ErrorCode.INVALID_PRODUCER_EPOCH, "Another producer has the transactional id by now.")
    if code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED or (
        code in (ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE) and not speaker.knows_abortable
    ):
        return InvalidTxnState("The partition is not part of the transaction.")
    return error_of(code)
