"""What must be reached, each by name with its limit, and what was."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from moldau.cli.bench import cases, compaction, fetching, groups, latency, membership, replicating, transactions
from moldau.cli.bench.footprint import Footprint
from moldau.cli.bench.producing import ProduceCase
from moldau.cli.bench.rounds import Round
from moldau.cli.bench.statistics import Spread, latencies, ratios, spread

Measured = Mapping[str, Sequence[Round]]
MB: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Target:
    """A limit on one figure: the median of the rounds must keep it."""

    text: str
    limit: float
    is_least: bool  # whether the limit is the least allowed, or the most
    unit: str
    needs: tuple[str, ...]
    figure: Callable[[Measured], Spread]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target beside what was measured."""

    text: str
    limit: float
    is_least: bool
    unit: str
    reached: Spread

    @property
    def is_met(self) -> bool:
        return self.reached.median >= self.limit if self.is_least else self.reached.median <= self.limit

    def as_json(self) -> dict[str, Any]:
        return {
            "target": self.text,
            "limit": self.limit,
            "limit_is": "at least" if self.is_least else "at most",
            "unit": self.unit,
            **self.reached.as_json(),
            "is_met": self.is_met,
        }


def _throughput(ours: str, plain: str) -> Callable[[Measured], Spread]:
    return lambda measured: ratios(
        [each.bytes_per_s for each in measured[ours]], [each.bytes_per_s for each in measured[plain]]
    )


def _p99(ours: str, plain: str) -> Callable[[Measured], Spread]:
    return lambda measured: ratios(p99s_ms(measured[ours]), p99s_ms(measured[plain]))


def p99s_ms(rounds: Sequence[Round]) -> list[float]:
    return [latencies(each.samples_ms).p99_ms for each in rounds]


def _cpu_us(measured: Measured, name: str) -> list[float]:
    return [each.cpu_us for each in measured[name]]


def _of_plain(case: ProduceCase, limit: float, size: str) -> Target:
    return Target(
        f"produce of {size} batches, of a plain receive-and-write loop",
        limit,
        True,
        "x",
        (case.name, case.plain_name),
        _throughput(case.name, case.plain_name),
    )


def _cpu_per_byte(measured: Measured, name: str) -> list[float]:
    return [each.cpu_us * each.requests / each.bytes for each in measured[name]]


def replicated_verdicts(measured: Measured) -> list[Verdict]:
    """Of a cluster with three replicas."""
    return _judged(REPLICATED, measured)


REPLICATED: Final = (
    Target(
        "produce of 64 KiB batches to 3 replicas, of a plain receive-write-and-forward pipeline",
        0.6,
        True,
        "x",
        (replicating.THREE.name, replicating.THREE.plain_name),
        _throughput(replicating.THREE.name, replicating.THREE.plain_name),
    ),
    Target(
        "CPU for a byte on 3 replicas, of one on 1",
        3.5,
        False,
        "x",
        (replicating.THREE.name, replicating.ONE.name),
        lambda measured: ratios(
            _cpu_per_byte(measured, replicating.THREE.name), _cpu_per_byte(measured, replicating.ONE.name)
        ),
    ),
    Target(
        "p99 of an ack of 3 replicas at 20 MB/s, of an echo of the same size",
        5.0,
        False,
        "x",
        (latency.NAME, latency.ECHO_NAME),
        _p99(latency.NAME, latency.ECHO_NAME),
    ),
)

TARGETS: Final = (
    _of_plain(cases.PRODUCE_64K, 0.7, "64 KiB"),
    _of_plain(cases.PRODUCE_16K, 0.35, "16 KiB"),
    Target(
        "fetch of 1 MiB, of plain sendfile",
        0.7,
        True,
        "x",
        (fetching.NAME, fetching.PLAIN_NAME),
        _throughput(fetching.NAME, fetching.PLAIN_NAME),
    ),
    Target(
        "CPU of a one-record produce request",
        25.0,
        False,
        "us",
        (cases.PRODUCE_ONE.name,),
        lambda measured: spread(_cpu_us(measured, cases.PRODUCE_ONE.name)),
    ),
    Target(
        "p99 of an ack at 20 MB/s, of an echo of the same size",
        3.0,
        False,
        "x",
        (latency.NAME, latency.ECHO_NAME),
        _p99(latency.NAME, latency.ECHO_NAME),
    ),
    Target(
        "records of 100 B produced a second, in raw batches",
        5.0,
        True,
        "M/s",
        (cases.PRODUCE_64K.name,),
        lambda measured: spread([each.records_per_s / 1e6 for each in measured[cases.PRODUCE_64K.name]]),
    ),
    Target(
        "CPU of a 64 KiB batch of 600 records, of one of 10",
        1.1,
        False,
        "x",
        (cases.PRODUCE_64K.name, cases.PRODUCE_64K_LARGE_RECORDS.name),
        lambda measured: ratios(
            _cpu_us(measured, cases.PRODUCE_64K.name), _cpu_us(measured, cases.PRODUCE_64K_LARGE_RECORDS.name)
        ),
    ),
    Target(
        "p99 of an ack while a log is compacted, of without",
        2.0,
        False,
        "x",
        (compaction.WHILE_NAME, compaction.WITHOUT_NAME),
        _p99(compaction.WHILE_NAME, compaction.WITHOUT_NAME),
    ),
)


