"""Open loop: requests are sent at a fixed rate, whether or not earlier ones are completed.

Latency is measured from the time a request was due, not from the time it was sent: a stall of the server therefore
counts for every request due during it (no coordinated omission).
"""

import select
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from moldau.cli.bench.streams import SILENCE_S_MAX, Flow, NoResponse, Stream

SAMPLES_MAX: Final = 2_000_000


@dataclass(frozen=True, slots=True)
class Pace:
    """A fixed total rate for a fixed time, over the connections in turn. `run` returns latencies in milliseconds."""

    flows: Sequence[Flow]
    requests_per_s: float
    seconds: float

    def run(self) -> list[float]:
        streams = [Stream(flow) for flow in self.flows]
        try:
            return self._run(streams)
        finally:
            for stream in streams:
                stream.close()

    def _run(self, streams: list[Stream]) -> list[float]:
        total = min(int(self.requests_per_s * self.seconds), SAMPLES_MAX)
        due: dict[Stream, deque[float]] = {stream: deque() for stream in streams}
        samples_ms: list[float] = []
        started = time.perf_counter()
        sent = 0
        while len(samples_ms) < total:
            now = time.perf_counter()
            next_due = started + sent / self.requests_per_s
            if sent < total and now >= next_due:
                stream = streams[sent % len(streams)]
                due[stream].append(next_due)
                stream.allowed += 1
                stream.send()
                sent += 1
                continue
            # Unlike poll, select supports timeouts of microseconds.
            wait_s = next_due - now if sent < total else SILENCE_S_MAX
            blocked = [stream for stream in streams if stream.is_blocked]
            readable, writable, _ = select.select(streams, blocked, [], wait_s)
            if sent == total and not readable and not writable:
                raise NoResponse(f"{total - len(samples_ms)} responses did not arrive within {SILENCE_S_MAX:g} s")
            for stream in readable:
                completed = stream.receive()
                now = time.perf_counter()
                waiting = due[stream]
                samples_ms += [(now - waiting.popleft()) * 1000 for _ in range(completed)]
            for stream in writable:
                stream.send()
        return samples_ms
