"""Parts of the model of a replicated partition: logs on fallible disks, and a controller."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import NamedTuple

from moldau.machines.replication import NOT_ELIGIBLE, ProposeIsr
from moldau.model.errors import ErrorCode
from moldau.model.ids import NO_NODE
from moldau.storage.leader_epochs import LeaderEpochs
from moldau.testing.disk import SimulatedDisk

NOWHERE = SimulatedDisk().mount()


class Entry(NamedTuple):
    """A batch of one record; values are unique."""

    epoch: int
    value: int


class ModelLog:
    """A log as a list. A power loss may drop unsynced entries and restore unsynced truncations."""

    def __init__(self, start_offset: int = 0) -> None:
        self.start_offset = start_offset
        self.entries: list[Entry] = []
        self.epochs = LeaderEpochs(NOWHERE, "/nowhere")
        self.synced: tuple[int, list[Entry]] = (start_offset, [])
        self.synced_offset = start_offset
        self.was_cut = False  # since the last sync

    @property
    def end_offset(self) -> int:
        return self.start_offset + len(self.entries)

    def at(self, offset: int) -> Entry | None:
        """Return the entry; None before the start and from the end on."""
        return self.entries[offset - self.start_offset] if self.start_offset <= offset < self.end_offset else None

    def read(self, offset: int, count: int) -> list[Entry]:
        first = offset - self.start_offset
        return self.entries[first : first + count]

    def append(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            assert entry.epoch >= self.epochs.latest or not self.entries, "epochs run back"
            self.epochs.assign(entry.epoch, self.end_offset)
            self.entries.append(entry)

    def truncate_to(self, offset: int) -> None:
        if offset < self.start_offset:
            self.restart_at(offset)
            return
        del self.entries[offset - self.start_offset :]
        self.epochs.truncate_from_end(offset)
        self._note_cut()

    def restart_at(self, offset: int) -> None:
        self.start_offset = offset
        self.entries.clear()
        self.epochs.clear()
        self._note_cut()

    def advance_start(self, offset: int) -> None:
        if offset > self.start_offset:
            del self.entries[: offset - self.start_offset]
            self.start_offset = offset
            self.epochs.truncate_from_start(offset)

    def sync(self) -> None:
        self.synced = (self.start_offset, list(self.entries))
        self.synced_offset = self.end_offset
        self.was_cut = False

    def lose_power(self, random: Random) -> None:
        """Drop some unsynced entries; an unsynced truncation may be undone."""
        if self.was_cut and random.random() < 0.5:
            self.start_offset, self.entries = self.synced[0], list(self.synced[1])
        else:
            kept = random.randint(min(max(self.synced_offset, self.start_offset), self.end_offset), self.end_offset)
            del self.entries[kept - self.start_offset :]
        self._reread_epochs()
        self.sync()

    def _note_cut(self) -> None:
        self.synced_offset = min(self.synced_offset, self.end_offset)
        self.was_cut = True

    def _reread_epochs(self) -> None:
        self.epochs.clear()
        for number, entry in enumerate(self.entries):
            self.epochs.assign(entry.epoch, self.start_offset + number)


@dataclass(frozen=True)
class State:
    """All that brokers learn from the controller, at one offset of its log."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    elr: tuple[int, ...] = ()
    leader: int = NO_NODE
    leader_epoch: int = 0
    partition_epoch: int = 0
    broker_epochs: dict[int, int] = field(default_factory=dict)
    unfenced: frozenset[int] = frozenset()

    def eligible_epoch(self, broker: int) -> int:
        return self.broker_epochs[broker] if broker in self.unfenced else NOT_ELIGIBLE


class AlterIsr(NamedTuple):
    """A proposal on its way to the controller."""

    sender: int
    broker_epoch: int
    proposal: ProposeIsr


class Response(NamedTuple):
    """The controller's response to a proposal."""

    code: ErrorCode
    partition_epoch: int = -1
    isr: tuple[int, ...] = ()


