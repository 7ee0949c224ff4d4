"""Consumer groups: cost of heartbeats, time until a large group is stable, and a start with many offsets."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from moldau.cli.bench.bench import Bench
from moldau.cli.bench.cluster import bench_folder, own_broker
from moldau.cli.bench.generator import Generator
from moldau.cli.bench.open_loop import Pace
from moldau.cli.bench.requests import try_once
from moldau.cli.bench.rounds import Round, Subjects, Tell
from moldau.cli.bench.servers import MeasuredServer
from moldau.cli.bench.session import Plan, session
from moldau.cli.bench.streams import Address, Flow
from moldau.cli.errors import CommandError
from moldau.client.coordinators import GROUP_KEY, Coordinator
from moldau_dev.bench.membership import PROTOCOLS, Group, Seat, Settle
from moldau_dev.bench.offset_reload import Commit, Meanwhile, Reload, Reloaded

BEAT_NAME: Final = "heartbeat, {} protocol"
ECHO_NAME: Final = "echo of a heartbeat"
RELOAD_NAME: Final = "produce while offsets are loaded"
QUIET_NAME: Final = "produce after that"
TOPIC: Final = "moldau-bench-offsets"


@dataclass(frozen=True, slots=True)
class Size:
    """The size of the measurement."""

    beats_per_s: float = 5_000
    beat_seconds: float = 3.0
    connections: int = 100
    members: int = 200
    groups: int = 1_000
    partitions: int = 10
    commits: int = 5_000_000


@dataclass(frozen=True, slots=True)
class GroupsMeasured:
    """Return the rounds by name, with latencies in seconds."""

    rounds: dict[str, list[Round]]
    settled_s: dict[str, float]  # by protocol
    reloads: Sequence[Reloaded]
    size: Size


def measure_groups(plan: Plan, tell: Tell, size: Size) -> GroupsMeasured:
    """Measure our own brokers only: elsewhere the groups would keep the members until their sessions expire."""
    with session(plan, tell) as bench:
        client = bench.cluster.client
        client.run(Coordinator(client.asynchronous, "moldau-bench", GROUP_KEY).find())  # so there is one
        rounds = run_heartbeats(bench, size)
        settled_s = {protocol: run_settling(bench, protocol, size.members) for protocol in PROTOCOLS}
    reloads = run_reloads(plan, tell, size)
    rounds[RELOAD_NAME] = [_round_of(each.during_ms) for each in reloads]
    rounds[QUIET_NAME] = [_round_of(each.quiet_ms) for each in reloads]
    return GroupsMeasured(rounds, settled_s, reloads, size)


def _round_of(samples_ms: Sequence[float]) -> Round:
    return Round(len(samples_ms), sum(samples_ms) / 1000, samples_ms=samples_ms)


# Heartbeats


def run_heartbeats(bench: Bench, size: Size) -> dict[str, list[Round]]:
    """Compare with an echo of the same bytes, which is the cost of the operating system."""
    address = _address(bench)
    with ExitStack() as stack:
        topic = stack.enter_context(bench.cluster.topic(size.partitions))
        subjects: Subjects = {}
        frames: list[bytes] = []
        for protocol in PROTOCOLS:
            bench.tell(f"{size.connections} members, {protocol} protocol")
            groups = [
                Group(address, f"{topic.name}-{protocol}-{each:04d}", topic.name) for each in range(size.connections)
            ]
            frames = bench.generator.run(Seat(tuple(groups), protocol, size.partitions))
            flows = [Flow(address, [frame], _reply_bytes(address, frame)) for frame in frames]
            subjects = {
                **subjects,
                BEAT_NAME.format(protocol): partial(_beat, bench, bench.cluster.server, flows, size),
            }
        if bench.has_baselines:
            echo = stack.enter_context(bench.baseline("echo"))
            flows = [Flow(echo.address, [frame], len(frame)) for frame in frames]
            subjects = {**subjects, ECHO_NAME: partial(_beat, bench, echo, flows, size)}
        return bench.interleave(subjects)


def _beat(bench: Bench, server: MeasuredServer | None, flows: list[Flow], size: Size) -> Round:
    assert server is not None, "it is ours"
    before = server.cpu_s()
    samples_ms = bench.run(Pace(flows, size.beats_per_s, size.beat_seconds))
    return Round(len(samples_ms), size.beat_seconds, server_cpu_s=server.cpu_s() - before, samples_ms=samples_ms)


def _reply_bytes(address: Address, frame: bytes) -> int:
    found = try_once(address, frame)
    if found.response.error_code:
        raise CommandError(f"a heartbeat was rejected with error {found.response.error_code}")
    return found.reply_bytes


def _address(bench: Bench) -> Address:
    assert bench.cluster.server is not None, "it is ours"
    return bench.cluster.server.address


# Rebalance of a large group


def run_settling(bench: Bench, protocol: str, members: int) -> float:
    """Measure the seconds from the first request until the group is stable and all partitions are assigned."""
    bench.tell(f"{members} members come to a group, {protocol} protocol")
    with bench.cluster.topic(members) as topic:
        group = Group(_address(bench), f"{topic.name}-{protocol}", topic.name)
        return bench.generator.run(Settle(group, protocol, members))


# A start with many offsets


def run_reloads(plan: Plan, tell: Tell, size: Size) -> list[Reloaded]:
    """Fill a broker, then stop and restart it once per round."""
    with bench_folder(plan.folder) as folder, Generator() as generator:
        with own_broker(folder) as cluster:
            tell(f"{size.commits:,} commits of {size.groups} groups")
            cluster.client.create_topic(TOPIC, partitions=size.partitions, replication_factor=1)
            cluster.client.run(Coordinator(cluster.client.asynchronous, "moldau-bench", GROUP_KEY).find())
            assert cluster.server is not None, "it is ours"
            generator.run(Commit(cluster.server.address, TOPIC, size.partitions, size.groups, size.commits))
        with Generator() as other:
            return [_reload(number, folder, generator, other, plan, tell, size) for number in range(plan.rounds)]


def _reload(
    number: int, folder: Path, generator: Generator, other: Generator, plan: Plan, tell: Tell, size: Size
) -> Reloaded:
    tell(f"start {number + 1} of {plan.rounds}")
    begun, until = folder / f"begun-{number}", folder / f"loaded-{number}"
    with own_broker(folder) as cluster, ThreadPoolExecutor(1) as threads:
        assert cluster.server is not None, "it is ours"
        address = cluster.server.address
        produced = threads.submit(other.run, Meanwhile(address, TOPIC, begun, until))
        try:
            began_s, ended_s = generator.run(Reload(address, range(size.groups), size.partitions, begun))
        finally:
            until.touch()
        acks = produced.result()
    begun.unlink()
    until.unlink()
    return Reloaded(
        ended_s - began_s,
        [elapsed_ms for at_s, elapsed_ms in acks if began_s < at_s <= ended_s],
        [elapsed_ms for at_s, elapsed_ms in acks if at_s > ended_s],
    )
