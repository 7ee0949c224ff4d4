"""A share coordinator's shard with its log; a second machine replays what is written."""

from collections.abc import Callable, Hashable
from typing import Any

from moldau.machines.decision import REQUESTER, Decision, Now, SetTimer
from moldau.machines.metadata.image import MetadataImage, PartitionImage, TopicImage
from moldau.machines.share_state import PruneLog, Record, ShareStateMachine, ShareStateSettings, StateKey
from moldau.machines.shares.state import ShareState, StateBatch, StateWrite
from moldau.model.errors import KafkaError
from moldau.model.ids import TopicId
from moldau.wire.data_records import decode_share_state_record, encode_coordinator_key, encode_versioned

WALL_AHEAD_MS = 1_700_000_000_000
PARTITION = PartitionImage((1,), (1,), 1, 0, 0)
TOPIC_ID = TopicId(b"t" * 16)
KEY: StateKey = ("g", TOPIC_ID, 0)


def image_of(**topics: int) -> MetadataImage:
    made = {
        name: TopicImage(name, TopicId(name.encode().ljust(16, name[:1].encode())), (PARTITION,) * count)
        for name, count in topics.items()
    }
    return MetadataImage(1, 0, made, {each.topic_id: each for each in made.values()})


class StateScene:
    """Runs decisions as a driver does. A machine that replays the log must reach the same state."""

    def __init__(self, settings: ShareStateSettings | None = None) -> None:
        self.settings = settings or ShareStateSettings()
        self.image = image_of(t=3)
        self.is_complete = True
        self.now_ms = 1_000.0
        self.log: list[tuple[int, bytes, bytes | None]] = []
        self.next_offset = 0
        self.elect()

    @property
    def now(self) -> Now:
        return Now(self.now_ms, WALL_AHEAD_MS + round(self.now_ms))

    def elect(self) -> None:
        """Let a new machine take over from the log."""
        self.machine, self.shadow = self.replayed(), self.replayed()
        self.timers: dict[Hashable, float] = {}
        self.run(lambda: self.machine.decide_elected(self.now_ms))

    def replayed(self) -> ShareStateMachine:
        machine = ShareStateMachine(
            self.settings,
            wall_offset_ms=WALL_AHEAD_MS,
            image=lambda: self.image,
            newest_image=lambda: self.image if self.is_complete else None,
        )
        for offset, key, value in self.log:
            machine.apply(decode_share_state_record(key, value), offset)
        return machine

    def run(self, decide: Callable[[], Decision[Record, Any]]) -> Any:
        decision = decide()
        assert self.machine.states == self.shadow.states  # deciding changes no replicated state
        for key, value in decision.records:
            encoded = encode_coordinator_key(key), None if value is None else encode_versioned(value, 0)
            self.log.append((self.next_offset, *encoded))
            self.machine.apply((key, value), self.next_offset)
            self.shadow.apply(decode_share_state_record(*encoded), self.next_offset)
            self.next_offset += 1
        assert self.machine.states == self.shadow.states
        for change in decision.timers:
            assert isinstance(change, SetTimer)
            self.timers[change.event] = self.now_ms + change.delay_ms
        for effect in decision.effects:
            assert isinstance(effect, PruneLog)
            assert effect.offset <= self.next_offset
            self.log = [each for each in self.log if each[0] >= effect.offset]
            assert self.replayed().states == self.machine.states  # pruning loses nothing
        response = decision.responses.get(REQUESTER)
        if isinstance(response, KafkaError):
            raise response
        return response

    def pass_time(self, ms: float) -> None:
        """Fire due timers in order."""
        end_ms = self.now_ms + ms
        while self.timers and min(self.timers.values()) <= end_ms:
            event = min(self.timers, key=self.timers.__getitem__)
            self.now_ms = max(self.now_ms, self.timers.pop(event))
            self.run(lambda event=event: self.machine.decide_timed_out(event, self.now_ms))  # type: ignore[misc]
        self.now_ms = end_ms

    def initialize(self, key: StateKey = KEY, state_epoch: int = 1, start_offset: int = -1) -> None:
        self.run(lambda: self.machine.decide_initialize(key, state_epoch, start_offset, now=self.now))

    def read(self, key: StateKey = KEY, leader_epoch: int = 0) -> ShareState:
        state = self.run(lambda: self.machine.decide_read(key, leader_epoch, now=self.now))
        assert isinstance(state, ShareState)
        return state

    def write(
        self,
        *batches: tuple[int, int, int, int],
        key: StateKey = KEY,
        state_epoch: int = 1,
        leader_epoch: int = 0,
        start_offset: int = -1,
        complete_count: int = 0,
    ) -> None:
        write = StateWrite(start_offset, complete_count, tuple(StateBatch(*each) for each in batches))
        self.run(lambda: self.machine.decide_write(key, state_epoch, leader_epoch, write, now=self.now))

    def delete(self, key: StateKey = KEY) -> None:
        self.run(lambda: self.machine.decide_delete(key))
