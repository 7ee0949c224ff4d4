"""Fetches from one leader, for all partitions that are followed from it, in one session.

    ask --> the leader answers as soon as something is new --> append --> ask again, which tells how far we are
              '-- or until another partition is to be followed: then a second fetch says so, and ends the wait

What the answer holds is appended while it still lies in the receive buffer: it is never copied.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from moldau.broker.cluster.peers import Peers
from moldau.broker.configs.replica_settings import ReplicaSettings
from moldau.broker.partitions.follower_role import FollowerRole
from moldau.broker.partitions.leadership_check import IN_FLIGHT_MAX
from moldau.broker.replicas.throttles import Throttles
from moldau.broker.replicas.truncation_sync import TruncationSync
from moldau.client.errors import error_of
from moldau.machines.replication import EpochEnd, Truncation
from moldau.model.errors import ErrorCode, KafkaError
from moldau.model.ids import NO_EPOCH, Address
from moldau.model.ports import Clock
from moldau.model.protocol import EARLIEST, INITIAL_SESSION_EPOCH, LATEST, NO_FETCH_SESSION, SESSION_EPOCH_MAX
from moldau.model.units import MiB
from moldau.storage.recovery import ProducerReplay
from moldau.wire import follower_fetch
from moldau.wire.follower_fetch import NO_CORRELATION, NO_VERSION, FetchPartition, PartitionResponse
from moldau.wire.messages import FetchRequest, ListOffsetsRequest

logger = logging.getLogger(__name__)

ANSWER_BYTES_MAX: Final = 2 * MiB  # it is checked and written in one turn of the loop
BACKOFF_FIRST_MS: Final = 10.0  # after a change of leaders, we may know of it before the new one does
LIST_MS: Final = 5000.0


@dataclass(frozen=True, slots=True)
class FetcherDependencies:
    """What fetchers need of their node."""

    node_id: int
    peers: Peers
    clock: Clock
    cuts: TruncationSync
    throttles: Throttles
    settings: Callable[[], ReplicaSettings]
    address_of: Callable[[int], Address | None]
    broker_epoch: Callable[[], int]
    failed: Callable[[str, BaseException], None]


class ReplicaFetcher:
    """See the module. `add` and `remove` partitions as they come and go; `close` ends it."""

    def __init__(self, leader: int, purpose: str, means: FetcherDependencies) -> None:
        self.leader = leader
        self._purpose = purpose
        self._means = means
        self._followed: dict[tuple[bytes, int], FollowerRole] = {}
        self._to_tell: dict[FollowerRole, None] = {}
        self._to_forget: dict[tuple[bytes, int], None] = {}
        self._unsynced: dict[FollowerRole, None] = {}
        self._session_id = NO_FETCH_SESSION
        self._session_epoch = INITIAL_SESSION_EPOCH
        self._broker_epoch = NO_EPOCH  # under which the session was begun
        self._number = 0  # of the last fetch
        self._in_flight = 0
        self._connecting: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures = 0
        self._pause: asyncio.TimerHandle | None = None
        self._is_nudged = False
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._followed)

    # Which partitions

    def add(self, following: FollowerRole) -> None:
        """An older one of the same partition must have been removed before."""
        self._followed[following.key] = following
        following.go_on = lambda: self._tell(following)
        following.when_synced = lambda: self._synced(following)
        self._bring_to_disk(following)
        self._tell(following)

    def remove(self, following: FollowerRole) -> None:
        if self._followed.get(following.key) is following:
            del self._followed[following.key]
            self._leave_session(following)
        self._to_tell.pop(following, None)
        self._synced(following)

    def _leave_session(self, following: FollowerRole) -> None:
        if following.is_in_session:
            following.is_in_session = False
            self._to_forget[following.key] = None

    def _tell(self, following: FollowerRole) -> None:
        """Name it in the next fetch, and do not wait for the one under way."""
        if following.may_be_asked_for and not self._is_closed:
            self._to_tell[following] = None
            self.nudge()

    def nudge(self) -> None:
        """Something is to be told. Once in a turn, however many partitions change."""
        if not self._is_nudged and not self._is_closed:
            self._is_nudged = True
            asyncio.get_running_loop().call_soon(self._nudged)

    def _nudged(self) -> None:
        self._is_nudged = False
        self._go_on()

    async def close(self) -> None:
        self._is_closed = True
        if self._pause is not None:
            self._pause.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Asking

    def _go_on(self) -> None:
        """Ask, unless there is a reason to wait. A second fetch only to end the wait of the first."""
        if self._is_closed or self._unsynced or not self._followed or self._pause or self._connecting:
            return
        if self._means.broker_epoch() != self._broker_epoch:
            # Registered anew: what the leader was told in this session, it was told by an earlier life.
            self._session_id = NO_FETCH_SESSION
        has_room = self._in_flight < IN_FLIGHT_MAX  # leaders count on it
        may_interrupt = has_room and bool(self._to_tell) and self._session_id != NO_FETCH_SESSION
        if (not self._in_flight or may_interrupt) and self._means.broker_epoch() >= 0:
            self._ask()

    def _ask(self) -> None:
        """Without a task or a future: a fetch is asked as soon as the answer to the last one has been appended."""
        means = self._means
        settings = means.settings()
        patience_ms = settings.replica_fetch_wait_max_ms + settings.replica_socket_timeout_ms
        address = means.address_of(self.leader)
        if address is None:
            self._begin_anew(ConnectionError(f"broker {self.leader} has no address"))
            return
        link = means.peers.link_to(address, self._purpose)
        if link is None:
            self._connecting = self._spawn(self._connect(address, patience_ms))
            return
        asked = self._name(settings)
        forgotten, self._to_forget = self._to_forget, {}
        question = self._question(asked, settings)
        hear = partial(self._heard, self._number)
        self._in_flight += 1
        if self._session_id != NO_FETCH_SESSION and not forgotten and len(asked) <= follower_fetch.COUNT_MAX:
            was_sent = link.try_send_raw(
                FetchRequest,
                (follower_fetch.OLDEST, follower_fetch.NEWEST),
                timeout_ms=patience_ms,
                write=question.write,
                read=follower_fetch.read_response,
                on_response=hear,
                on_error=self._failed,
            )
            if was_sent:
                return
        link.send_borrowing(
            _message(question, forgotten), timeout_ms=patience_ms, on_response=hear, on_error=self._failed
        )

    async def _connect(self, address: Address, patience_ms: float) -> None:
        try:
            await self._means.peers.connect(address, self._purpose, patience_ms)
        except (KafkaError, OSError) as error:
            self._begin_anew(error)
        finally:
            self._connecting = None

    def _name(self, settings: ReplicaSettings) -> list[FetchPartition]:
        """What is to be said of partitions in the next fetch."""
        if self._session_id == NO_FETCH_SESSION:
            self._to_forget.clear()
            self._session_epoch = INITIAL_SESSION_EPOCH
            self._broker_epoch = self._means.broker_epoch()
            self._to_tell = {each: None for each in self._followed.values() if each.may_be_asked_for}
        self._number += 1
        asked: list[FetchPartition] = []
        for following in self._to_tell:
            if following.is_in_sync or not self._is_throttled(following):
                following.is_in_session = True
                asked.append(following.ask(self._number, settings.replica_fetch_max_bytes))
        self._to_tell.clear()
        return asked

    def _question(self, asked: list[FetchPartition], settings: ReplicaSettings) -> follower_fetch.FollowerFetchRequest:
        means = self._means
        question = follower_fetch.FollowerFetchRequest(
            NO_VERSION,
            NO_CORRELATION,
            settings.replica_fetch_wait_max_ms,
            settings.replica_fetch_min_bytes,
            min(settings.replica_fetch_response_max_bytes, ANSWER_BYTES_MAX),
            self._session_id,
            self._session_epoch,
            asked,
            means.node_id,
            means.broker_epoch(),
        )
        self._session_epoch = 1 if self._session_epoch == SESSION_EPOCH_MAX else self._session_epoch + 1
        return question

    def _is_throttled(self, following: FollowerRole) -> bool:
        partition = following.partition
        delay_ms = self._means.throttles.follower_delay_ms(
            partition.log.settings, partition.name.partition, self._means.node_id, is_in_sync=following.is_in_sync
        )
        if delay_ms <= 0:
            return False
        self._leave_session(following)
        self._tell_later(following, delay_ms)
        return True

    def _tell_later(self, following: FollowerRole, delay_ms: float) -> None:
        asyncio.get_running_loop().call_later(delay_ms / 1000, self._tell, following)

    # Hearing

    def _heard(self, number: int, response: Any) -> None:
        """The answer, on the spot: what is in it is only lent."""
        self._in_flight -= 1
        if self._is_closed:
            return
        try:
            self._hear(response, number)
        except Exception as error:
            self._gave_up(error)
        else:
            self._failures = 0
            self._go_on()

    def _failed(self, error: Exception) -> None:
        self._in_flight -= 1
        if not self._is_closed:
            self._gave_up(error)

    def _gave_up(self, error: Exception) -> None:
        if isinstance(error, KafkaError | OSError):
            self._begin_anew(error)
        else:
            self._means.failed(f"fetching from broker {self.leader} failed", error)

    def _hear(self, response: Any, number: int) -> None:
        if type(response) is tuple:
            session_id, answers = response
            self._hear_plainly(session_id, answers, number)
            return
        if response.error_code:
            raise KafkaError(f"it refused the fetch with {error_of(response.error_code).code.name}")
        self._session_id = response.session_id
        now_ms = self._means.clock.wall_ms()
        for topic in response.responses:
            for answer in topic.partitions:
                following = self._followed.get((topic.topic_id, answer.partition_index))
                if following is not None and following.is_open_to(number):
                    self._hear_one(following, answer, now_ms)

    def _hear_plainly(self, session_id: int, answers: list[PartitionResponse], number: int) -> None:
        """The same for an answer in which nothing went wrong, as `follower_fetch` has read it."""
        self._session_id = session_id
        now_ms = self._means.clock.wall_ms()
        for answer in answers:
            following = self._followed.get(answer[:2])
            if following is not None and following.is_open_to(number):
                self._take_or_back_off(following, answer, now_ms)

    def _hear_one(self, following: FollowerRole, answer: Any, now_ms: int) -> None:
        if answer.error_code:
            self._refused(following, answer.error_code)
        elif answer.diverging_epoch is not None:
            diverging = answer.diverging_epoch
            self._cut_or_back_off(
                following, following.machine.diverged(EpochEnd(diverging.epoch, diverging.end_offset))
            )
        else:
            self._take_or_back_off(following, answer, now_ms)

    def _take_or_back_off(self, following: FollowerRole, answer: Any, now_ms: int) -> None:
        try:
            self._take(following, answer, now_ms)
        except (KafkaError, OSError) as error:
            self._failed_for_now(following, error)

    def _failed_for_now(self, following: FollowerRole, error: KafkaError | OSError) -> None:
        """A batch that is damaged, a disk that is full: ask again. What came before it is in the log."""
        logger.warning("%s cannot be followed for now: %s", following.partition.name, error)
        self._bring_to_disk(following)
        self._back_off(following)

    def _take(self, following: FollowerRole, answer: Any, now_ms: int) -> None:
        partition = following.partition
        start_offset = partition.log.start_offset
        count = following.take(answer, now_ms)
        following.failures = 0
        if count or partition.log.start_offset != start_offset:
            self._to_tell[following] = None
        if not count:
            return
        if not following.is_in_sync:
            self._means.throttles.fetched(
                partition.log.settings, partition.name.partition, self._means.node_id, count, is_in_sync=False
            )
        if following.waits_for_sync:
            self._unsynced[following] = None

    def _bring_to_disk(self, following: FollowerRole) -> None:
        """What is in the log, if that has to be on disk before the leader may hear of it."""
        if following.waits_for_sync:
            self._unsynced[following] = None
            following.partition.bring_to_disk()

    def _synced(self, following: FollowerRole) -> None:
        """All of the log is on disk; when that is so of each, the leader may hear how far we are."""
        if following in self._unsynced:
            del self._unsynced[following]
            self._go_on()

    def _refused(self, following: FollowerRole, code: int) -> None:
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            following.is_held = True
            self._spawn(self._find_range(following))
            return
        logger.debug("%s: broker %d answers %s", following.partition.name, self.leader, error_of(code).code.name)
        self._back_off(following)

    def _back_off(self, following: FollowerRole) -> None:
        self._to_tell.pop(following, None)
        self._tell_later(following, self._backoff_ms(following.failures))
        following.failures += 1

    def _backoff_ms(self, failures: int) -> float:
        longest_ms = self._means.settings().replica_fetch_backoff_ms
        return float(min(BACKOFF_FIRST_MS * 2 ** min(failures, 16), longest_ms))

    def _begin_anew(self, error: KafkaError | OSError) -> None:
        """The fetch failed as a whole: what the leader knows of us, nobody knows. One pause for all that failed."""
        logger.debug("Broker %d cannot be fetched from: %s", self.leader, error)
        self._session_id = NO_FETCH_SESSION
        if self._pause is None and not self._is_closed:
            delay_ms = self._backoff_ms(self._failures)
            self._failures += 1
            self._pause = asyncio.get_running_loop().call_later(delay_ms / 1000, self._end_pause)

    def _end_pause(self) -> None:
        self._pause = None
        self._go_on()

    # Cutting

    def _cut_or_back_off(self, following: FollowerRole, cut: Truncation) -> None:
        try:
            self._cut_off(following, cut)
        except (KafkaError, OSError) as error:
            self._failed_for_now(following, error)

    def _cut_off(self, following: FollowerRole, cut: Truncation) -> None:
        logger.info("%s is cut as broker %d says: %s", following.partition.name, self.leader, cut)
        replay = following.replay_for(cut)
        if replay is None or not replay.step():
            self._cut_now(following, cut, replay)
        else:
            following.is_held = True
            self._spawn(self._cut_later(following, cut, replay))

    def _cut_now(self, following: FollowerRole, cut: Truncation, replay: ProducerReplay | None) -> None:
        following.is_held = False
        following.cut(cut, replay)
        self._means.cuts.add(following.partition)

    async def _cut_later(self, following: FollowerRole, cut: Truncation, replay: ProducerReplay) -> None:
        """In slices: the loop serves others in between. Whoever leads meanwhile, or follows anew, has cut nothing."""
        try:
            while following.is_current and replay.step():
                await asyncio.sleep(0)
            if following.is_current:
                self._cut_now(following, cut, replay)
        except (KafkaError, OSError) as error:
            logger.warning("%s cannot be cut for now: %s", following.partition.name, error)
            following.is_held = False
            self._back_off(following)

    async def _find_range(self, following: FollowerRole) -> None:
        """The leader has nothing at our offset. What does it have?"""
        try:
            start_offset = await self._list_offset(following, EARLIEST)
            end_offset = await self._list_offset(following, LATEST)
        except (KafkaError, OSError) as error:
            logger.warning("%s: broker %d does not say its range: %s", following.partition.name, self.leader, error)
            following.is_held = False
            self._back_off(following)
            return
        if not following.is_current:
            return
        following.is_held = False
        cut = following.machine.offset_out_of_range(start_offset, end_offset)
        if cut is not None:
            self._cut_or_back_off(following, cut)
        else:
            self._back_off(following)

    async def _list_offset(self, following: FollowerRole, timestamp: int) -> int:
        means, name = self._means, following.partition.name
        asked = ListOffsetsRequest.ListOffsetsPartition(
            partition_index=name.partition,
            current_leader_epoch=following.machine.leader_epoch,
            timestamp=timestamp,
        )
        topics = [ListOffsetsRequest.ListOffsetsTopic(name=name.topic, partitions=[asked])]
        address = means.address_of(self.leader)
        if address is None:
            raise ConnectionError(f"broker {self.leader} has no address")
        request = ListOffsetsRequest(replica_id=means.node_id, topics=topics)
        response = await means.peers.ask(address, request, timeout_ms=LIST_MS, purpose=f"{self._purpose} range")
        answer = response.topics[0].partitions[0]
        if answer.error_code:
            raise KafkaError(f"it refused with {error_of(answer.error_code).code.name}")
        return int(answer.offset)

    # Tasks

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._means.failed(f"fetching from broker {self.leader} failed", error)
        else:
            self._go_on()


def _message(question: follower_fetch.FollowerFetchRequest, forgotten: Iterable[tuple[bytes, int]]) -> FetchRequest:
    """The same for the codec, which can say everything."""
    named: dict[bytes, list[Any]] = {}
    for topic_id, partition, leader_epoch, offset, last_epoch, start_offset, max_bytes in question.partitions:
        asked = FetchRequest.FetchPartition(
            partition=partition,
            current_leader_epoch=leader_epoch,
            fetch_offset=offset,
            last_fetched_epoch=last_epoch,
            log_start_offset=start_offset,
            partition_max_bytes=max_bytes,
        )
        named.setdefault(topic_id, []).append(asked)
    to_forget: dict[bytes, list[int]] = {}
    for topic_id, index in forgotten:
        to_forget.setdefault(topic_id, []).append(index)
    return FetchRequest(
        replica_state=FetchRequest.ReplicaState(replica_id=question.replica, replica_epoch=question.broker_epoch),
        max_wait_ms=question.max_wait_ms,
        min_bytes=question.min_bytes,
        max_bytes=question.max_bytes,
        session_id=question.session_id,
        session_epoch=question.session_epoch,
        topics=[FetchRequest.FetchTopic(topic_id=each, partitions=asked) for each, asked in named.items()],
        forgotten_topics_data=[
            FetchRequest.ForgottenTopic(topic_id=each, partitions=indexes) for each, indexes in to_forget.items()
        ],
    )
