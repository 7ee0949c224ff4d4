"""Fetches from one leader, for all partitions that follow it, in one incremental fetch session.

    fetch --> leader responds as soon as there is news --> append --> next fetch, which reports our log end offsets
               '-- a partition to add meanwhile: a second fetch names it and ends the wait of the first

At most two fetches are in flight (`IN_FLIGHT_MAX`), which the leadership check relies on. Records are appended while
the response is still in the receive buffer, so they are never copied. Errors of one partition back off that partition;
an error of the whole fetch starts a new session after one pause, because the leader's view of us is unknown then.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from moldau.broker.cluster.peers import Peers
from moldau.broker.configs.replica_settings import ReplicaSettings
from moldau.broker.partitions.follower_role import FetchedRecords, FollowerRole
from moldau.broker.partitions.leadership_check import IN_FLIGHT_MAX
from moldau.broker.replicas.throttles import Throttles
from moldau.broker.replicas.truncation_sync import TruncationSync
from moldau.broker.runtime.rate_limited_logger import RateLimitedLogger
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
from moldau.wire.messages import FetchRequest, FetchResponse, ListOffsetsRequest

logger = logging.getLogger(__name__)

RESPONSE_BYTES_MAX: Final = 2 * MiB  # a response is validated and written in one turn of the event loop
BACKOFF_FIRST_MS: Final = 10.0  # after a leader change, we may know of it before the new leader does
LIST_MS: Final = 5000.0


@dataclass(frozen=True, slots=True)
class FetcherDependencies:
    """The services of the node that fetchers use."""

    node_id: int
    peers: Peers
    clock: Clock
    limited_logger: RateLimitedLogger
    truncation_sync: TruncationSync
    throttles: Throttles
    settings: Callable[[], ReplicaSettings]
    address_of: Callable[[int], Address | None]
    broker_epoch: Callable[[], int]
    failed: Callable[[str, BaseException], None]


class ReplicaFetcher:
    """See the module. `add` and `remove` partitions as the metadata changes; `close` ends it."""

    def __init__(self, leader: int, purpose: str, dependencies: FetcherDependencies) -> None:
        self.leader = leader
        self._purpose = purpose
        self._dependencies = dependencies
        self._followed: dict[tuple[bytes, int], FollowerRole] = {}
        self._to_name: dict[FollowerRole, None] = {}
        self._to_forget: dict[tuple[bytes, int], None] = {}
        self._unsynced: dict[FollowerRole, None] = {}
        self._session_id = NO_FETCH_SESSION
        self._session_epoch = INITIAL_SESSION_EPOCH
        self._broker_epoch = NO_EPOCH  # of the session
        self._number = 0  # of the last fetch
        self._in_flight = 0
        self._connecting: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures = 0
        self._pause: asyncio.TimerHandle | None = None
        self._is_wake_scheduled = False
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._followed)

    # Partitions

    def add(self, following: FollowerRole) -> None:
        """Add a partition; an older role of it must have been removed before."""
        self._followed[following.key] = following
        following.on_ready = lambda: self._name_next(following)
        following.on_synced = lambda: self._synced(following)
        self._bring_to_disk(following)
        self._name_next(following)

    def remove(self, following: FollowerRole) -> None:
        if self._followed.get(following.key) is following:
            del self._followed[following.key]
            self._leave_session(following)
        self._to_name.pop(following, None)
        self._synced(following)

    def _leave_session(self, following: FollowerRole) -> None:
        if following.is_in_session:
            following.is_in_session = False
            self._to_forget[following.key] = None

    def _name_next(self, following: FollowerRole) -> None:
        """Name it in the next fetch, without waiting for the one in flight."""
        if following.can_be_fetched and not self._is_closed:
            self._to_name[following] = None
            self.wake()

    def wake(self) -> None:
        """There is something to send. Once per turn, however many partitions change."""
        if not self._is_wake_scheduled and not self._is_closed:
            self._is_wake_scheduled = True
            asyncio.get_running_loop().call_soon(self._woken)

    def _woken(self) -> None:
        self._is_wake_scheduled = False
        self._fetch_if_ready()

    async def close(self) -> None:
        self._is_closed = True
        if self._pause is not None:
            self._pause.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Requests

    def _fetch_if_ready(self) -> None:
        """Fetch, unless there is a reason to wait. A second fetch is sent only to end the wait of the first."""
        if self._is_closed or self._unsynced or not self._followed or self._pause or self._connecting:
            return
        if self._dependencies.broker_epoch() != self._broker_epoch:
            # Re-registered: the leader attributes this session to an earlier broker epoch.
            self._session_id = NO_FETCH_SESSION
        has_room = self._in_flight < IN_FLIGHT_MAX  # the leadership check relies on it
        may_interrupt = has_room and bool(self._to_name) and self._session_id != NO_FETCH_SESSION
        if (not self._in_flight or may_interrupt) and self._dependencies.broker_epoch() >= 0:
            self._send_fetch()

    def _send_fetch(self) -> None:
        """Without a task or a future: the next fetch is sent as soon as the response to the last one is appended."""
        dependencies = self._dependencies
        settings = dependencies.settings()
        timeout_ms = settings.replica_fetch_wait_max_ms + settings.replica_socket_timeout_ms
        address = dependencies.address_of(self.leader)
        if address is None:
            self._restart_session(ConnectionError(f"broker {self.leader} has no address"))
            return
        link = dependencies.peers.link_to(address, self._purpose)
        if link is None:
            self._connecting = self._spawn(self._connect(address, timeout_ms))
            return
        partitions = self._name(settings)
        forgotten, self._to_forget = self._to_forget, {}
        request = self._build_request(partitions, settings)
        on_response = partial(self._on_response, self._number)
        self._in_flight += 1
        if self._session_id != NO_FETCH_SESSION and not forgotten and len(partitions) <= follower_fetch.COUNT_MAX:
            was_sent = link.try_send_raw(
                FetchRequest,
                (follower_fetch.OLDEST, follower_fetch.NEWEST),
                timeout_ms=timeout_ms,
                write=request.write,
                read=follower_fetch.read_response,
                on_response=on_response,
                on_error=self._failed,
            )
            if was_sent:
                return
        link.send_borrowing(
            _message(request, forgotten), timeout_ms=timeout_ms, on_response=on_response, on_error=self._failed
        )

    async def _connect(self, address: Address, timeout_ms: float) -> None:
        try:
            await self._dependencies.peers.connect(address, self._purpose, timeout_ms)
        except (KafkaError, OSError) as error:
            self._restart_session(error)
        finally:
            self._connecting = None

    def _name(self, settings: ReplicaSettings) -> list[FetchPartition]:
        """The partitions to name in the next fetch."""
        if self._session_id == NO_FETCH_SESSION:
            self._to_forget.clear()
            self._session_epoch = INITIAL_SESSION_EPOCH
            self._broker_epoch = self._dependencies.broker_epoch()
            self._to_name = {each: None for each in self._followed.values() if each.can_be_fetched}
        self._number += 1
        partitions: list[FetchPartition] = []
        for following in self._to_name:
            if following.is_in_sync or not self._is_throttled(following):
                following.is_in_session = True
                partitions.append(following.build_fetch_partition(self._number, settings.replica_fetch_max_bytes))
        self._to_name.clear()
        return partitions

    def _build_request(
        self, partitions: list[FetchPartition], settings: ReplicaSettings
    ) -> follower_fetch.FollowerFetchRequest:
        dependencies = self._dependencies
        request = follower_fetch.FollowerFetchRequest(
            NO_VERSION,
            NO_CORRELATION,
            settings.replica_fetch_wait_max_ms,
            settings.replica_fetch_min_bytes,
            min(settings.replica_fetch_response_max_bytes, RESPONSE_BYTES_MAX),
            self._session_id,
            self._session_epoch,
            partitions,
            dependencies.node_id,
            dependencies.broker_epoch(),
        )
        self._session_epoch = 1 if self._session_epoch == SESSION_EPOCH_MAX else self._session_epoch + 1
        return request

    def _is_throttled(self, following: FollowerRole) -> bool:
        partition = following.partition
        delay_ms = self._dependencies.throttles.follower_delay_ms(
            partition.log.settings,
            partition.name.partition,
            self._dependencies.node_id,
            is_in_sync=following.is_in_sync,
        )
        if delay_ms <= 0:
            return False
        self._leave_session(following)
        self._name_later(following, delay_ms)
        return True

    def _name_later(self, following: FollowerRole, delay_ms: float) -> None:
        asyncio.get_running_loop().call_later(delay_ms / 1000, self._name_next, following)

    # Responses

    def _on_response(self, number: int, response: FetchResponse | tuple[int, list[PartitionResponse]]) -> None:
        """Process the response at once: its buffer is only borrowed."""
        self._in_flight -= 1
        if self._is_closed:
            return
        try:
            self._process(response, number)
        except Exception as error:
            self._fail_on_bug(error)
        else:
            self._failures = 0
            self._fetch_if_ready()

    def _failed(self, error: Exception) -> None:
        self._in_flight -= 1
        if not self._is_closed:
            self._fail_on_bug(error)

    def _fail_on_bug(self, error: Exception) -> None:
        if isinstance(error, KafkaError | OSError):
            self._restart_session(error)
        else:
            self._dependencies.failed(f"Fetching from broker {self.leader} failed", error)

    def _process(self, response: FetchResponse | tuple[int, list[PartitionResponse]], number: int) -> None:
        if isinstance(response, tuple):
            session_id, responses = response
            self._process_plain(session_id, responses, number)
            return
        if response.error_code:
            raise KafkaError(f"the fetch failed with {error_of(response.error_code).code.name}")
        self._session_id = response.session_id
        now_ms = self._dependencies.clock.wall_ms()
        for topic in response.responses:
            for partition in topic.partitions:
                following = self._followed.get((topic.topic_id, partition.partition_index))
                if following is not None and following.accepts_response(number):
                    self._process_partition(following, partition, now_ms)

    def _process_plain(self, session_id: int, responses: list[PartitionResponse], number: int) -> None:
        """The same for a response without errors, as decoded by `follower_fetch`."""
        self._session_id = session_id
        now_ms = self._dependencies.clock.wall_ms()
        for response in responses:
            following = self._followed.get(response[:2])
            if following is not None and following.accepts_response(number):
                self._append_or_back_off(following, response, now_ms)

    def _process_partition(self, following: FollowerRole, response: FetchResponse.PartitionData, now_ms: int) -> None:
        if response.error_code:
            self._handle_error(following, response.error_code)
        elif response.diverging_epoch is not None:
            diverging = response.diverging_epoch
            self._truncate_or_back_off(
                following, following.machine.diverged(EpochEnd(diverging.epoch, diverging.end_offset))
            )
        else:
            self._append_or_back_off(following, response, now_ms)

    def _append_or_back_off(self, following: FollowerRole, response: FetchedRecords, now_ms: int) -> None:
        try:
            self._append(following, response, now_ms)
        except (KafkaError, OSError) as error:
            self._retry_later(following, error)

    def _retry_later(self, following: FollowerRole, error: KafkaError | OSError) -> None:
        """A corrupt batch or a full disk: retry. Batches before it are in the log."""
        text = f"{following.partition.name}: appending fetched records failed, will retry: {error}"
        self._dependencies.limited_logger.write("append", text)
        self._bring_to_disk(following)
        self._back_off(following)

    def _append(self, following: FollowerRole, response: FetchedRecords, now_ms: int) -> None:
        partition = following.partition
        count = following.append_response(response, now_ms)
        following.failures = 0
        if count or partition.log.start_offset != following.named_start_offset:
            self._to_name[following] = None
        if not count:
            return
        if not following.is_in_sync:
            self._dependencies.throttles.fetched(
                partition.log.settings, partition.name.partition, self._dependencies.node_id, count, is_in_sync=False
            )
        if following.waits_for_sync:
            self._unsynced[following] = None

    def _bring_to_disk(self, following: FollowerRole) -> None:
        """Flush the log, if the leader may only count flushed records."""
        if following.waits_for_sync:
            self._unsynced[following] = None
            following.partition.bring_to_disk()

    def _synced(self, following: FollowerRole) -> None:
        """The whole log is flushed; once that holds for all partitions, the next fetch may report our offsets."""
        if following in self._unsynced:
            del self._unsynced[following]
            self._fetch_if_ready()

    def _handle_error(self, following: FollowerRole, code: int) -> None:
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            following.is_held = True
            self._spawn(self._find_range(following))
            return
        logger.debug("%s: broker %d responded %s", following.partition.name, self.leader, error_of(code).code.name)
        self._back_off(following)

    def _back_off(self, following: FollowerRole) -> None:
        self._to_name.pop(following, None)
        self._name_later(following, self._backoff_ms(following.failures))
        following.failures += 1

    def _backoff_ms(self, failures: int) -> float:
        longest_ms = self._dependencies.settings().replica_fetch_backoff_ms
        return float(min(BACKOFF_FIRST_MS * 2 ** min(failures, 16), longest_ms))

    def _restart_session(self, error: KafkaError | OSError) -> None:
        """The whole fetch failed, so the leader's view of us is unknown. One pause for all partitions."""
        logger.debug("Fetch from broker %d failed: %s", self.leader, error)
        self._session_id = NO_FETCH_SESSION
        if self._pause is None and not self._is_closed:
            delay_ms = self._backoff_ms(self._failures)
            self._failures += 1
            self._pause = asyncio.get_running_loop().call_later(delay_ms / 1000, self._end_pause)

    def _end_pause(self) -> None:
        self._pause = None
        self._fetch_if_ready()

    # Truncation

    def _truncate_or_back_off(self, following: FollowerRole, truncation: Truncation) -> None:
        try:
            self._truncate(following, truncation)
        except (KafkaError, OSError) as error:
            self._retry_later(following, error)

    def _truncate(self, following: FollowerRole, truncation: Truncation) -> None:
        logger.info("%s: truncating to match leader %d: %s", following.partition.name, self.leader, truncation)
        replay = following.replay_for(truncation)
        if replay is None or not replay.step():
            self._truncate_now(following, truncation, replay)
        else:
            following.is_held = True
            self._spawn(self._truncate_in_slices(following, truncation, replay))

    def _truncate_now(self, following: FollowerRole, truncation: Truncation, replay: ProducerReplay | None) -> None:
        following.is_held = False
        following.truncate(truncation, replay)
        self._dependencies.truncation_sync.add(following.partition)

    async def _truncate_in_slices(
        self, following: FollowerRole, truncation: Truncation, replay: ProducerReplay
    ) -> None:
        """In slices that do not stall the event loop. If the role changes meanwhile, nothing is truncated."""
        try:
            while following.is_current and replay.step():
                await asyncio.sleep(0)
            if following.is_current:
                self._truncate_now(following, truncation, replay)
        except (KafkaError, OSError) as error:
            logger.warning("%s: truncation failed, will retry: %s", following.partition.name, error)
            following.is_held = False
            self._back_off(following)

    async def _find_range(self, following: FollowerRole) -> None:
        """Our offset is out of the leader's range: look up that range."""
        try:
            start_offset = await self._list_offset(following, EARLIEST)
            end_offset = await self._list_offset(following, LATEST)
        except (KafkaError, OSError) as error:
            logger.warning("%s: ListOffsets to broker %d failed: %s", following.partition.name, self.leader, error)
            following.is_held = False
            self._back_off(following)
            return
        if not following.is_current:
            return
        following.is_held = False
        truncation = following.machine.offset_out_of_range(start_offset, end_offset)
        if truncation is not None:
            self._truncate_or_back_off(following, truncation)
        else:
            self._back_off(following)

    async def _list_offset(self, following: FollowerRole, timestamp: int) -> int:
        dependencies, name = self._dependencies, following.partition.name
        partition = ListOffsetsRequest.ListOffsetsPartition(
            partition_index=name.partition,
            current_leader_epoch=following.machine.leader_epoch,
            timestamp=timestamp,
        )
        topics = [ListOffsetsRequest.ListOffsetsTopic(name=name.topic, partitions=[partition])]
        address = dependencies.address_of(self.leader)
        if address is None:
            raise ConnectionError(f"broker {self.leader} has no address")
        request = ListOffsetsRequest(replica_id=dependencies.node_id, topics=topics)
        response = await dependencies.peers.ask(address, request, timeout_ms=LIST_MS, purpose=f"{self._purpose} range")
        result = response.topics[0].partitions[0]
        if result.error_code:
            raise KafkaError(f"ListOffsets failed with {error_of(result.error_code).code.name}")
        return int(result.offset)

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
            self._dependencies.failed(f"Fetching from broker {self.leader} failed", error)
        else:
            self._fetch_if_ready()


