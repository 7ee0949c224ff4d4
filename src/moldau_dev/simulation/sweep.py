"""Run many seeds: `python -m moldau_dev.simulation.sweep --seeds 0-99 [--world cluster] [--faults power]`.

For a failing seed it prints the failure and the command that replays it.
"""

import argparse
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Final

from moldau_dev.simulation import one_broker
from moldau_dev.simulation.cluster import cluster_world, transaction_world
from moldau_dev.simulation.simulation import Inconclusive, Outcome, Script, Simulation, replay

PROFILES: Final[dict[str, type[Enum]]] = {
    "one": one_broker.FaultProfile,
    "cluster": cluster_world.FaultProfile,
    "transactions": cluster_world.FaultProfile,
}


@dataclass(slots=True)
class SeedResult:
    """The result of one seed."""

    seed: int
    outcome: Outcome | None = None
    inconclusive: str = ""  # the reason
    failure: str = ""  # the traceback
    cpu_s: float = 0.0


@dataclass(slots=True)
class Summary:
    """The totals of all seeds."""

    runs: int = 0
    failed: int = 0
    inconclusive: int = 0
    events: int = 0
    virtual_s: float = 0.0
    cpu_s: float = 0.0
    tally: Counter[str] = field(default_factory=Counter)
    fired: Counter[str] = field(default_factory=Counter)

    def add(self, result: SeedResult) -> None:
        self.runs += 1
        self.cpu_s += result.cpu_s
        self.failed += bool(result.failure)
        self.inconclusive += bool(result.inconclusive)
        if result.outcome is not None:
            self.events += result.outcome.events
            self.virtual_s += result.outcome.virtual_s
            self.tally.update(result.outcome.tally)
            self.fired.update(result.outcome.faults)

    def lines(self) -> Iterator[str]:
        passed = self.runs - self.failed - self.inconclusive
        hours = f"{self.virtual_s / 3600:.2f} virtual hours in {self.cpu_s / 3600:.3f} core-hours"
        yield f"{self.failed} failed, {self.inconclusive} inconclusive, {passed} passed; {hours}"
        yield f"events: {self.events}; {dict(sorted(self.tally.items()))}"
        yield f"faults: {dict(sorted(self.fired.items()))}"


def main(arguments: list[str] | None = None) -> int:
    """Return 1 if a seed failed, else 0; inconclusive seeds do not count as failed."""
    options = _parser().parse_args(arguments)
    _fix_hash_order()
    total = Summary()
    run = partial(run_seed, world=options.world, faults=options.faults, twice=options.twice, shows_events=options.trace)
    for result in _run_all(run, options.seeds, options.jobs):
        total.add(result)
        if result.failure:
            arguments_text = f"--seeds {result.seed} --world {options.world} --faults {options.faults}"
            replay_command = f"python -m moldau_dev.simulation.sweep {arguments_text}"
            _print(f"{result.failure}\nseed {result.seed} FAILED; replay: {replay_command}")
            if options.first:
                break
        elif result.inconclusive:
            _print(result.inconclusive)
        elif (outcome := result.outcome) is not None:
            counts = f"{outcome.events} events, {outcome.acknowledged} acknowledged"
            _print(f"seed {result.seed}: {outcome.trace_hash} {counts} {outcome.tally or ''}".rstrip())
    for line in total.lines():
        _print(line)
    return min(total.failed, 1)


def run_seed(seed: int, *, world: str, faults: str, twice: bool = False, shows_events: bool = False) -> SeedResult:
    """Run one seed; the result can be pickled."""
    started = time.process_time()
    result = SeedResult(seed)
    try:
        script = script_of(world, faults)
        if twice:
            result.outcome = replay(script, seed)
        else:
            result.outcome = Simulation(seed, listener=_print if shows_events else None).run(script)
        result.outcome.check()
    except Inconclusive as reason:
        result.inconclusive = str(reason)
    except Exception:
        result.failure = traceback.format_exc()
    result.cpu_s = time.process_time() - started
    return result


def script_of(world: str, faults: str) -> Script:
    if world == "transactions":
        return transaction_world.transaction_world(cluster_world.FaultProfile(faults))
    if world == "cluster":
        return cluster_world.cluster_world(cluster_world.FaultProfile(faults))
    return one_broker.one_broker(one_broker.FaultProfile(faults))


def _run_all(run: "partial[SeedResult]", seeds: Iterable[int], jobs: int) -> Iterator[SeedResult]:
    if jobs == 1:
        yield from map(run, seeds)
        return
    with ProcessPoolExecutor(jobs) as workers:
        try:
            yield from workers.map(run, seeds)
        finally:
            workers.shutdown(wait=False, cancel_futures=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m moldau_dev.simulation.sweep", description=__doc__)
    parser.add_argument("--seeds", type=_seeds, default=range(10), help="one seed, or a range: 0-99")
    parser.add_argument(
        "--world",
        choices=PROFILES,
        default="one",
        help="one broker, a cluster of three to five nodes, or a cluster with transactions",
    )
    names = {profile.value: None for profiles in PROFILES.values() for profile in profiles}
    parser.add_argument("--faults", choices=list(names), default="process", help="the faults to inject")
    parser.add_argument("--twice", action="store_true", help="run each seed twice and compare the traces")
    parser.add_argument("--trace", action="store_true", help="print every event")
    parser.add_argument("--jobs", type=int, default=1, help="number of seeds to run in parallel")
    parser.add_argument("--first", action="store_true", help="stop at the first failure")
    return parser


def _seeds(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _fix_hash_order() -> None:
    """Fix the hash seed, so that a seed gives the same run even if some order depends on hashes."""
    if "PYTHONHASHSEED" not in os.environ:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"})


if __name__ == "__main__":
    sys.exit(main())
