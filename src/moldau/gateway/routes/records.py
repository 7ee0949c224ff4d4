"""Read records: a page of JSON, lines of JSON, or a live tail as server-sent events."""

from typing import Annotated, Final, Literal

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from moldau.client.types import Isolation
from moldau.console.errors import ConsoleError
from moldau.console.read_request import PARTITIONS_MAX
from moldau.gateway.access import Caller, Logins, Reader
from moldau.gateway.admission import Admission
from moldau.gateway.record_json import json_bytes
from moldau.gateway.record_reads import Tail, Wanted, forward_search, read_page, stream_lines, tail_positions

router = APIRouter(tags=["records"])

PAGE_RECORDS_MAX: Final = 1_000
PAGE_RECORDS: Final = 100
STREAM_RECORDS_MAX: Final = 1_000_000
POSITION_CHARACTERS_MAX: Final = 60_000
EVENTS: Final = "text/event-stream"
LINES: Final = "application/x-ndjson"


@router.get("/topics/{topic}/records")
async def read_records(
    topic: str,
    request: Request,
    caller: Reader,
    start: Annotated[
        str | None,
        Query(alias="from", max_length=POSITION_CHARACTERS_MAX, description="start, end, 42, -10, @2026-01-01T10:00"),
    ] = None,
    until: Annotated[
        str | None, Query(max_length=POSITION_CHARACTERS_MAX, description="like from; default: end")
    ] = None,
    limit: Annotated[int | None, Query(ge=1, le=STREAM_RECORDS_MAX)] = None,
    partition: Annotated[list[int] | None, Query(max_length=PARTITIONS_MAX)] = None,
    key: Annotated[str | None, Query(max_length=10_000)] = None,
    isolation: Literal["committed", "uncommitted"] = "committed",
    format: Literal["json", "ndjson", "sse"] | None = None,
    accept: Annotated[str, Header()] = "",
    last_event_id: Annotated[str | None, Header(max_length=POSITION_CHARACTERS_MAX)] = None,
) -> Response:
    """Read records as JSON, as lines (NDJSON) or as server-sent events (a live tail), by `format` or Accept.

    JSON has up to `limit` records and, as `next`, the position of the rest: pass it as `from`. A page that searches for
    a key may have fewer records although there is a `next`.
    """
    chosen = format or _accepted(accept)
    default = "end" if chosen == "sse" else "start"
    wanted = Wanted(
        last_event_id or start or default if chosen == "sse" else start or default,
        until or "end",
        limit or (STREAM_RECORDS_MAX if chosen == "ndjson" else PAGE_RECORDS),
        partition,
        key,
        Isolation.READ_COMMITTED if isolation == "committed" else Isolation.READ_UNCOMMITTED,
    )
    if chosen == "sse":
        if until is not None or limit is not None:
            raise ConsoleError(400, "invalid_request", "A live tail has no end: leave out until and limit.")
        return await _tail(request, caller, topic, wanted)
    if chosen == "json" and wanted.limit > PAGE_RECORDS_MAX:
        message = f"A JSON response has at most {PAGE_RECORDS_MAX} records; use format=ndjson for more."
        raise ConsoleError(400, "invalid_request", message)
    search = await forward_search(caller.session, request.app.state.clock, topic, wanted)
    if chosen == "json":
        return Response(json_bytes(await read_page(search, caller.session.values)), media_type="application/json")
    search.limit = min(search.limit, PAGE_RECORDS_MAX)
    return StreamingResponse(stream_lines(search, caller.session.values, wanted.limit), media_type=LINES)


def _accepted(accept: str) -> Literal["json", "ndjson", "sse"]:
    if EVENTS in accept:
        return "sse"
    return "ndjson" if LINES in accept else "json"


async def _tail(request: Request, caller: Caller, topic: str, wanted: Wanted) -> Response:
    admission: Admission = request.app.state.admission
    logins: Logins = request.app.state.logins
    positions = await tail_positions(caller.session, topic, wanted)
    admission.begin_tail()
    client = logins.connect(caller)
    tail = Tail(client, request.app.state.clock, positions, wanted.isolation, wanted.matches, caller.session.values)
    return _TailResponse(tail, admission)


class _TailResponse(StreamingResponse):
    """The events of a tail, whose client is closed even if the reader has gone before the first one."""

    def __init__(self, tail: Tail, admission: Admission) -> None:
        super().__init__(tail.events(), media_type=EVENTS)
        self._tail, self._admission = tail, admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._admission.end_tail()
            await self._tail.client.close()
