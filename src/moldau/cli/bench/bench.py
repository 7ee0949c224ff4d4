"""The context that all benchmarks share: cluster, load generator, baselines."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from moldau.cli.bench import servers
from moldau.cli.bench.closed_loop import Pump
from moldau.cli.bench.cluster import Cluster
from moldau.cli.bench.generator import Generator, Job
from moldau.cli.bench.rounds import Round, Subjects, Tell, interleave
from moldau.cli.bench.streams import Flow

SCRIPTS: Final = Path(__file__).parents[4] / "bench"  # in a source tree; an installed package does not have them


@dataclass(frozen=True, slots=True)
class Bench:
    """A cluster, a load generator, and the number of connections and rounds."""

    cluster: Cluster
    generator: Generator
    folder: Path
    connections: int
    rounds: int
    tell: Tell

    @property
    def has_baselines(self) -> bool:
        """Whether baselines run: only with an embedded broker, because they run on this machine too."""
        return self.cluster.server is not None and SCRIPTS.is_dir()

    def baseline(self, script: str, **options: object) -> AbstractContextManager[servers.Server]:
        return servers.baseline(script, self.folder, SCRIPTS, **options)

    def interleave(self, subjects: Subjects) -> dict[str, list[Round]]:
        return interleave(subjects, self.rounds, self.tell)

    def pump(self, server: servers.MeasuredServer | None, flows: list[Flow], load: "Load") -> Round:
        """Load the server in a closed loop and measure its CPU time."""
        pump = Pump(flows, load.in_flight, load.requests_max(flows[0]), load.seconds_max)
        before = server.cpu_s() if server else None
        pumped = self.generator.run(pump)
        spent = server.cpu_s() - before if server and before is not None else None
        return Round(pumped.requests, pumped.elapsed_s, server_cpu_s=spent)

    def run(self, job: Job[list[float]]) -> list[float]:
        return self.generator.run(job)


@dataclass(frozen=True, slots=True)
class Load:
    """Requests in flight, and the bounds of a round: it ends when either is reached."""

    in_flight: int
    bytes_max: int
    seconds_max: float

    def requests_max(self, flow: Flow) -> int:
        return max(self.bytes_max // max(flow.frame_bytes, flow.reply_bytes), 1)
