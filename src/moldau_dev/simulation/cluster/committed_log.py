"""What was ever committed to one log, batch by batch, and whether a copy of the log has it."""

from bisect import bisect_left

from moldau_dev.simulation.cluster.disk_log import Batch, LogOnDisk
from moldau_dev.simulation.workload import Violation


class CommittedLog:
    """Grows with the highest high watermark anybody had. What is once in it never changes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.end_offset = 0
        self._batches: list[Batch] = []
        self._bases: list[int] = []
        self._verified: dict[str, int] = {}  # how many batches a host's copy is known to have

    def forget(self, host: str) -> None:
        """Its copy was cut: look at all of it again."""
        self._verified.pop(host, None)

    def advance(self, host: str, log: LogOnDisk, high_watermark: int) -> None:
        """A host says that its log is committed up to here."""
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
            self.believe(host, log, high_watermark)

    def believe(self, host: str, log: LogOnDisk, high_watermark: int) -> None:
        """A host that follows takes its copy for committed up to here: it is, as far as is known, and unchanged."""
        self._compare(host, log, min(high_watermark, self.end_offset, log.end_offset))

    def require(self, host: str, log: LogOnDisk) -> None:
        """This copy must have all that was committed."""
        if log.end_offset < self.end_offset:
            raise Violation(f"{self.name} on {host} ends at {log.end_offset}, {self.end_offset} are committed")
        self._compare(host, log, self.end_offset)

    def _compare(self, host: str, log: LogOnDisk, end_offset: int) -> None:
        """Where both have batches below this offset, they are the same; what a snapshot has replaced is left out."""
        first = max(self._verified.get(host, 0), bisect_left(self._bases, log.start_offset))
        last = bisect_left(self._bases, end_offset)
        if first >= last:
            return
        start = bisect_left(log.batches, (self._bases[first],))
        for committed, there in zip(self._batches[first:last], log.batches[start:], strict=False):
            if committed != there:
                raise Violation(f"{self.name} on {host} has {there} where {committed} was committed")
        if len(log.batches) - start < last - first:
            raise Violation(f"{self.name} on {host} ends at {log.end_offset}, below the committed {end_offset}")
        self._verified[host] = last
