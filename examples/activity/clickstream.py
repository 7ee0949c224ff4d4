"""Generate a clickstream for the activity pipeline: visitors with sessions, a hot user, late and malformed events.

    python clickstream.py --topic clicks --events 100000 --bootstrap-servers localhost:9092
    moldau pipeline run activity --topic clicks --once

Events are numbered from 0; duplicates and malformed events are added to them and counted. The same seed gives the same
records, so that the output of a pipeline can be compared with its input.
"""

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from confluent_kafka import KafkaException, Producer

KINDS = ("view", "view", "view", "view", "click", "click", "search", "cart", "purchase")
PAGES = ("/", "/", "/", "/search", "/search", "/product/1", "/product/2", "/product/3", "/basket", "/checkout")
BROKEN = (b'{"event_id": ', b'{"event_id": "x", "user": ""}', b"no json", b"")
CHUNK = 10_000
CONNECT_S_MAX = 10
REPEATED_AFTER_MAX = 2_000

Record = tuple[bytes | None, bytes, int]


@dataclass(frozen=True)
class Mix:
    """The proportions of event types. `skew` is the share of the hot user."""

    skew: float = 0.2
    late: float = 0.02
    late_s_max: int = 300
    repeated: float = 0.01
    broken: float = 0.005
    users: int = 20_000
    events_per_visit: float = 20
    visit_s: float = 90.0
    events_per_s: float = 200.0


@dataclass
class Made:
    """The number of generated events of each type."""

    events: int = 0
    late: int = 0
    repeated: int = 0
    broken: int = 0

    @property
    def records(self) -> int:
        return self.events + self.repeated + self.broken


class Clickstream:
    """Generates key, value and timestamp of records in chunks. `made` counts them."""

    def __init__(self, seed: int, start_ms: int, mix: Mix) -> None:
        self._chance = random.Random(seed)
        self._seed, self._start_ms, self._mix = seed, start_ms, mix
        self._visits_per_s = mix.events_per_s / mix.events_per_visit
        self.made = Made()

    def chunks(self, count: int) -> Iterator[list[Record]]:
        """Yield `count` events, with additional duplicates and malformed events."""
        for first in range(0, count, CHUNK):
            yield self._chunk(first, min(CHUNK, count - first))

    def _chunk(self, first: int, count: int) -> list[Record]:
        chance, mix = self._chance, self._mix
        kinds, pages = chance.choices(KINDS, k=count), chance.choices(PAGES, k=count)
        ms_per_event = 1000 / mix.events_per_s
        made: list[Record] = []
        for index, kind, page in zip(range(count), kinds, pages, strict=True):
            number = first + index
            now_ms = self._start_ms + int(number * ms_per_event)
            user = b"user-%d" % self._user(number / mix.events_per_s)
            at_ms = now_ms if chance.random() >= mix.late else self._late(now_ms)
            words = (self._seed, number, user, kind.encode(), page.encode(), at_ms)
            value = b'{"event_id": "%d-%d", "user": "%b", "kind": "%b", "page": "%b", "at": "%d"}' % words
            made.append((user, value, now_ms))
            if chance.random() < mix.repeated:
                made.append(self._repetition(made, now_ms))
            if chance.random() < mix.broken:
                made.append(self._broken(now_ms))
        self.made.events += count
        return made

    def _user(self, now_s: float) -> int:
        """Return the hot user or a recent one; the more recent, the more likely."""
        if self._chance.random() < self._mix.skew:
            return 0
        came_s = now_s - self._chance.expovariate(1 / self._mix.visit_s)
        return 1 + int(came_s * self._visits_per_s) % (self._mix.users - 1)

    def _late(self, now_ms: int) -> int:
        self.made.late += 1
        return now_ms - self._chance.randrange(self._mix.late_s_max * 1000)

    def _repetition(self, made: list[Record], now_ms: int) -> Record:
        """Return a duplicate of a valid event: malformed ones have no key."""
        self.made.repeated += 1
        back = self._chance.randrange(min(len(made), REPEATED_AFTER_MAX))
        key, value, _ = next(each for each in made[len(made) - 1 - back :] if each[0] is not None)
        return key, value, now_ms

    def _broken(self, now_ms: int) -> Record:
        self.made.broken += 1
        return None, self._chance.choice(BROKEN), now_ms


def send(producer: Producer, topic: str, records: list[Record]) -> None:
    for key, value, time_ms in records:
        while True:
            try:
                producer.produce(topic, value, key, timestamp=time_ms)
                break
            except BufferError:
                producer.poll(0.1)
    producer.poll(0)


def fill(bootstrap_servers: str, topic: str, stream: Clickstream, count: int) -> None:
    """Produce all records; return when every record is acknowledged by all in-sync replicas."""
    failures: list[str] = []
    settings = {
        "bootstrap.servers": bootstrap_servers,
        "enable.idempotence": True,
        "linger.ms": 50,
        "compression.type": "lz4",
        "queue.buffering.max.messages": 500_000,
        "delivery.report.only.error": True,
        "on_delivery": lambda error, _: failures.append(str(error)),
    }
    producer = Producer(settings)
    try:
        producer.list_topics(timeout=CONNECT_S_MAX)
    except KafkaException as error:
        sys.exit(f"Cannot connect to {bootstrap_servers}: {error.args[0].str()}")
    for records in stream.chunks(count):
        send(producer, topic, records)
    left = producer.flush(300)
    if left or failures:
        sys.exit(f"{left + len(failures):,} records were not acknowledged: {failures[:1]}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a clickstream to a topic.")
    servers = os.environ.get("MOLDAU_BOOTSTRAP_SERVERS", "localhost:9092")
    parser.add_argument("--bootstrap-servers", default=servers, help="also from MOLDAU_BOOTSTRAP_SERVERS")
    parser.add_argument("--topic", default="clicks")
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--events-per-s", type=float, default=Mix.events_per_s, help="in the time of the events")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start-ms", type=int, help="the time of the first event; else the last is from now")
    parser.add_argument("--json", action="store_true", help="print what was made as JSON")
    arguments = parser.parse_args()
    # Recent timestamps: records older than a topic's retention may be deleted before they are read.
    start_ms = arguments.start_ms or int((time.time() - arguments.events / arguments.events_per_s) * 1000)
    stream = Clickstream(arguments.seed, start_ms, Mix(events_per_s=arguments.events_per_s))
    begun_s = time.monotonic()
    fill(arguments.bootstrap_servers, arguments.topic, stream, arguments.events)
    took_s = time.monotonic() - begun_s
    made = stream.made
    if arguments.json:
        totals = {"records": made.records, "seconds": round(took_s, 3), "seed": arguments.seed}
        print(json.dumps({**asdict(made), **totals}))
        return
    print(
        f"{made.events:,} events are in {arguments.topic}, {made.late:,} of them late; on top, {made.repeated:,} "
        f"repetitions and {made.broken:,} broken ones; {made.records / took_s:,.0f} records/s"
    )


if __name__ == "__main__":
    main()
