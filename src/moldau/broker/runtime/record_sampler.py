"""Sampling for record validation: chooses batches of a connection where a topic validates a sample.

A producer with a bug, or a hostile one, sends invalid records from the start or again and again. So the first batches
of each producer on each connection are validated, then one of about a thousand at random, and every batch after one
that was invalid. A batch that is passed over costs a decrement and a set lookup in `produce_validation.accept`; nothing
is done per record.
"""

from collections import OrderedDict
from typing import Final

from moldau.model.ids import NO_PRODUCER_ID
from moldau.model.ports import Random

FIRST_BATCHES: Final = 2  # of each producer on a connection
SAMPLE_EVERY: Final = 1_000  # batches, on average
PRODUCERS_MAX: Final = 256  # of one connection; beyond that, all start again as new ones
SUSPECTS_MAX: Final = 10_000  # producer ids, of all connections; the oldest are dropped


class RecordSamplers:
    """Creates the sampler of each connection, and remembers the producers of invalid records beyond it."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._suspects: OrderedDict[int, None] = OrderedDict()

    def create(self) -> "RecordSampler":
        return RecordSampler(self)

    def draw(self) -> int:
        """The number of batches until the next one that is validated at random."""
        return self._random.randrange(1, 2 * SAMPLE_EVERY)

    def is_suspect(self, producer_id: int) -> bool:
        return producer_id in self._suspects

    def suspect(self, producer_id: int) -> None:
        self._suspects[producer_id] = None
        self._suspects.move_to_end(producer_id)
        if len(self._suspects) > SUSPECTS_MAX:
            self._suspects.popitem(last=False)


class RecordSampler:
    """The sample of one connection. A batch is validated when `countdown` is below 0 or its producer is not trusted.

    Producers without an id count as one.
    """

    __slots__ = ("_samplers", "_suspects", "_valid_batches", "countdown", "trusted")

    def __init__(self, samplers: RecordSamplers) -> None:
        self._samplers = samplers
        self.countdown = samplers.draw()
        self.trusted: set[int] = set()
        self._valid_batches: dict[int, int] = {}  # by producer id, until it is trusted
        self._suspects: set[int] = set()

    def accepted(self, producer_id: int) -> None:
        """The records of a batch were validated."""
        if self.countdown < 0:
            self.countdown = self._samplers.draw()
        if producer_id in self._suspects or self._samplers.is_suspect(producer_id):
            self.trusted.discard(producer_id)
            return
        if producer_id in self.trusted:
            return
        if len(self._valid_batches) + len(self.trusted) >= PRODUCERS_MAX:
            self._valid_batches.clear()
            self.trusted.clear()
        count = self._valid_batches.get(producer_id, 0) + 1
        if count < FIRST_BATCHES:
            self._valid_batches[producer_id] = count
        else:
            self._valid_batches.pop(producer_id, None)
            self.trusted.add(producer_id)

    def rejected(self, producer_id: int) -> None:
        """Records of a batch were invalid: validate everything of this producer from now on."""
        self.trusted.discard(producer_id)
        self._valid_batches.pop(producer_id, None)
        if len(self._suspects) >= PRODUCERS_MAX:
            self._suspects.clear()
        self._suspects.add(producer_id)
        if producer_id != NO_PRODUCER_ID:
            self._samplers.suspect(producer_id)
