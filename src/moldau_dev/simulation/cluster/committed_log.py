"""All batches ever committed to one log, and the comparison of replicas with them."""

from bisect import bisect_left

from moldau_dev.simulation.cluster.disk_log import Batch, LogOnDisk
from moldau_dev.simulation.workload import Violation


class CommittedLog:
    """Grows with the highest high watermark of any replica. Its batches never change."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.end_offset = 0
        self._batches: list[Batch] = []
        self._bases: list[int] = []
        self._verified: dict[str, int] = {}  # number of verified batches per host

    def forget(self, host: str) -> None:
        """After a truncation: verify the whole replica again."""
        self._verified.pop(host, None)

    def advance(self, host: str, log: LogOnDisk, high_watermark: int) -> None:
        """Take over the high watermark of a leader."""
        is_whole = log.start_offset <= self.end_offset and log.end_offset >= high_watermark
        if high_watermark > self.end_offset and is_whole:
            self._compare(host, log, self.end_offset)
            start = bisect_left(log.batches, (self.end_offset,))
            for batch in log.batches[start:]:
                if batch.last_offset >= high_watermark:
                    break
                self._batches.append(batch)
                self._bases.append(batch.base_offset)
            self.end_offset = high_watermark
        else:
            self.verify_follower(host, log, high_watermark)

    def verify_follower(self, host: str, log: LogOnDisk, high_watermark: int) -> None:
        """Verify a follower up to its high watermark, as far as is known to be committed."""
        self._compare(host, log, min(high_watermark, self.end_offset, log.end_offset))

    def require(self, host: str, log: LogOnDisk) -> None:
        """Check that this replica has everything committed."""
        if log.end_offset < self.end_offset:
            raise Violation(f"{self.name} on {host} ends at {log.end_offset}, but {self.end_offset} is committed")
        self._compare(host, log, self.end_offset)

    def _compare(self, host: str, log: LogOnDisk, end_offset: int) -> None:
        """Compare the batches below an offset, except those replaced by a snapshot."""
        first = max(self._verified.get(host, 0), bisect_left(self._bases, log.start_offset))
        last = bisect_left(self._bases, end_offset)
        if first >= last:
            return
        start = bisect_left(log.batches, (self._bases[first],))
        for committed, actual in zip(self._batches[first:last], log.batches[start:], strict=False):
            if committed != actual:
                raise Violation(f"{self.name} on {host} has {actual} where {committed} was committed")
        if len(log.batches) - start < last - first:
            raise Violation(f"{self.name} on {host} ends at {log.end_offset}, below the committed {end_offset}")
        self._verified[host] = last
