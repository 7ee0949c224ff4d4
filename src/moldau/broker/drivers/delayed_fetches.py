"""Fetches of other nodes that wait at the leader of the metadata log for new records."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from moldau.broker.drivers.metadata_log import MetadataLog
from moldau.machines.raft import FailWaitingFetches, Leadership, RespondToFetch, ServeFetch, Ticket
from moldau.model.errors import CorruptMessage


@dataclass(frozen=True, slots=True)
class FetchResult:
    """A fetch response, with the state of the log when it was read."""

    records: bytes
    start_offset: int
    high_watermark: int
    leadership: Leadership


@dataclass(slots=True)
class _DelayedFetch:
    wanted: ServeFetch
    max_bytes: int
    response: "asyncio.Future[RespondToFetch | FetchResult]"


class DelayedFetches:
    """Completed as soon as the log grows or the high watermark advances, so that commits propagate without delay."""

    def __init__(
        self,
        log: MetadataLog,
        log_state: Callable[[], tuple[int, Leadership]],
        failed: Callable[[BaseException], None],
    ) -> None:
        """`facts` returns the high watermark and the leadership; `failed` is called when the log cannot be read."""
        self._log = log
        self._log_state = log_state
        self._failed = failed
        self._waiting: dict[Ticket, _DelayedFetch] = {}

    def add(self, wanted: ServeFetch, max_bytes: int, response: "asyncio.Future[RespondToFetch | FetchResult]") -> None:
        self._waiting[wanted.ticket] = _DelayedFetch(wanted, max_bytes, response)
        self.complete_ready()

    def complete_ready(self) -> None:
        """Complete the fetches that have something new."""
        if self._waiting:
            high_watermark, _ = self._log_state()
            for ticket, each in list(self._waiting.items()):
                wanted = each.wanted
                if self._log.end_offset > wanted.offset or high_watermark > wanted.high_watermark:
                    self.serve(ticket)

    def serve(self, ticket: Ticket) -> None:
        """Complete one fetch with whatever there is, perhaps nothing; it may have timed out."""
        each = self._waiting.pop(ticket, None)
        if each is not None and not each.response.done():
            high_watermark, leadership = self._log_state()
            try:
                records = self._log.read(each.wanted.offset, each.max_bytes)
            except (CorruptMessage, OSError) as error:  # a node with an intact log must lead
                self._failed(error)
                return
            each.response.set_result(FetchResult(records, self._log.start_offset, high_watermark, leadership))

    def forget(self, ticket: Ticket) -> None:
        """Drop a fetch whose client has gone."""
        self._waiting.pop(ticket, None)

    def fail(self, failure: FailWaitingFetches) -> None:
        """Fail all fetches: this node is no longer the leader."""
        waiting, self._waiting = self._waiting, {}
        for ticket, each in waiting.items():
            if not each.response.done():
                high_watermark, _ = self._log_state()
                each.response.set_result(
                    RespondToFetch(
                        ticket=ticket,
                        error=failure.error,
                        leadership=failure.leadership,
                        high_watermark=high_watermark,
                    )
                )
