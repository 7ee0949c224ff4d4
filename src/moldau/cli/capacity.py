"""Capacity of a cluster for a target load: partitions, brokers, disk and network, each with its formula.

Sizes are decimal: 1 MB is a million bytes, as in the data sheets of disks and networks.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

DAY_S: Final = 86_400
UNITS: Final = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15}
PERIODS: Final = {"s": 1, "min": 60, "h": 3_600, "day": DAY_S}
LOAD: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGTP]?B)?\s*/\s*(s|min|h|day)", re.IGNORECASE)
SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGTP]?B)?", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """The load of a cluster, and what one partition and one broker can take."""

    bytes_per_s: float
    message_bytes: float
    peak_factor: float = 3.0
    retention_s: float = 7.0 * DAY_S
    replicas: int = 3
    groups: int = 1
    consumers: int = 1  # of the largest group
    compression: float = 1.0  # of stored and sent bytes: 4 for a quarter
    partition_bytes_per_s: float = 25e6
    broker_disk_bytes: float = 8e12
    broker_network_bytes_per_s: float = 1.25e9
    broker_partitions: int = 4_000
    free_share: float = 0.2  # of the disks, for moves and for growth


class Figure(NamedTuple):
    """One result: its name, value and unit, and how it was computed."""

    name: str
    value: float
    unit: str
    formula: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The resources that a target needs."""

    target: Target

    @property
    def sent_bytes_per_s(self) -> float:
        """Bytes per second that producers send after compression, on average."""
        return self.target.bytes_per_s / self.target.compression

    @property
    def peak_bytes_per_s(self) -> float:
        return self.sent_bytes_per_s * self.target.peak_factor

    @property
    def messages_per_s(self) -> float:
        return self.target.bytes_per_s / self.target.message_bytes

    @property
    def partitions(self) -> int:
        needed = math.ceil(round(self.peak_bytes_per_s / self.target.partition_bytes_per_s, 9))
        return max(needed, self.target.consumers, 1)

    @property
    def stored_bytes(self) -> float:
        return self.sent_bytes_per_s * self.target.retention_s * self.target.replicas

    @property
    def disk_bytes(self) -> float:
        return self.stored_bytes / (1 - self.target.free_share)

    @property
    def in_bytes_per_s(self) -> float:
        """Bytes per second that brokers receive at the peak, from producers and from leaders."""
        return self.peak_bytes_per_s * self.target.replicas

    @property
    def out_bytes_per_s(self) -> float:
        """Bytes per second that brokers send at the peak, to groups and to followers."""
        return self.peak_bytes_per_s * (self.target.groups + self.target.replicas - 1)

    @property
    def broker_limits(self) -> dict[str, int]:
        """The brokers that each resource needs."""
        target = self.target
        network = max(self.in_bytes_per_s, self.out_bytes_per_s) / target.broker_network_bytes_per_s
        return {
            "replicas": target.replicas,
            "disk": math.ceil(self.disk_bytes / target.broker_disk_bytes),
            "network": math.ceil(network),
            "partitions": math.ceil(self.partitions * target.replicas / target.broker_partitions),
        }

    @property
    def working_brokers(self) -> int:
        return max(self.broker_limits.values())

    @property
    def brokers(self) -> int:
        """With one more than the load needs, so that one may be down; a single replica cannot use it."""
        return self.working_brokers + (1 if self.target.replicas > 1 else 0)

    def figures(self) -> Iterator[Figure]:
        """Yield all results, those that others need first."""
        target = self.target
        sent, peak = _mb(self.sent_bytes_per_s), _mb(self.peak_bytes_per_s)
        yield Figure(
            "messages", self.messages_per_s, "/s", f"{_mb(target.bytes_per_s)} MB/s ÷ {target.message_bytes:g} B"
        )
        peak_messages = self.messages_per_s * target.peak_factor
        yield Figure(
            "messages at the peak", peak_messages, "/s", f"{self.messages_per_s:,.0f}/s x {target.peak_factor:g}"
        )
        yield Figure(
            "writes",
            self.sent_bytes_per_s,
            "B/s",
            f"{_mb(target.bytes_per_s)} MB/s ÷ compression {target.compression:g}",
        )
        yield Figure("writes at the peak", self.peak_bytes_per_s, "B/s", f"{sent} MB/s x {target.peak_factor:g}")
        replicated = self.sent_bytes_per_s * target.replicas
        yield Figure("network in", replicated, "B/s", f"{sent} MB/s x {target.replicas} replicas")
        yield Figure("network in at the peak", self.in_bytes_per_s, "B/s", f"{peak} MB/s x {target.replicas} replicas")
        read = self.sent_bytes_per_s * target.groups
        yield Figure("reads", read, "B/s", f"{sent} MB/s x {target.groups} groups")
        followers = f"({target.groups} groups + {target.replicas - 1} followers)"
        yield Figure("network out at the peak", self.out_bytes_per_s, "B/s", f"{peak} MB/s x {followers}")
        days = target.retention_s / DAY_S
        raw = self.sent_bytes_per_s * target.retention_s
        yield Figure("data", raw, "B", f"{sent} MB/s x {days:g} days")
        yield Figure("data of all replicas", self.stored_bytes, "B", f"{_tb(raw)} TB x {target.replicas} replicas")
        yield Figure(
            "disks", self.disk_bytes, "B", f"{_tb(self.stored_bytes)} TB ÷ {1 - target.free_share:g}, the share in use"
        )
        one = _mb(target.partition_bytes_per_s)
        partitions = f"max({peak} MB/s ÷ {one} MB/s of a partition, {target.consumers} consumers of a group)"
        yield Figure("partitions", self.partitions, "", partitions)
        limits = ", ".join(f"{count} for {name}" for name, count in self.broker_limits.items())
        spare = " + 1 that may be down" if self.brokers > self.working_brokers else ""
        yield Figure("brokers", self.brokers, "", f"max({limits}){spare}")
        yield Figure(
            "disk of a broker",
            self.disk_bytes / self.brokers,
            "B",
            f"{_tb(self.disk_bytes)} TB ÷ {self.brokers} brokers",
        )
        replicas = self.partitions * target.replicas / self.brokers
        yield Figure(
            "replicas on a broker",
            math.ceil(replicas),
            "",
            f"{self.partitions} x {target.replicas} ÷ {self.brokers} brokers",
        )