def _cpu_of(name: str) -> Target:
    return Target(f"CPU of a {name}", 1_000.0, False, "us", (name,), lambda measured: spread(_cpu_us(measured, name)))


TRANSACTIONS: Final = (
    *map(_cpu_of, transactions.VERSIONS.values()),
    Target(
        "fetch of committed transactions, of all",
        0.9,
        True,
        "x",
        (transactions.COMMITTED_NAME, transactions.UNCOMMITTED_NAME),
        _throughput(transactions.COMMITTED_NAME, transactions.UNCOMMITTED_NAME),
    ),
)


def transaction_verdicts(found: transactions.TransactionsMeasured) -> list[Verdict]:
    """That so many could be open is in the figure: fewer would have been an error."""
    judged = _judged(TRANSACTIONS, found.rounds)
    if found.memory_bytes is not None:
        memory = found.memory_bytes / MB
        text = f"memory for {found.producers} transactional producers, each with a transaction open"
        judged.append(Verdict(text, 60, False, "MB", Spread(memory, memory, memory)))
    return judged


def _share_of_core(name: str) -> Target:
    def figure(measured: Measured) -> Spread:
        return spread([(each.server_cpu_s or 0.0) / each.elapsed_s for each in measured[name]])

    return Target(f"{name}: 5,000/s", 0.2, False, "cores", (name,), figure)


GROUPS: Final = (
    *(_share_of_core(groups.BEAT_NAME.format(each)) for each in membership.PROTOCOLS),
    Target(
        "p99 of an ack while offsets are loaded, of afterwards",
        2.0,
        False,
        "x",
        (groups.RELOAD_NAME, groups.QUIET_NAME),
        _p99(groups.RELOAD_NAME, groups.QUIET_NAME),
    ),
)


def group_verdicts(found: groups.GroupsMeasured) -> list[Verdict]:
    size = found.size
    loaded = spread([each.seconds for each in found.reloads])
    judged = _judged(GROUPS, found.rounds)
    judged.append(Verdict(f"{size.commits:,} commits of {size.groups:,} groups are loaded", 3.0, False, "s", loaded))
    for protocol, seconds in found.settled_s.items():
        text = f"{size.members} members join until all is stable, {protocol} protocol"
        judged.append(Verdict(text, 5.0, False, "s", Spread(seconds, seconds, seconds)))
    return judged


def verdicts(measured: Measured) -> list[Verdict]:
    """Of the targets whose figures were measured here."""
    return _judged(TARGETS, measured)


def _judged(targets: Sequence[Target], measured: Measured) -> list[Verdict]:
    return [
        Verdict(each.text, each.limit, each.is_least, each.unit, each.figure(measured))
        for each in targets
        if all(measured.get(name) and _is_complete(measured[name]) for name in each.needs)
    ]


def _is_complete(rounds: Sequence[Round]) -> bool:
    """Without a broker of our own there is no CPU to tell of."""
    return all(each.server_cpu_s is not None or each.samples_ms for each in rounds)


def footprint_verdicts(found: Footprint) -> list[Verdict]:
    def one(text: str, limit: float, unit: str, value: float) -> Verdict:
        return Verdict(text, limit, False, unit, Spread(value, value, value))

    return [
        one("memory of an idle broker", 80, "MB", found.idle_bytes / MB),
        one(f"memory for {found.connections} idle connections", 60, "MB", found.connections_bytes / MB),
        one(f"start with {found.partitions} partitions", 3, "s", found.partitions_start_s),
        one(f"memory with {found.partitions} partitions", 200, "MB", found.partitions_bytes / MB),
    ]
