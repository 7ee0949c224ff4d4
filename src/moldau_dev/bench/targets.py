"""Targets beyond those of `moldau bench`: replication, compaction, transactions, groups, memory."""

from typing import Final

from moldau.cli.bench import latency
from moldau.cli.bench.statistics import Spread, ratios, spread
from moldau.cli.bench.targets import MB, TARGETS, Measured, Target, Verdict, cpu_us, judge, p99_ratio, throughput_ratio
from moldau_dev.bench import compaction, groups, membership, replication_load, transactions
from moldau_dev.bench.footprint import Footprint


def _cpu_per_byte(measured: Measured, name: str) -> list[float]:
    return [each.cpu_us * each.requests / each.bytes for each in measured[name]]


def replicated_verdicts(measured: Measured) -> list[Verdict]:
    """Judge the targets of a cluster with three replicas."""
    return judge(REPLICATED, measured)


REPLICATED: Final = (
    Target(
        "produce of 64 KiB batches to 3 replicas, of a plain receive-write-and-forward pipeline",
        0.6,
        True,
        "x",
        (replication_load.THREE.name, replication_load.THREE.plain_name),
        throughput_ratio(replication_load.THREE.name, replication_load.THREE.plain_name),
    ),
    Target(
        "CPU for a byte on 3 replicas, of one on 1",
        3.5,
        False,
        "x",
        (replication_load.THREE.name, replication_load.ONE.name),
        lambda measured: ratios(
            _cpu_per_byte(measured, replication_load.THREE.name), _cpu_per_byte(measured, replication_load.ONE.name)
        ),
    ),
    Target(
        "p99 of an ack of 3 replicas at 20 MB/s, of an echo of the same size",
        5.0,
        False,
        "x",
        (latency.NAME, latency.ECHO_NAME),
        p99_ratio(latency.NAME, latency.ECHO_NAME),
    ),
)

WITH_COMPACTION: Final = (
    *TARGETS,
    Target(
        "p99 of an ack while a log is compacted, of without",
        2.0,
        False,
        "x",
        (compaction.WHILE_NAME, compaction.WITHOUT_NAME),
        p99_ratio(compaction.WHILE_NAME, compaction.WITHOUT_NAME),
    ),
)


def verdicts(measured: Measured) -> list[Verdict]:
    """Judge the targets whose figures were measured, compaction included."""
    return judge(WITH_COMPACTION, measured)


def _cpu_of(name: str) -> Target:
    return Target(f"CPU of a {name}", 1_000.0, False, "us", (name,), lambda measured: spread(cpu_us(measured, name)))


TRANSACTIONS: Final = (
    *map(_cpu_of, transactions.VERSIONS.values()),
    Target(
        "fetch of committed transactions, of all",
        0.9,
        True,
        "x",
        (transactions.COMMITTED_NAME, transactions.UNCOMMITTED_NAME),
        throughput_ratio(transactions.COMMITTED_NAME, transactions.UNCOMMITTED_NAME),
    ),
)


def transaction_verdicts(found: transactions.TransactionsMeasured) -> list[Verdict]:
    """Judge the targets of transactions; the measurement fails if fewer are open than planned."""
    judged = judge(TRANSACTIONS, found.rounds)
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
        p99_ratio(groups.RELOAD_NAME, groups.QUIET_NAME),
    ),
)


def group_verdicts(found: groups.GroupsMeasured) -> list[Verdict]:
    size = found.size
    loaded = spread([each.seconds for each in found.reloads])
    judged = judge(GROUPS, found.rounds)
    judged.append(Verdict(f"{size.commits:,} commits of {size.groups:,} groups are loaded", 3.0, False, "s", loaded))
    for protocol, seconds in found.settled_s.items():
        text = f"{size.members} members join until all is stable, {protocol} protocol"
        judged.append(Verdict(text, 5.0, False, "s", Spread(seconds, seconds, seconds)))
    return judged


def footprint_verdicts(found: Footprint) -> list[Verdict]:
    def one(text: str, limit: float, unit: str, value: float) -> Verdict:
        return Verdict(text, limit, False, unit, Spread(value, value, value))

    return [
        one("memory of an idle broker", 80, "MB", found.idle_bytes / MB),
        one(f"memory for {found.connections} idle connections", 60, "MB", found.connections_bytes / MB),
        one(f"start with {found.partitions} partitions", 3, "s", found.partitions_start_s),
        one(f"memory with {found.partitions} partitions", 200, "MB", found.partitions_bytes / MB),
    ]
