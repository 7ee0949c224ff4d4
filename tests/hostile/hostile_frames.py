"""Hostile frames: requests of every API and version with deep-reaching values, and corrupt ones."""

import random
import struct
from collections.abc import Iterator
from typing import Any

from wire_mutants import Mutator
from wire_samples import Samples, every_api_message

from moldau.broker.handlers.table import served_apis
from moldau.records.builder import build_batch
from moldau.records.compression import Compression
from moldau.records.header import write_checksum
from moldau.wire.framing import RequestHeader, frame_request
from moldau.wire.primitives import uvarint

WORDS = (
    *("orders", "table", "logged", "", "x" * 249, "x" * 32_760, "..", "a b", "žluťoučký kůň", "0", "1", "-1", "\n"),
    *("retention.ms", "cleanup.policy", "compression.type", "segment.bytes", "zstd", "compact,delete", "9" * 40),
)
NOISE_EVERY = 7
SERVED_MORE_OFTEN = 4


class ReachingSamples(Samples):
    """Samples whose names, ids and records often exist on the broker."""

    def __init__(self, seed: int, topic_ids: tuple[bytes, ...] = ()) -> None:
        super().__init__(seed)
        self._topic_ids = topic_ids
        self._mutator = Mutator(seed + 1)

    def _primitive(self, kind: str) -> Any:
        if kind == "string":
            return self.random.choice(WORDS)
        if kind == "uuid" and self._topic_ids and self.random.random() < 0.7:
            return self.random.choice(self._topic_ids)
        if kind == "records":
            return self._records()
        if kind in ("int8", "int16", "int32", "int64") and self.random.random() < 0.6:
            return self.random.choice((0, 1, 2, 3, -1, -2, -3))
        return super()._primitive(kind)

    def _records(self) -> bytes:
        """Return a valid batch, one with only a valid checksum, or random bytes."""
        codec = Compression(self.random.randrange(5))
        count = self.random.choice((1, 2, 30))
        producer: dict[str, Any] = {"producer_id": self.random.randrange(5), "producer_epoch": 0, "base_sequence": 0}
        records = [(1_700_000_000_000, b"key", b"value" * 10, ()) for _ in range(count)]
        batch = build_batch(records, compression=codec, **(producer if self.random.random() < 0.5 else {}))
        if self.random.random() < 0.5:
            place = self.random.randrange(16, len(batch))
            batch[place] = self.random.randrange(256)
            write_checksum(batch, 0, len(batch))
        return bytes(batch) if self.random.random() < 0.8 else self._mutator.mutant(bytes(batch))


def framed(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


class HostileFrames:
    """An endless stream of frames, deterministic for a seed."""

    def __init__(self, seed: int, topic_ids: tuple[bytes, ...] = ()) -> None:
        self._random = random.Random(seed)
        self._samples = ReachingSamples(seed, topic_ids)
        self._mutator = Mutator(seed + 2)
        requests = [each for each in every_api_message() if each[0].endswith("Request")]
        served = {f"{api.name}Request" for api in served_apis()}
        # Served APIs come more often than those that are rejected by their key alone.
        self._kinds = requests + SERVED_MORE_OFTEN * [each for each in requests if each[0] in served]

    def __iter__(self) -> Iterator[bytes]:
        while True:
            self._random.shuffle(self._kinds)
            for name, version in self._kinds:
                yield self._frame(name, version)

    def _frame(self, name: str, version: int) -> bytes:
        draw = self._random.random()
        if draw < 1 / NOISE_EVERY:
            return self._noise()
        whole = self._request(name, version)
        if draw < 0.45:
            return whole  # well formed, with absurd values
        if draw < 0.9:
            return framed(self._mutator.mutant(whole[4:]))
        if draw < 0.95:
            return self._mutator.mutant(whole)  # its length may be wrong
        return self._flooded(whole)

    def _request(self, name: str, version: int) -> bytes:
        message = self._samples.message(name, version)
        client_id = self._random.choice((None, "", "client", "c" * 32_000))
        header = RequestHeader(message.API_KEY, version, self._random.randrange(-(2**31), 2**31), client_id)
        return b"".join(bytes(piece) for piece in frame_request(header, message))  # type: ignore[arg-type]

    def _flooded(self, whole: bytes) -> bytes:
        """Add endless tags in place of the request's own."""
        count = self._random.choice((100, 1024, 1025, 100_000))
        return framed(whole[4:-1] + uvarint(count) + b"\x4d\0" * count)

    def _noise(self) -> bytes:
        size = self._random.choice((0, 1, 4, 8, 100, 10_000))
        noise = self._random.randbytes(size)
        return noise if self._random.random() < 0.5 else framed(noise)
