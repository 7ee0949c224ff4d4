"""A log with keyed records and a cleaner for it, on a simulated disk."""

import pickle
from typing import Any

from storage_bench import Bench

from moldau.model.units import KiB
from moldau.records.builder import build_batch
from moldau.records.control import build_transaction_marker
from moldau.records.header import BatchHeader
from moldau.records.record import iterate_batches
from moldau.storage.compaction import CompactionResult, compact
from moldau.testing.disk import SimulatedDisk


class CompactedBench(Bench):
    """A log with keyed records and a cleaner for it."""

    def __init__(self, disk: SimulatedDisk | None = None, **settings: Any) -> None:
        self.cleaned_offset = 0
        defaults = {"cleanup_policy": ("compact",), "segment_bytes": 2 * KiB, "min_cleanable_dirty_ratio": 0.0}
        super().__init__(disk, **{**defaults, **settings})

    def put(self, *pairs: tuple[bytes, bytes | None], timestamp: int | None = None, **batch: Any) -> int:
        stamp = self.now_ms if timestamp is None else timestamp
        built = build_batch([(stamp, key, value, ()) for key, value in pairs], **batch)
        return self.append_batch(built).base_offset

    def end_transaction(self, producer_id: int, *, is_commit: bool, epoch: int = 0) -> int:
        marker = build_transaction_marker(
            is_commit=is_commit,
            producer_id=producer_id,
            producer_epoch=epoch,
            coordinator_epoch=1,
            timestamp_ms=self.now_ms,
        )
        return self.append_batch(marker).base_offset

    def compact(self, **job: Any) -> CompactionResult | None:
        """Roll, so that everything may be cleaned, and run one compaction as the broker does."""
        self.log.roll(self.now_ms)
        planned = self.verified(lambda: self.log.compaction_job(self.cleaned_offset, self.log.end_offset, self.now_ms))
        if planned is None:
            return None
        carried = pickle.loads(pickle.dumps(planned))
        for name, value in job.items():
            object.__setattr__(carried, name, value)
        result: CompactionResult = pickle.loads(pickle.dumps(compact(self.mounted, carried)))
        for path in self.log.replace_segments(result):
            self.mounted.unlink(path)
        self.cleaned_offset = result.cleaned_offset
        return result

    def table(self) -> dict[bytes | None, bytes | None]:
        return {record.key: record.value for record in self.records()}

    def headers(self) -> list[BatchHeader]:
        logs = [self.file(name) for name in self.names() if name.endswith(".log")]
        return [header for data in logs for header, _ in iterate_batches(data)]
