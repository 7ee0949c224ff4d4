"""The standard loads. Results are comparable over time only while these stay unchanged."""

from dataclasses import replace
from typing import Final

from moldau.cli.bench.bench import Load
from moldau.cli.bench.latency import LatencyCase
from moldau.cli.bench.produce_load import ProduceCase
from moldau.cli.bench.requests import Shape
from moldau.model.units import GiB, MiB

# Five in flight is the default of Kafka's producer. Bytes per round are limited: see `pages`.
_BATCHES: Final = Load(in_flight=5, bytes_max=256 * MiB, seconds_max=2.0)
_SINGLE: Final = Load(in_flight=5, bytes_max=64 * MiB, seconds_max=1.0)
FETCHES: Final = Load(in_flight=2, bytes_max=2 * GiB, seconds_max=1.0)

PRODUCE_64K: Final = ProduceCase("produce 64 KiB, 600 records", Shape(600, 100), _BATCHES)
PRODUCE_64K_LARGE_RECORDS: Final = ProduceCase("produce 64 KiB, 10 records", Shape(10, 6585), _BATCHES)
PRODUCE_16K: Final = ProduceCase("produce 16 KiB, 149 records", Shape(149, 100), _BATCHES)
PRODUCE_ONE: Final = ProduceCase("produce one record", Shape(1, 100), _SINGLE)
PRODUCE_CASES: Final = (PRODUCE_64K, PRODUCE_64K_LARGE_RECORDS, PRODUCE_16K, PRODUCE_ONE)

ACKNOWLEDGE_20_MB: Final = LatencyCase(Shape(149, 100), bytes_per_s=20e6, seconds=4.0)
END_TO_END: Final = LatencyCase(Shape(149, 100), bytes_per_s=5e6, seconds=2.0)
COMPACTED_BYTES: Final = 1 * GiB


def produce_case(records: int, value_bytes: int) -> ProduceCase:
    """Build a produce case from options of the command line."""
    return ProduceCase(f"produce {records} x {value_bytes} B", Shape(records, value_bytes), _BATCHES)


def with_in_flight(case: ProduceCase, in_flight: int) -> ProduceCase:
    return replace(case, load=replace(case.load, in_flight=in_flight))
