"""Producer ids, allocated to brokers in blocks so that no two producers share one."""

from typing import Final, NamedTuple

from moldau.machines.decision import Decision, respond
from moldau.machines.metadata.brokers import check_broker_epoch
from moldau.machines.metadata.image import MetadataImage
from moldau.machines.metadata.records import Record
from moldau.model.errors import UnknownServerFailure
from moldau.wire import messages

BLOCK_LENGTH: Final = 1000
PRODUCER_ID_MAX: Final = 2**63 - 1


class ProducerIdBlock(NamedTuple):
    """The ids `first` to `first + length - 1` belong to the requesting broker."""

    first: int
    length: int


def decide_allocate_producer_ids(
    image: MetadataImage, broker_id: int, broker_epoch: int
) -> Decision[Record, ProducerIdBlock]:
    check_broker_epoch(image, broker_id, broker_epoch)
    first = image.next_producer_id
    if first > PRODUCER_ID_MAX - BLOCK_LENGTH:
        raise UnknownServerFailure(
            "Exhausted all producerIds as the next block's end producerId has exceeded the int64 type limit"
        )
    record = messages.ProducerIdsRecord(
        broker_id=broker_id, broker_epoch=broker_epoch, next_producer_id=first + BLOCK_LENGTH
    )
    return respond(ProducerIdBlock(first, BLOCK_LENGTH), [record])
