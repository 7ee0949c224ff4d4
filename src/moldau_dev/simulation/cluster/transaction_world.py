"""A cluster under faults whose clients transform numbers into results in transactions."""

import asyncio
from dataclasses import replace
from typing import Final

from moldau.broker.internal_topics import OFFSETS_TOPIC, STATE_TOPIC
from moldau.model.ports import Ports
from moldau_dev.simulation.cluster.cluster_faults import HELD_APIS
from moldau_dev.simulation.cluster.cluster_world import CHAOS_S, ClusterWorld, FaultProfile, all_done
from moldau_dev.simulation.cluster.decision_probe import DecisionProbe
from moldau_dev.simulation.cluster.offset_checker import OffsetChecker
from moldau_dev.simulation.cluster.stable_probe import StableProbe
from moldau_dev.simulation.cluster.targeted_faults import TRANSACTION_TRIGGERS, Trigger
from moldau_dev.simulation.cluster.topology import REPLICAS, Topology
from moldau_dev.simulation.cluster.transformers import (
    RESULT_PARTITIONS,
    RESULTS,
    ResultReader,
    Transformer,
    TransformLedger,
)
from moldau_dev.simulation.one_broker import first_cause
from moldau_dev.simulation.simulation import ACKNOWLEDGED_MIN, Program, Script, Simulation
from moldau_dev.simulation.workload import Violation, client

TRANSACTIONS_MIN: Final = 30
TRANSACTION_APIS: Final = (24, 26, 27, 28)  # AddPartitionsToTxn, EndTxn, WriteTxnMarkers, TxnOffsetCommit
TWINS: Final = ("a", "b")


def transaction_world(profile: FaultProfile = FaultProfile.PROCESS, *, chaos_s: float = CHAOS_S) -> Script:
    """Return a script that checks that under faults each number has its results exactly once."""

    async def script(simulation: Simulation) -> None:
        simulation.disks_fail = profile is FaultProfile.DISK
        world = TransactionWorld(simulation, profile)
        try:
            await world.run(chaos_s)
        except BaseExceptionGroup as group:
            raise first_cause(group) from None

    return script


class TransactionWorld(ClusterWorld):
    """Two transformers per partition of the numbers, a `read_committed` reader, and probes for transactions."""

    def __init__(self, simulation: Simulation, profile: FaultProfile) -> None:
        super().__init__(simulation, profile)
        self.results = TransformLedger()
        self.decisions = DecisionProbe((RESULTS, OFFSETS_TOPIC), self.nodes)
        self.observer.more = (StableProbe(RESULTS, self.nodes).check, self.decisions.check, *self.observer.more)
        self.observer.target_topics = (self.ledger.topic, RESULTS, STATE_TOPIC, OFFSETS_TOPIC)
        self.chaos.held_apis = (*HELD_APIS, *TRANSACTION_APIS)
        self._transformers: list[Transformer] = []

    @property
    def triggers(self) -> tuple[Trigger, ...]:
        return (*TRANSACTION_TRIGGERS, *super().triggers)

    def customize(self, topology: Topology) -> Topology:
        settings = {
            "transaction.state.log.replication.factor": str(REPLICAS),
            "transaction.state.log.num.partitions": "2",
            "transaction.state.log.min.isr": str(topology.min_isr),
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
        }
        return replace(topology, settings={**topology.settings, **settings})

    async def _create_topics(self, ports: Ports) -> None:
        async with client(ports, self.topology.bootstrap, "admin") as admin:
            for topic, partitions in ((self.ledger.topic, self.ledger.partitions), (RESULTS, RESULT_PARTITIONS)):
                await self._create_topic(admin, topic, partitions)

    def _clients(self) -> dict[str, Program]:
        programs: dict[str, Program] = {
            "producer": self._produce,
            "result-reader": self._read_results,
            "offset-witness": self._check_offsets,
        }
        for source in range(self.ledger.partitions):
            for twin in TWINS:
                programs[f"transformer-{source}{twin}"] = self._transformer(f"transformer-{source}{twin}", source)
        return programs

    def _transformer(self, name: str, source: int) -> Program:
        async def program(ports: Ports) -> None:
            rng = self.simulation.rng(name)
            transformer = Transformer(name, source, ports, self.topology.bootstrap, self.ledger, self.results, rng)
            self._transformers.append(transformer)
            await transformer.run()

        return program

    async def _read_results(self, ports: Ports) -> None:
        rng = self.simulation.rng("result-reader")
        self._result_reader = ResultReader(ports, self.topology.bootstrap, self.ledger, self.results, rng)
        await self._result_reader.run()

    async def _check_offsets(self, ports: Ports) -> None:
        rng = self.simulation.rng("offset-witness")
        self._offset_checker = OffsetChecker(ports, self.topology, self.ledger, self.results, rng)
        await self._offset_checker.run()

    def _has_done_enough(self) -> bool:
        is_enough = self.results.transactions >= TRANSACTIONS_MIN
        return is_enough and self.ledger.batches_acknowledged >= ACKNOWLEDGED_MIN

    async def _finish_clients(self, tasks: list[asyncio.Task[None]]) -> None:
        producing, reading, checking, *transforming = tasks
        self._producer.should_stop = True
        await self._within("every write is accepted", all_done([producing]))
        for transformer in self._transformers:
            transformer.producer_is_done = True
        await self._within("every number is transformed", all_done(transforming))
        self._offset_checker.should_stop = True
        await self._within("the offset checker has stopped", all_done([checking]))
        if not self._offset_checker.responses:
            raise Violation("no committed offset was ever fetched")
        self._result_reader.transformers_are_done = True
        await self._within("all results are read and no transaction is open", all_done([reading]))
        if not self.decisions.checks:
            raise Violation("no marker was ever checked")
        self.simulation.tally["offsets fetched"] += self._offset_checker.responses
        self.simulation.tally["marker checks"] += self.decisions.checks
        self.simulation.tally["transactions"] += self.results.transactions
        self.simulation.tally["aborted on purpose"] += self.results.aborts
