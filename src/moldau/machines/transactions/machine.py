"""The transactional ids of one shard, a partition of `__transaction_state`: decided by requests, changed by records."""

from collections.abc import Callable, Hashable, Mapping, Sequence

from moldau.machines.decision import Decision, Now
from moldau.machines.transactions.records import Record
from moldau.machines.transactions.settings import TransactionSettings
from moldau.machines.transactions.state import ProducerIdentity, TransactionsState
from moldau.model.errors import ErrorCode
from moldau.model.ids import ProducerId, TopicPartition
from moldau.wire import messages


class ProducerIdNeeded(Exception):
    """Nothing is decided yet: a fresh producer id is needed. Get one, then ask again with it."""


class TransactionsMachine:
    """What producers, admins and time ask of a shard.

    `state` is replicated; everything else is soft. Refusals are raised: `ProducerFenced` is `INVALID_PRODUCER_EPOCH` to
    clients of versions that do not know it, which is the handlers' business.
    """

    def __init__(
        self,
        settings: TransactionSettings,
        *,
        wall_ahead_ms: float = 0.0,
        coordinator_epoch: Callable[[], int] = lambda: 0,
    ) -> None:
        """`wall_ahead_ms` is by how much wall time is ahead of monotonic time, until a request tells it anew.

        `coordinator_epoch` gives the leader epoch of the shard's partition, by which markers of a former coordinator
        are refused.
        """
        self.settings = settings  # may be replaced while running
        self.state = TransactionsState()
        self._wall_ahead_ms = wall_ahead_ms
        self._coordinator_epoch = coordinator_epoch

    def apply(self, record: Record, offset: int) -> None:  # noqa: ARG002
        self.state.apply(record)

    # Producers

    def decide_init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        *,
        expected: ProducerIdentity | None,
        fresh_producer_id: ProducerId | None = None,
        now: Now,
    ) -> Decision[Record, ProducerIdentity]:
        """A producer begins, and fences whoever had the id before it, or goes on after an error if it is `expected`.

        An open transaction is aborted first; meanwhile `ConcurrentTransactions` is the answer. Raises
        `ProducerIdNeeded` where there has to be a fresh id and none is given.
        """
        raise NotImplementedError

    def decide_add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Sequence[TopicPartition],
        *,
        client_version: int,
        now: Now,
    ) -> Decision[Record, None]:
        """Partitions join the transaction, which begins with the first; all of them, or none and a refusal is raised.

        Offsets of a group join as the partition of `__consumer_offsets` that holds the group.
        """
        raise NotImplementedError

    def verify_partitions(
        self, transactional_id: str, producer: ProducerIdentity, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Whether each is part of the open transaction: `NONE`, or `TRANSACTION_ABORTABLE` where it is not."""
        raise NotImplementedError

    def decide_end(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        *,
        is_commit: bool,
        client_version: int,
        fresh_producer_id: ProducerId | None = None,
        now: Now,
    ) -> Decision[Record, ProducerIdentity]:
        """The transaction is committed or aborted; effects then tell its partitions.

        The answer is who the producer is from now on: from version 2 on its epoch is another after each transaction.
        The same request again gets the same answer. Raises `ProducerIdNeeded` where epochs are exhausted and no fresh
        id is given.
        """
        raise NotImplementedError

    def decide_markers_written(
        self, transactional_id: str, producer: ProducerIdentity, partitions: Sequence[TopicPartition], *, now: Now
    ) -> Decision[Record, None]:
        """These partitions need no marker of this `SendMarkers` any more; with the last, the transaction is complete.

        What is told of an end that is complete already, or told twice, changes nothing.
        """
        raise NotImplementedError

    # Admins

    def describe(self, transactional_id: str) -> messages.DescribeTransactionsResponse.TransactionState:
        """The answer carries its error code."""
        raise NotImplementedError

    def list_transactions(
        self,
        *,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        longer_than_ms: int = -1,
        now: Now,
    ) -> list[messages.ListTransactionsResponse.TransactionState]:
        """All of them, or those in one of these states, of one of these producers, open for longer than that."""
        raise NotImplementedError

    @property
    def open_count(self) -> int:
        """How many transactions have begun and are not complete."""
        return len(self.state.open)

    def oldest_open_ms(self, now: Now) -> int:
        """For how long the oldest open transaction has been so; 0 where there is none."""
        raise NotImplementedError

    # Time

    def decide_elected(self, now_ms: float) -> Decision[Record, None]:
        """Markers of all prepared ends are sent again; transactions time out as their records say."""
        raise NotImplementedError

    def decide_timed_out(self, event: Hashable, now_ms: float) -> Decision[Record, None]:
        raise NotImplementedError