def parse_load(text: str, message_bytes: float) -> float:
    """Return bytes per second of `10TB/day`, `115MB/s` or, in messages, `350000/s`; ValueError for anything else."""
    found = LOAD.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text[:40]} is not a load; write 10TB/day, 115MB/s, or messages as 350000/s")
    number, unit, period = float(found[1]), found[2], PERIODS[found[3].lower()]
    return number * (UNITS[unit.upper()] if unit else message_bytes) / period


def parse_size(text: str) -> float:
    """Return bytes of `25MB`; ValueError for anything else."""
    found = SIZE.fullmatch(text.strip())
    if found is None or float(found[1]) <= 0:
        raise ValueError(f"{text[:40]} is not a size; write 1KB, 25MB, 8TB")
    return float(found[1]) * UNITS[(found[2] or "").upper()]


def shown(figure: Figure) -> str:
    """Return a value with its unit, such as `345 MB/s`."""
    if not figure.unit.startswith("B"):
        return f"{figure.value:,.0f}{figure.unit}"
    value, index, names = figure.value, 0, list(UNITS)[1:]
    while value >= 1000 and index < len(names) - 1:
        value, index = value / 1000, index + 1
    return f"{value:,.4g} {names[index]}{figure.unit[1:]}"


def _mb(value: float) -> str:
    return f"{value / 1e6:,.5g}"


def _tb(value: float) -> str:
    return f"{value / 1e12:,.5g}"
