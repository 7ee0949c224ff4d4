"""A clickstream to feed the activity pipeline with: hot users, late events, repetitions and broken ones.

    python clickstream.py --topic clicks --events 100000 --bootstrap-servers localhost:9092
    moldau pipeline run activity --topic clicks --once

The same seed gives the same events, so that what comes out can be compared with what went in.
"""

import argparse
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

from confluent_kafka import Producer

KINDS = ("view", "view", "view", "view", "click", "click", "search", "cart", "purchase")
PAGES = ("/", "/search", "/product/1", "/product/2", "/product/3", "/basket", "/checkout")


@dataclass(frozen=True)
class Mix:
    """What part of the events is how. `skew` is the part of one single user."""

    skew: float = 0.2
    late: float = 0.02
    late_s_max: int = 300
    repeated: float = 0.01
    broken: float = 0.005
    users: int = 500
    events_per_s: float = 200.0


def events(count: int, seed: int, start_ms: int, mix: Mix) -> Iterator[tuple[str | None, str, int]]:
    """Key, value and time of `count` records. Repetitions and broken events are among them."""
    chance = random.Random(seed)
    last: tuple[str | None, str] | None = None
    for number in range(count):
        now_ms = start_ms + int(number * 1000 / mix.events_per_s)
        roll = chance.random()
        if roll < mix.broken:
            yield None, chance.choice(('{"event_id": ', '{"event_id": "x", "user": ""}', "no json", "")), now_ms
        elif roll < mix.broken + mix.repeated and last is not None:
            yield *last, now_ms
        else:
            last = _event(chance, seed, number, now_ms, mix)
            yield *last, now_ms


def _event(chance: random.Random, seed: int, number: int, now_ms: int, mix: Mix) -> tuple[str, str]:
    user = "user-0" if chance.random() < mix.skew else f"user-{chance.randrange(1, mix.users)}"
    late_ms = chance.randrange(mix.late_s_max * 1000) if chance.random() < mix.late else 0
    event = {
        "event_id": f"{seed}-{number}",
        "user": user,
        "kind": chance.choice(KINDS),
        "page": chance.choice(PAGES),
        "at": str(now_ms - late_ms),
    }
    return user, json.dumps(event)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a clickstream to a topic.")
    parser.add_argument("--bootstrap-servers", default="localhost:9092")
    parser.add_argument("--topic", default="clicks")
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start-ms", type=int, help="the time of the first event; else the last is from now")
    asked = parser.parse_args()
    mix = Mix()
    # Not long ago: what is older than a topic's retention may be deleted before anybody reads it.
    start_ms = asked.start_ms or int((time.time() - asked.events / mix.events_per_s) * 1000)
    producer = Producer({"bootstrap.servers": asked.bootstrap_servers, "linger.ms": 20, "enable.idempotence": True})
    for key, value, time_ms in events(asked.events, asked.seed, start_ms, mix):
        while True:
            try:
                producer.produce(asked.topic, value, key, timestamp=time_ms)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    left = producer.flush(60)
    print(f"{asked.events - left:,} events are in {asked.topic}")


if __name__ == "__main__":
    main()
