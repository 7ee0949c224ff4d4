"""A benchmark session: sets up and removes folder, cluster and load generator."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from moldau.cli.bench import stalls
from moldau.cli.bench.bench import Bench
from moldau.cli.bench.cluster import any_cluster, bench_folder, own_broker
from moldau.cli.bench.generator import Generator
from moldau.cli.bench.rounds import Tell


@dataclass(frozen=True, slots=True)
class Plan:
    """Options of a session; without bootstrap servers, an embedded broker is measured."""

    bootstrap_servers: str | None
    folder: Path | None
    rounds: int
    connections: int

    @property
    def is_own(self) -> bool:
        return self.bootstrap_servers is None


@contextmanager
def session(plan: Plan, tell: Tell, settings: Mapping[str, str] | None = None) -> Iterator[Bench]:
    with ExitStack() as stack:
        folder = stack.enter_context(bench_folder(plan.folder))
        tell("starting")
        if plan.bootstrap_servers is None:
            cluster = stack.enter_context(own_broker(folder, settings))
        else:
            cluster = stack.enter_context(any_cluster(plan.bootstrap_servers))
        generator = stack.enter_context(Generator())
        yield Bench(cluster, generator, folder, plan.connections, plan.rounds, tell)


def stall_p99_ms(bench: Bench, before: stalls.Buckets) -> float | None:
    """Return the 99th percentile of the broker's event loop stalls since `before`."""
    found = stalls.quantile_s(stalls.since(before, bench.cluster.stall_buckets()), 0.99)
    return None if found is None else found * 1000