class Controller:
    """The ISR, ELR and leader of one partition, with their whole history. It never fails: raft is tested elsewhere."""

    def __init__(self, replicas: Sequence[int], min_isr: int, *, is_unclean_allowed: bool = False) -> None:
        self.min_isr = min_isr
        self.is_unclean_allowed = is_unclean_allowed
        self.unclean_elections = 0
        self.history = [State(tuple(replicas), tuple(replicas))]

    @property
    def state(self) -> State:
        return self.history[-1]

    def register(self, broker: int, *, is_clean: bool) -> int:
        """Register a new incarnation of a broker, fenced; return its broker epoch."""
        self.fence(broker)
        epochs = {**self.state.broker_epochs, broker: len(self.history)}
        self.history.append(replace(self.state, broker_epochs=epochs))
        if not is_clean:
            self._exclude(broker)
        return epochs[broker]

    def fence(self, broker: int) -> None:
        if broker in self.state.unfenced:
            self.history.append(replace(self.state, unfenced=self.state.unfenced - {broker}))
            if broker in self.state.isr or broker == self.state.leader:
                self._change(tuple(each for each in self.state.isr if each != broker))

    def unfence(self, broker: int) -> None:
        if broker not in self.state.unfenced:
            self.history.append(replace(self.state, unfenced=self.state.unfenced | {broker}))
            if self.state.leader == NO_NODE:
                self._change(self.state.isr)

    def move_leader(self, broker: int) -> None:
        """Elect a preferred leader."""
        if broker in self.state.isr and broker in self.state.unfenced and broker != self.state.leader:
            self._write(self.state.isr, self.state.elr, broker)

    def reassign(self, *, add: int | None = None, remove: int | None = None) -> None:
        """Add one replica, or remove one that does not lead where enough remain in sync."""
        state = self.state
        if add is not None and add not in state.replicas:
            self._write(state.isr, state.elr, state.leader, replicas=(*state.replicas, add))
        if remove in state.replicas and remove != state.leader and len(state.replicas) > self.min_isr:
            isr = tuple(each for each in state.isr if each != remove)
            if len(isr) >= self.min_isr:
                replicas = tuple(each for each in state.replicas if each != remove)
                self._write(isr, (), state.leader, replicas=replicas, is_new_epoch=True)

    def alter(self, request: AlterIsr) -> Response:
        state, proposal = self.state, request.proposal
        if state.broker_epochs.get(request.sender) != request.broker_epoch:
            return Response(ErrorCode.STALE_BROKER_EPOCH)
        if request.sender != state.leader or proposal.leader_epoch != state.leader_epoch:
            return Response(ErrorCode.FENCED_LEADER_EPOCH)
        if proposal.partition_epoch != state.partition_epoch:
            return Response(ErrorCode.INVALID_UPDATE_VERSION)
        assert set(proposal.isr) <= set(state.replicas)
        assert state.leader in proposal.isr
        for broker, epoch in zip(proposal.isr, proposal.broker_epochs, strict=True):
            if state.eligible_epoch(broker) == NOT_ELIGIBLE or epoch not in (-1, state.broker_epochs[broker]):
                return Response(ErrorCode.INELIGIBLE_REPLICA)
        self._write(proposal.isr, self._elr_for(proposal.isr), state.leader)
        return Response(ErrorCode.NONE, self.state.partition_epoch, self.state.isr)

    def _exclude(self, broker: int) -> None:
        """Take out a broker that may have lost data, unless no other is left."""
        state = self.state
        isr = tuple(each for each in state.isr if each != broker)
        elr = tuple(each for each in state.elr if each != broker)
        if (isr or elr) and (isr, elr) != (state.isr, state.elr):
            self._write(isr, elr, state.leader)

    def _change(self, isr: tuple[int, ...]) -> None:
        """Change the ISR, and elect a live leader if there is one."""
        state = self.state
        elr = self._elr_for(isr)
        leader = state.leader if state.leader in isr else self._elect(isr, elr)
        if leader != NO_NODE and leader not in isr:
            if leader not in elr:
                self.unclean_elections += 1
            isr, elr = (leader,), tuple(each for each in elr if each != leader)
        self._write(isr, elr, leader)

    def _elect(self, isr: tuple[int, ...], elr: tuple[int, ...]) -> int:
        """Elect from the ISR, then from the ELR, then any replica where unclean elections are allowed."""
        groups = (isr, elr, self.state.replicas if self.is_unclean_allowed else ())
        for group in groups:
            for broker in self.state.replicas:
                if broker in group and broker in self.state.unfenced:
                    return broker
        return NO_NODE

    def _elr_for(self, isr: tuple[int, ...]) -> tuple[int, ...]:
        state = self.state
        if len(isr) >= min(self.min_isr, len(state.replicas)):
            return ()
        return tuple(each for each in state.replicas if each in state.isr + state.elr and each not in isr)

    def _write(
        self,
        isr: tuple[int, ...],
        elr: tuple[int, ...],
        leader: int,
        *,
        replicas: tuple[int, ...] | None = None,
        is_new_epoch: bool = False,
    ) -> None:
        state = self.state
        is_new_epoch |= leader != state.leader
        self.history.append(
            replace(
                state,
                replicas=replicas or state.replicas,
                isr=isr,
                elr=elr,
                leader=leader,
                leader_epoch=state.leader_epoch + is_new_epoch,
                partition_epoch=state.partition_epoch + 1,
            )
        )
