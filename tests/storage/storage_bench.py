"""A log on a simulated disk, and batches for it."""

import pickle
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from moldau.records.builder import build_batch
from moldau.records.header import read_header
from moldau.records.record import Record, iterate_batches, iterate_records
from moldau.storage.aborted_transactions import UnverifiedTransactionIndex
from moldau.storage.log import AppendResult, Log
from moldau.storage.settings import LogSettings
from moldau.storage.transaction_index import AbortedTransaction
from moldau.storage.transaction_replay import replay_transactions
from moldau.testing.disk import SimulatedDisk

FOLDER = "/data/topic-0"
NOW_MS = 1_700_000_000_000

T = TypeVar("T")


class Bench:
    """One partition on a simulated disk: opened, written, killed and opened again."""

    def __init__(
        self,
        disk: SimulatedDisk | None = None,
        *,
        recovery_point: int = 0,
        has_lost_power: bool = False,
        **settings: Any,
    ) -> None:
        self.disk = disk or SimulatedDisk(seed=1)
        if disk is None:
            self.disk.prepare_folder("/data")
        self.settings = LogSettings(**settings)
        self.now_ms = NOW_MS
        self.log = self.open(recovery_point=recovery_point, has_lost_power=has_lost_power)

    def open(self, **keywords: Any) -> Log:
        self.mounted = self.disk.mount()
        self.log = Log.open(self.mounted, FOLDER, self.settings, now_ms=self.now_ms, **keywords)
        return self.log

    def kill(self, **keywords: Any) -> Log:
        """Kill the process and open the log again."""
        self.disk.crash()
        return self.open(**keywords)

    def restart(self, **keywords: Any) -> Log:
        """Shut down cleanly and open the log again."""
        self.log.close(self.now_ms)
        return self.open(is_clean=True, **keywords)

    def append(self, *values: bytes, epoch: int = 0, timestamp: int | None = None, **batch: Any) -> AppendResult:
        stamp = self.now_ms if timestamp is None else timestamp
        return self.append_batch(build_batch([(stamp, None, value, ()) for value in values], **batch), epoch=epoch)

    def append_batch(self, batch: bytearray, epoch: int = 0) -> AppendResult:
        return self.log.append(memoryview(batch), read_header(batch), epoch, self.now_ms)

    def records(self, offset: int | None = None) -> list[Record]:
        """Return every record from an offset on, as a consumer reads them."""
        return list(read_records(self.log, self.log.start_offset if offset is None else offset))

    def values(self) -> list[bytes | None]:
        return [record.value for record in self.records()]

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        return self.verified(lambda: self.log.aborted_transactions(start_offset, end_offset))

    def verified(self, use: Callable[[], T]) -> T:
        """Use transaction indexes, and verify them before as a broker does."""
        while True:
            try:
                return use()
            except UnverifiedTransactionIndex as unverified:
                self.log.write_buffered()
                replay = pickle.loads(pickle.dumps(self.log.transaction_replay(unverified.segment)))
                unverified.segment.aborted.confirm(replay_transactions(self.mounted, replay), len(replay.entries))

    def names(self) -> list[str]:
        return self.mounted.list(FOLDER)

    def file(self, name: str) -> bytes:
        return self.mounted.read(f"{FOLDER}/{name}")


def read_records(log: Log, offset: int, max_bytes: int = 1 << 20) -> Iterator[Record]:
    while True:
        data = log.read_bytes(offset, max_bytes)
        if not data:
            return
        for header, batch in iterate_batches(data):
            for record in iterate_records(batch):
                if record.offset >= offset:
                    yield record
            offset = header.next_offset
