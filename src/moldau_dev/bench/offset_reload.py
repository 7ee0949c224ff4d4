"""Committed offsets: many are written, and a restarted broker reloads them while another client produces."""

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from moldau.cli.bench.requests import Shape, frame_of, produce_frame
from moldau.cli.bench.streams import Address
from moldau.cli.errors import CommandError
from moldau.model.errors import ErrorCode
from moldau.wire.messages import OffsetCommitRequest, OffsetFetchRequest
from moldau_dev.bench.conversations import Conversation, Reply, Requested, Talk, ask, converse

COMMIT_VERSION: Final = 8
FETCH_VERSION: Final = 8
TALKS: Final = 20
LOOK_AGAIN_S: Final = 0.005
PAUSE_S: Final = 0.001  # between two records of the concurrent producer
QUIET_S: Final = 3.0
LOOK_EVERY: Final = 20  # records
BEGIN_S_MAX: Final = 30.0
GROUP_NAME: Final = "moldau-bench-group-{:04d}"
COMMITTED: Final = 12_345_678
ONE_RECORD: Final = Shape(1, 100)


@dataclass(frozen=True, slots=True)
class Commit:
    """Groups that repeatedly commit offsets of all partitions of a topic."""

    address: Address
    topic: str
    partitions: int
    groups: int
    commits: int  # of single partitions, in all

    def run(self) -> float:
        """Seconds."""
        talks = [Talk() for _ in range(min(TALKS, self.groups))]
        rounds = -(-self.commits // (self.groups * self.partitions))
        try:
            return converse((talk, self._commit(first, len(talks), rounds)) for first, talk in enumerate(talks))
        finally:
            for talk in talks:
                talk.close()

    def _commit(self, first: int, step: int, rounds: int) -> Conversation:
        requests = [self._request(group) for group in range(first, self.groups, step)]
        for request in requests:
            while (yield from self._is_loading(request)):
                pass
        frames = [frame_of(COMMIT_VERSION, request) for request in requests]
        for _ in range(rounds - 1):
            for frame in frames:
                yield Requested(self.address, frame, is_kept=False)

    def _is_loading(self, request: OffsetCommitRequest) -> Generator[Requested, Reply, bool]:
        response = yield from ask(self.address, request, COMMIT_VERSION)
        codes = {each.error_code for topic in response.topics for each in topic.partitions}
        if codes - {0, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}:
            raise CommandError(f"a commit was rejected with {ErrorCode(max(codes)).name}")
        return bool(codes - {0})

    def _request(self, group: int) -> OffsetCommitRequest:
        partitions = [
            OffsetCommitRequest.OffsetCommitRequestPartition(
                partition_index=index, committed_offset=COMMITTED + group, committed_metadata=""
            )
            for index in range(self.partitions)
        ]
        return OffsetCommitRequest(
            group_id=GROUP_NAME.format(group),
            topics=[OffsetCommitRequest.OffsetCommitRequestTopic(name=self.topic, partitions=partitions)],
        )


@dataclass(frozen=True, slots=True)
class Reloaded:
    """Duration of the reload, and latencies of acknowledgements during the reload and afterwards."""

    seconds: float
    during_ms: Sequence[float]
    quiet_ms: Sequence[float]


@dataclass(frozen=True, slots=True)
class Reload:
    """Fetches offsets from a starting broker until those of every group are loaded; records start and end times."""

    address: Address
    groups: Sequence[int]
    partitions: int
    after: Path  # there is a file: the other one has begun

    def run(self) -> tuple[float, float]:
        began_s = time.monotonic()
        while not self.after.exists():
            if time.monotonic() > began_s + BEGIN_S_MAX:
                raise CommandError(f"nothing was produced within {BEGIN_S_MAX:g} s after the start")
            time.sleep(LOOK_AGAIN_S)
        talk = Talk()
        try:
            talk.line(self.address)
            converse([(talk, self._look())])
        finally:
            talk.close()
        return began_s, time.monotonic()

    def _look(self) -> Conversation:
        for group in self.groups:
            pause_s = 0.0
            while True:
                requested = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=GROUP_NAME.format(group), topics=None)
                request = OffsetFetchRequest(groups=[requested])
                response = yield from ask(self.address, request, FETCH_VERSION, after_s=pause_s)
                offsets = response.groups[0]
                if offsets.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                    break
                pause_s = LOOK_AGAIN_S
            self._check(group, offsets)

    def _check(self, group: int, response: Any) -> None:
        offsets = [each.committed_offset for topic in response.topics for each in topic.partitions]
        if offsets != [COMMITTED + group] * self.partitions:
            raise CommandError(f"after the start, group {group} has the offsets {offsets[:10]}")


@dataclass(frozen=True, slots=True)
class Meanwhile:
    """Produces records one by one in a separate process, so that responses to other clients do not delay it.

    After the first it leaves a file. It goes on until there is another, and for some seconds after that. It tells when
    each acknowledgement came, and after how long.
    """

    address: Address
    topic: str
    begun: Path
    until: Path

    def run(self) -> list[tuple[float, float]]:
        found: list[tuple[float, float]] = []
        talk = Talk()
        try:
            talk.line(self.address)
            converse([(talk, self._produce(found))])
        finally:
            talk.close()
        return found

    def _produce(self, found: list[tuple[float, float]]) -> Conversation:
        frame = produce_frame(self.topic, 0, ONE_RECORD.batch())
        end_s: float | None = None
        while end_s is None or time.monotonic() < end_s:
            reply = yield Requested(self.address, frame, after_s=PAUSE_S)
            found.append((time.monotonic(), reply.elapsed_s * 1000))
            if len(found) == 1:
                self.begun.touch()
            if end_s is None and len(found) % LOOK_EVERY == 0 and self.until.exists():
                end_s = time.monotonic() + QUIET_S
