"""The outcome of waiting for a batch to be committed: an acknowledgement, or the error that the producer gets."""

import asyncio

from moldau.broker.partitions.partition import Partition
from moldau.model.errors import KafkaError, RequestTimedOut


def time_out(*waits: asyncio.Future[None]) -> None:
    """Time out the waits that are not done."""
    for wait in waits:
        if not wait.done():
            wait.set_exception(RequestTimedOut())


def error_of_wait(
    wait: asyncio.Future[None], partition: Partition, end_offset: int, *, acks_all: bool = True
) -> KafkaError | None:
    """Why a batch is not acknowledged (it may be in the log all the same), or None."""
    if wait.cancelled():
        return RequestTimedOut()
    return error_after_wait(wait.exception(), partition, end_offset, acks_all=acks_all)


def error_after_wait(
    failure: BaseException | None, partition: Partition, end_offset: int, *, acks_all: bool = True
) -> KafkaError | None:
    """The error of a batch whose wait has ended with `failure`, or None if it is acknowledged."""
    if isinstance(failure, RequestTimedOut):
        return RequestTimedOut(f"Offset {end_offset - 1} of {partition.name} was not committed in time.")
    if isinstance(failure, KafkaError):
        return failure
    try:
        if acks_all and partition.role.leading is not None:
            partition.role.leading.check_enough_after_append()
    except KafkaError as error:
        return error
    return None
