"""Error codes for older clients, and the transaction version of a request."""

from typing import Final

from moldau.model.errors import InvalidProducerEpoch, KafkaError, ProducerFenced

FIRST_VERSION: Final = 0
EPOCH_PER_TRANSACTION: Final = 2  # the transaction version in which each transaction has its own epoch (KIP-890)


def error_for_version(error: KafkaError, *, knows_fencing: bool) -> KafkaError:
    """Older clients know only INVALID_PRODUCER_EPOCH for a fenced producer."""
    if isinstance(error, ProducerFenced) and not knows_fencing:
        return InvalidProducerEpoch(error.message)
    return error
