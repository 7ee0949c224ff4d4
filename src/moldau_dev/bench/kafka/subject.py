"""A broker or cluster under comparison, which can be stopped while the other one is measured."""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from moldau.cli.bench import processes
from moldau.cli.bench.bench import Bench
from moldau.model.errors import KafkaError

SETTLE_S: Final = 0.3
SERVES_S_MAX: Final = 30.0
SERVES_CHECK_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Subject:
    """Moldau or Apache Kafka, with its processes."""

    name: str
    bench: Bench
    pids: Sequence[int]
    started_in_s: float

    @property
    def memory_bytes(self) -> int:
        return sum(processes.memory_bytes(pid) for pid in self.pids)

    def stop(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for pid in self.pids:
            for each in processes.family(pid):
                os.kill(each, number)

    @contextmanager
    def running_alone(self, others: Sequence["Subject"]) -> Iterator[None]:
        """Stop the others for the block. They run again afterwards, so that no session times out."""
        for other in others:
            other.stop()
        try:
            time.sleep(SETTLE_S)
            self.wait_until_it_serves()
            yield
        finally:
            for other in others:
                other.resume()

    def wait_until_it_serves(self) -> None:
        """After a SIGSTOP a cluster may first have to elect a leader."""
        deadline_s = time.monotonic() + SERVES_S_MAX
        while True:
            try:
                with self.bench.cluster.topic(1):
                    return
            except (KafkaError, OSError):
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(SERVES_CHECK_S)
