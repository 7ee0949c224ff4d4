"""How many records a core decodes into Arrow columns: python bench/decode_records.py [seconds]

Keys of 10 bytes and values of around 100 (or 1,024) random bytes, in memory, checksums included. CPU time of this
process counts, not the clock, so that a busy machine does not change the figures much.
"""

import random
import sys
import time

from moldau.records.builder import build_batch
from moldau.records.compression import Compression
from pyspark_moldau.codec.decoder import DecodeRange, decode

CASES = {
    "100 B, 1000 a batch": (100, 1_000, Compression.NONE, False),
    "100 B, 1000 a batch, lz4": (100, 1_000, Compression.LZ4, False),
    "100 B, 1000 a batch, zstd": (100, 1_000, Compression.ZSTD, False),
    "100 B, 1000 a batch, one header": (100, 1_000, Compression.NONE, True),
    "100 B, 100 a batch": (100, 100, Compression.NONE, False),
    "100 B, 10 a batch": (100, 10, Compression.NONE, False),
    "1 KiB, 100 a batch": (1_024, 100, Compression.NONE, False),
}
RECORDS = 20_000


def content(size: int, per_batch: int, codec: Compression, has_header: bool) -> bytes:
    chance = random.Random(1)
    headers = (("trace", b"0123456789"),) if has_header else ()
    out = bytearray()
    for base in range(0, RECORDS, per_batch):
        records = [
            (
                1_700_000_000_000 + index // 3,
                b"key-%06d" % index,
                chance.randbytes(chance.randint(size // 2, size * 3 // 2)),
                headers,
            )
            for index in range(base, base + per_batch)
        ]
        out += build_batch(records, base_offset=base, compression=codec)
    return bytes(out)


def measure(seconds: float) -> None:
    for name, case in CASES.items():
        fetched = content(*case)
        place = DecodeRange("topic", 0, 0, RECORDS, case[3])
        list(decode(fetched, place))  # what is loaded only once is not counted
        rounds, began = 0, time.process_time()
        while (spent := time.process_time() - began) < seconds:
            assert sum(rows.num_rows for rows in decode(fetched, place)) == RECORDS
            rounds += 1
        rate = RECORDS * rounds / spent
        print(f"{name:32} {rate / 1e6:6.2f} M records/s  {len(fetched) * rounds / spent / 1e6:6.0f} MB/s")


if __name__ == "__main__":
    measure(float(sys.argv[1]) if len(sys.argv) > 1 else 2.0)
