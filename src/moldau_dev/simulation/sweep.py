"""Many seeds in a row: `python -m moldau_dev.simulation.sweep --seeds 0-99 [--world cluster] [--trouble power]`.

A failing seed prints what broke and the command that replays it alone.
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
from moldau_dev.simulation.simulation import Outcome, Script, Simulation, Unknown, replay

TROUBLES: Final[dict[str, type[Enum]]] = {
    "one": one_broker.Trouble,
    "cluster": cluster_world.Trouble,
    "transactions": cluster_world.Trouble,
}


@dataclass(slots=True)
class Ran:
    """What became of one seed."""

    seed: int
    outcome: Outcome | None = None
    unknown: str = ""  # why it proves nothing
    failure: str = ""  # all that is known of it
    cpu_s: float = 0.0


@dataclass(slots=True)
class Sum:
    """All seeds together."""

    runs: int = 0
    failed: int = 0
    unknown: int = 0
    events: int = 0
    virtual_s: float = 0.0
    cpu_s: float = 0.0
    tally: Counter[str] = field(default_factory=Counter)
    fired: Counter[str] = field(default_factory=Counter)

    def add(self, ran: Ran) -> None:
        self.runs += 1
        self.cpu_s += ran.cpu_s
        self.failed += bool(ran.failure)
        self.unknown += bool(ran.unknown)
        if ran.outcome is not None:
            self.events += ran.outcome.events
            self.virtual_s += ran.outcome.virtual_s
            self.tally.update(ran.outcome.tally)
            self.fired.update(ran.outcome.faults)

    def lines(self) -> Iterator[str]:
        passed = self.runs - self.failed - self.unknown
        hours = f"{self.virtual_s / 3600:.2f} virtual hours in {self.cpu_s / 3600:.3f} core-hours"
        yield f"{self.failed} failed, {self.unknown} unknown, {passed} passed; {hours}"
        yield f"events: {self.events}; {dict(sorted(self.tally.items()))}"
        yield f"firings: {dict(sorted(self.fired.items()))}"


def main(arguments: list[str] | None = None) -> int:
    """1 if a seed failed; what could not fail is counted apart."""
    options = _parser().parse_args(arguments)
    _fix_hash_order()
    total = Sum()
    run = partial(
        run_seed, world=options.world, trouble=options.trouble, twice=options.twice, shows_events=options.trace
    )
    for ran in _run_all(run, options.seeds, options.jobs):
        total.add(ran)
        if ran.failure:
            replaying = f"--seeds {ran.seed} --world {options.world} --trouble {options.trouble}"
            _say(f"{ran.failure}\nseed {ran.seed} FAILED; replay: python -m moldau_dev.simulation.sweep {replaying}")
            if options.first:
                break
        elif ran.unknown:
            _say(ran.unknown)
        elif (outcome := ran.outcome) is not None:
            told = f"{outcome.events} events, {outcome.acknowledged} acknowledged"
            _say(f"seed {ran.seed}: {outcome.trace_hash} {told} {outcome.tally or ''}".rstrip())
    for line in total.lines():
        _say(line)
    return min(total.failed, 1)


def run_seed(seed: int, *, world: str, trouble: str, twice: bool = False, shows_events: bool = False) -> Ran:
    """One seed, and whatever comes of it in a form that travels between processes."""
    started = time.process_time()
    ran = Ran(seed)
    try:
        script = script_of(world, trouble)
        if twice:
            ran.outcome = replay(script, seed)
        else:
            ran.outcome = Simulation(seed, listener=_say if shows_events else None).run(script)
        ran.outcome.check()
    except Unknown as reason:
        ran.unknown = str(reason)
    except Exception:
        ran.failure = traceback.format_exc()
    ran.cpu_s = time.process_time() - started
    return ran


def script_of(world: str, trouble: str) -> Script:
    if world == "transactions":
        return transaction_world.transaction_world(cluster_world.Trouble(trouble))
    if world == "cluster":
        return cluster_world.cluster_world(cluster_world.Trouble(trouble))
    return one_broker.one_broker(one_broker.Trouble(trouble))


def _run_all(run: "partial[Ran]", seeds: Iterable[int], jobs: int) -> Iterator[Ran]:
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
    parser.add_argument("--seeds", type=_seeds, default=range(10), help="one, or the first and the last: 0-99")
    parser.add_argument(
        "--world",
        choices=TROUBLES,
        default="one",
        help="one broker, a cluster of three to five, or one with transactions",
    )
    words = {trouble.value: None for troubles in TROUBLES.values() for trouble in troubles}
    parser.add_argument("--trouble", choices=list(words), default="process", help="what befalls it")
    parser.add_argument("--twice", action="store_true", help="run each seed twice and compare the traces")
    parser.add_argument("--trace", action="store_true", help="print every event")
    parser.add_argument("--jobs", type=int, default=1, help="so many seeds at the same time")
    parser.add_argument("--first", action="store_true", help="end with the first that fails")
    return parser


def _seeds(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _fix_hash_order() -> None:
    """A seed must mean the same run everywhere, also if some order depends on hashes."""
    if "PYTHONHASHSEED" not in os.environ:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"})


if __name__ == "__main__":
    sys.exit(main())
