"""A cluster in trouble whose clients turn numbers into results, in transactions."""

import asyncio
from dataclasses import replace
from typing import Final

from moldau.broker.internal_topics import OFFSETS_TOPIC, STATE_TOPIC
from moldau.model.ports import Ports
from moldau_dev.simulation.cluster.ambush import OF_TRANSACTIONS, Moment
from moldau_dev.simulation.cluster.cluster_world import CHAOS_S, ClusterWorld, Trouble, all_done
from moldau_dev.simulation.cluster.decision_probe import DecisionProbe
from moldau_dev.simulation.cluster.offset_witness import OffsetWitness
from moldau_dev.simulation.cluster.roster import REPLICAS, Roster
from moldau_dev.simulation.cluster.stable_probe import StableProbe
from moldau_dev.simulation.cluster.strikes import HELD_APIS
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


def transaction_world(trouble: Trouble = Trouble.PROCESS, *, chaos_s: float = CHAOS_S) -> Script:
    """Whatever befalls the cluster, each number has its results exactly once."""

    async def script(simulation: Simulation) -> None:
        simulation.disks_fail = trouble is Trouble.DISK
        world = TransactionWorld(simulation, trouble)
        try:
            await world.live_through(chaos_s)
        except BaseExceptionGroup as group:
            raise first_cause(group) from None

    return script


class TransactionWorld(ClusterWorld):
    """Two transformers for each partition of the numbers, a reader of what they commit, a look at what is stable."""

    def __init__(self, simulation: Simulation, trouble: Trouble) -> None:
        super().__init__(simulation, trouble)
        self.results = TransformLedger()
        self.decisions = DecisionProbe((RESULTS, OFFSETS_TOPIC), self.nodes)
        self.watch.more = (StableProbe(RESULTS, self.nodes).look, self.decisions.look, *self.watch.more)
        self.watch.aims = (self.ledger.topic, RESULTS, STATE_TOPIC, OFFSETS_TOPIC)
        self.chaos.held_apis = (*HELD_APIS, *TRANSACTION_APIS)
        self._transformers: list[Transformer] = []

    @property
    def moments(self) -> tuple[Moment, ...]:
        return (*OF_TRANSACTIONS, *super().moments)

    def furnish(self, roster: Roster) -> Roster:
        settings = {
            "transaction.state.log.replication.factor": str(REPLICAS),
            "transaction.state.log.num.partitions": "2",
            "transaction.state.log.min.isr": str(roster.min_isr),
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
        }
        return replace(roster, settings={**roster.settings, **settings})

    async def _create_topics(self, ports: Ports) -> None:
        async with client(ports, self.roster.bootstrap, "admin") as admin:
            for topic, partitions in ((self.ledger.topic, self.ledger.partitions), (RESULTS, RESULT_PARTITIONS)):
                await self._create_topic(admin, topic, partitions)

    def _clients(self) -> dict[str, Program]:
        programs: dict[str, Program] = {
            "producer": self._produce,
            "result-reader": self._read_results,
            "offset-witness": self._witness_offsets,
        }
        for source in range(self.ledger.partitions):
            for twin in TWINS:
                programs[f"transformer-{source}{twin}"] = self._transformer(f"transformer-{source}{twin}", source)
        return programs

    def _transformer(self, name: str, source: int) -> Program:
        async def program(ports: Ports) -> None:
            chance = self.simulation.chance(name)
            transformer = Transformer(name, source, ports, self.roster.bootstrap, self.ledger, self.results, chance)
            self._transformers.append(transformer)
            await transformer.run()

        return program

    async def _read_results(self, ports: Ports) -> None:
        chance = self.simulation.chance("result-reader")
        self._result_reader = ResultReader(ports, self.roster.bootstrap, self.ledger, self.results, chance)
        await self._result_reader.run()

    async def _witness_offsets(self, ports: Ports) -> None:
        chance = self.simulation.chance("offset-witness")
        self._witness = OffsetWitness(ports, self.roster, self.ledger, self.results, chance)
        await self._witness.run()

    def _has_done_enough(self) -> bool:
        is_enough = self.results.transactions >= TRANSACTIONS_MIN
        return is_enough and self.ledger.batches_acknowledged >= ACKNOWLEDGED_MIN

    async def _come_right(self, tasks: list[asyncio.Task[None]]) -> None:
        producing, reading, witnessing, *transforming = tasks
        self._producer.should_stop = True
        await self._within("every write is accepted", all_done([producing]))
        for transformer in self._transformers:
            transformer.producer_is_done = True
        await self._within("every number is transformed", all_done(transforming))
        self._witness.should_stop = True
        await self._within("nobody asks for offsets any more", all_done([witnessing]))
        if not self._witness.answers:
            raise Violation("no offset was ever told")
        self._result_reader.transformers_are_done = True
        await self._within("all results are read and nothing is open", all_done([reading]))
        if not self.decisions.looks:
            raise Violation("no marker was ever looked at")
        self.simulation.tally["offsets told"] += self._witness.answers
        self.simulation.tally["looks at markers"] += self.decisions.looks
        self.simulation.tally["transactions"] += self.results.transactions
        self.simulation.tally["aborted on purpose"] += self.results.aborts
