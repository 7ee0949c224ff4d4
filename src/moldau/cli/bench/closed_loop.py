"""Closed loop: a fixed number of requests in flight per connection, the next sent on each response."""

import select
import time
from collections.abc import Sequence
from dataclasses import dataclass

from moldau.cli.bench.streams import SILENCE_S_MAX, Flow, NoResponse, Stream


@dataclass(frozen=True, slots=True)
class Pumped:
    """Completed requests, and the time from the first byte sent to the last response received."""

    requests: int
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class Pump:
    """Send until the request or time limit is reached; then wait for the outstanding responses."""

    flows: Sequence[Flow]
    in_flight: int
    requests_max: int
    seconds_max: float

    def run(self) -> Pumped:
        streams = [Stream(flow) for flow in self.flows]
        try:
            return self._run(streams, -(-self.requests_max // len(streams)))
        finally:
            for stream in streams:
                stream.close()

    def _run(self, streams: list[Stream], per_stream_max: int) -> Pumped:
        started = time.perf_counter()
        deadline = started + self.seconds_max
        running = {stream.fileno(): stream for stream in streams}
        limits = dict.fromkeys(running, per_stream_max)
        poller = select.poll()
        for descriptor, stream in running.items():
            self._turn(stream, per_stream_max)
            poller.register(descriptor, stream.interest)
        while running:
            events = poller.poll(SILENCE_S_MAX * 1000)
            if not events:
                raise NoResponse(f"no response from the server for {SILENCE_S_MAX:g} s; see its log")
            if time.perf_counter() > deadline:
                deadline = float("inf")
                limits = {descriptor: stream.begun for descriptor, stream in running.items()}
            for descriptor, event in events:
                stream = running[descriptor]
                if event & ~select.POLLOUT:
                    stream.receive()
                was = stream.interest
                self._turn(stream, limits[descriptor])
                if stream.completed >= limits[descriptor]:
                    poller.unregister(descriptor)
                    del running[descriptor]
                elif stream.interest != was:
                    poller.modify(descriptor, stream.interest)
        elapsed_s = time.perf_counter() - started
        return Pumped(sum(stream.completed for stream in streams), elapsed_s)

    def _turn(self, stream: Stream, limit: int) -> None:
        stream.allowed = min(stream.completed + self.in_flight, limit)
        stream.send()