def _message(request: follower_fetch.FollowerFetchRequest, forgotten: Iterable[tuple[bytes, int]]) -> FetchRequest:
    """The same as a message for the generic codec, which supports all fields."""
    named: dict[bytes, list[FetchRequest.FetchPartition]] = {}
    for topic_id, partition, leader_epoch, offset, last_epoch, start_offset, max_bytes in request.partitions:
        partitions = FetchRequest.FetchPartition(
            partition=partition,
            current_leader_epoch=leader_epoch,
            fetch_offset=offset,
            last_fetched_epoch=last_epoch,
            log_start_offset=start_offset,
            partition_max_bytes=max_bytes,
        )
        named.setdefault(topic_id, []).append(partitions)
    to_forget: dict[bytes, list[int]] = {}
    for topic_id, index in forgotten:
        to_forget.setdefault(topic_id, []).append(index)
    return FetchRequest(
        replica_state=FetchRequest.ReplicaState(replica_id=request.replica, replica_epoch=request.broker_epoch),
        max_wait_ms=request.max_wait_ms,
        min_bytes=request.min_bytes,
        max_bytes=request.max_bytes,
        session_id=request.session_id,
        session_epoch=request.session_epoch,
        topics=[FetchRequest.FetchTopic(topic_id=each, partitions=partitions) for each, partitions in named.items()],
        forgotten_topics_data=[
            FetchRequest.ForgottenTopic(topic_id=each, partitions=indexes) for each, indexes in to_forget.items()
        ],
    )
