"""Fetches of other nodes that wait at the leader of the metadata log for something new."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from moldau.broker.drivers.metadata_log import MetadataLog
from moldau.machines.raft import FailWaitingFetches, Leadership, RespondToFetch, ServeFetch, Ticket
from moldau.model.errors import CorruptMessage


@dataclass(frozen=True, slots=True)
class Served:
    """The answer to a fetch, with what the log held at that moment."""

    records: bytes
    start_offset: int
    high_watermark: int
    leadership: Leadership


@dataclass(slots=True)
class _Waiting:
    wanted: ServeFetch
    max_bytes: int
    answer: "asyncio.Future[RespondToFetch | Served]"


class WaitingFetches:
    """Answered as soon as the log has grown or more of it is committed, so that commits spread without delay."""

    def __init__(
        self,
        log: MetadataLog,
        facts: Callable[[], tuple[int, Leadership]],
        failed: Callable[[BaseException], None],
    ) -> None:
        """`facts` are the high watermark and who leads; `failed` hears that the log cannot be read any more."""
        self._log = log
        self._facts = facts
        self._failed = failed
        self._waiting: dict[Ticket, _Waiting] = {}

    def add(self, wanted: ServeFetch, max_bytes: int, answer: "asyncio.Future[RespondToFetch | Served]") -> None:
        self._waiting[wanted.ticket] = _Waiting(wanted, max_bytes, answer)
        self.look()

    def look(self) -> None:
        """Answer those for whom there is something new."""
        if self._waiting:
            high_watermark, _ = self._facts()
            for ticket, each in list(self._waiting.items()):
                wanted = each.wanted
                if self._log.end_offset > wanted.offset or high_watermark > wanted.high_watermark:
                    self.serve(ticket)

    def serve(self, ticket: Ticket) -> None:
        """Answer one with what there is, be it nothing; its patience may have ended."""
        each = self._waiting.pop(ticket, None)
        if each is not None and not each.answer.done():
            high_watermark, leadership = self._facts()
            try:
                records = self._log.read(each.wanted.offset, each.max_bytes)
            except (CorruptMessage, OSError) as error:  # somebody whose log is whole must lead
                self._failed(error)
                return
            each.answer.set_result(Served(records, self._log.start_offset, high_watermark, leadership))

    def forget(self, ticket: Ticket) -> None:
        """Whoever asked has gone."""
        self._waiting.pop(ticket, None)

    def fail(self, failure: FailWaitingFetches) -> None:
        """This node leads no more."""
        waiting, self._waiting = self._waiting, {}
        for ticket, each in waiting.items():
            if not each.answer.done():
                high_watermark, _ = self._facts()
                each.answer.set_result(
                    RespondToFetch(
                        ticket=ticket,
                        error=failure.error,
                        leadership=failure.leadership,
                        high_watermark=high_watermark,
                    )
                )
