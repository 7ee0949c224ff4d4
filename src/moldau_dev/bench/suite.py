"""Sets of measurements: all that have a target, and the quick ones for checking a change."""

from dataclasses import dataclass, field

from moldau.cli.bench import cases
from moldau.cli.bench.cluster import bench_folder
from moldau.cli.bench.end_to_end import run_end_to_end
from moldau.cli.bench.fetch_load import run_fetch
from moldau.cli.bench.latency import LatencyCase, run_latency
from moldau.cli.bench.produce_load import run_produce
from moldau.cli.bench.rounds import Round, Tell
from moldau.cli.bench.session import Plan, session, stall_p99_ms
from moldau.cli.bench.targets import Verdict
from moldau_dev.bench.compaction import SETTINGS, run_compaction
from moldau_dev.bench.figures import Figures, figures
from moldau_dev.bench.footprint import Footprint, measure_footprint
from moldau_dev.bench.targets import footprint_verdicts, transaction_verdicts, verdicts
from moldau_dev.bench.transactions import run_transactions


@dataclass(slots=True)
class Outcome:
    """The results of all measurements."""

    measured: dict[str, list[Round]] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)
    stall_p99_ms: float | None = None


def measure_everything(plan: Plan, tell: Tell, *, with_compaction: bool) -> Outcome:
    """Footprint and compaction only of a broker that is ours: they need one that does nothing else. Transactions too:
    transactional ids stay for days where they are not."""
    outcome = Outcome()
    with session(plan, tell) as bench:
        before = bench.cluster.stall_buckets()
        outcome.measured |= run_produce(bench, cases.PRODUCE_CASES)
        outcome.measured |= run_fetch(bench, cases.FETCHES)
        outcome.measured |= run_latency(bench, cases.ACKNOWLEDGE_20_MB)
        outcome.measured |= run_end_to_end(bench, cases.END_TO_END)
        outcome.stall_p99_ms = stall_p99_ms(bench, before)
    if plan.is_own and with_compaction:
        outcome.measured |= measure_compaction(plan, cases.ACKNOWLEDGE_20_MB, cases.COMPACTED_BYTES, tell)
    outcome.verdicts = verdicts(outcome.measured)
    if plan.is_own:
        with session(plan, tell) as bench:
            found = run_transactions(bench)
        outcome.measured |= found.rounds
        outcome.verdicts += transaction_verdicts(found)
        outcome.verdicts += footprint_verdicts(footprint(plan, tell))
    return outcome


def measure_quickly(plan: Plan, tell: Tell) -> tuple[Outcome, Figures]:
    """Measure what `make bench-quick` prints, within a minute."""
    outcome = Outcome()
    with session(plan, tell) as bench:
        before = bench.cluster.stall_buckets()
        outcome.measured |= run_produce(bench, [cases.PRODUCE_ONE, cases.PRODUCE_64K])
        outcome.measured |= run_fetch(bench, cases.FETCHES)
        outcome.stall_p99_ms = stall_p99_ms(bench, before)
    return outcome, figures(outcome.measured, outcome.stall_p99_ms)


def measure_compaction(plan: Plan, case: LatencyCase, log_bytes: int, tell: Tell) -> dict[str, list[Round]]:
    with session(plan, tell, SETTINGS) as bench:
        return run_compaction(bench, case, log_bytes)


def footprint(plan: Plan, tell: Tell) -> Footprint:
    with bench_folder(plan.folder) as folder:
        return measure_footprint(folder, tell)
