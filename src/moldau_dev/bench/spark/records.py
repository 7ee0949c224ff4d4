"""Topics to read: records of one size whose values are random text, so that they do not compress well in a file."""

import base64
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from moldau.cli.bench.bench import Bench
from moldau.cli.bench.closed_loop import Pump
from moldau.cli.bench.cluster import Topic
from moldau.cli.bench.requests import probe, produce_frame
from moldau.cli.bench.streams import Flow
from moldau.cli.errors import CommandError
from moldau.records.builder import build_batch

PARTITIONS: Final = 2  # as many tasks as cores
KEY_BYTES: Final = 10
_DIFFERENT_BATCHES: Final = 100
_IN_FLIGHT: Final = 5
_FILL_S_MAX: Final = 120.0


@dataclass(frozen=True, slots=True)
class Records:
    """Records of a topic: a key of ten bytes, and a value that fills up to `record_bytes`."""

    count: int
    record_bytes: int
    per_batch: int

    @property
    def value_bytes(self) -> int:
        return self.record_bytes - KEY_BYTES

    @property
    def total_bytes(self) -> int:
        return self.count * self.record_bytes

    def batches(self) -> list[bytes]:
        """Return different batches of the same size."""
        chance, now_ms = random.Random(self.record_bytes), time.time_ns() // 1_000_000
        return [self._batch(chance, now_ms) for _ in range(_DIFFERENT_BATCHES)]

    def _batch(self, chance: random.Random, now_ms: int) -> bytes:
        return bytes(build_batch([(now_ms, self._key(chance), self._value(chance), ()) for _ in range(self.per_batch)]))

    def _key(self, chance: random.Random) -> bytes:
        return b"%0*d" % (KEY_BYTES, chance.randrange(10**6))

    def _value(self, chance: random.Random) -> bytes:
        return base64.b64encode(chance.randbytes(self.value_bytes))[: self.value_bytes]


@contextmanager
def filled(bench: Bench, records: Records) -> Iterator[Topic]:
    """Create a topic with these records, evenly on two partitions."""
    with bench.cluster.topic(PARTITIONS) as topic:
        bench.tell(f"writing {records.count:,} records of {records.record_bytes} B")
        _fill(bench, topic, records)
        yield topic


def _fill(bench: Bench, topic: Topic, records: Records) -> None:
    batches = records.batches()
    flows = [_flow(topic, index, batches) for index in range(PARTITIONS)]
    # Each partition has been tried with a batch already.
    bench.generator.run(Pump(flows, _IN_FLIGHT, records.count // records.per_batch - PARTITIONS, _FILL_S_MAX))
    found = sum(bench.cluster.end_offsets(topic))
    if found != records.count:
        raise CommandError(f"{records.count} records were wanted, and the log has {found}")


def _flow(topic: Topic, partition: int, batches: list[bytes]) -> Flow:
    frames = [produce_frame(topic.name, partition, batch) for batch in batches]
    tried = probe(topic.leaders[partition], frames[0])
    return Flow(topic.leaders[partition], frames, tried.reply_bytes)
