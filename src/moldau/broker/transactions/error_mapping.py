"""How clients of older versions hear of refusals, and which version of transactions a request speaks."""

from typing import Final

from moldau.model.errors import InvalidProducerEpoch, KafkaError, ProducerFenced

FIRST_VERSION: Final = 0
EPOCH_PER_TRANSACTION: Final = 2  # the version of transactions in which each has an epoch of its own


def told(refusal: KafkaError, *, knows_fencing: bool) -> KafkaError:
    """Older clients know one word only for a producer that another has taken the place of."""
    if isinstance(refusal, ProducerFenced) and not knows_fencing:
        return InvalidProducerEpoch(refusal.message)
    return refusal
