"""Many seeds in a row, from the command line: `python -m moldau.testing.sweep --seeds 0-99 [--trouble power]`.

A failing seed prints what broke and the command that replays it alone.
"""

import argparse
import os
import sys
import time
import traceback
from collections import Counter

from moldau.testing.one_broker import Trouble, one_broker
from moldau.testing.simulation import Outcome, Simulation, Unknown, replay


def main(arguments: list[str] | None = None) -> int:
    """How many seeds failed, 0 for none; what could not fail is counted apart."""
    options = _parser().parse_args(arguments)
    _fix_hash_order()
    outcomes: list[Outcome] = []
    failed = unknown = 0
    started = time.monotonic()
    for seed in options.seeds:
        try:
            outcome = _run(seed, options)
            outcomes.append(outcome)
            outcome.check()
        except Unknown as reason:
            unknown += 1
            _say(str(reason))
        except AssertionError:
            failed += 1
            traceback.print_exc()
            _say(f"replay: python -m moldau.testing.sweep --seeds {seed} --trouble {options.trouble}")
        else:
            _say(f"seed {seed}: {outcome.trace_hash} {outcome.events} events, {outcome.acknowledged} acknowledged")
    _print_sum(outcomes, failed, unknown, time.monotonic() - started)
    return min(failed, 1)


def _run(seed: int, options: argparse.Namespace) -> Outcome:
    script = one_broker(Trouble(options.trouble))
    if options.twice:
        return replay(script, seed)
    return Simulation(seed, listener=_say if options.trace else None).run(script)


def _print_sum(outcomes: list[Outcome], failed: int, unknown: int, seconds: float) -> None:
    fired: Counter[str] = Counter()
    for outcome in outcomes:
        fired.update(outcome.faults)
    hours = sum(outcome.virtual_s for outcome in outcomes) / 3600
    passed = len(outcomes) - unknown
    _say(f"{failed} failed, {unknown} unknown, {passed} passed; {hours:.2f} virtual hours in {seconds:.0f} s")
    _say(f"events: {sum(outcome.events for outcome in outcomes)}; firings: {dict(sorted(fired.items()))}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m moldau.testing.sweep", description=__doc__)
    parser.add_argument("--seeds", type=_seeds, default=range(10), help="one, or the first and the last: 0-99")
    troubles = [trouble.value for trouble in Trouble]
    parser.add_argument("--trouble", choices=troubles, default="process", help="what befalls the broker")
    parser.add_argument("--twice", action="store_true", help="run each seed twice and compare the traces")
    parser.add_argument("--trace", action="store_true", help="print every event")
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
