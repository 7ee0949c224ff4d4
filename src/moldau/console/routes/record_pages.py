"""Records of a topic: pages, one record, a live tail, and downloads."""

import csv
import io
import json
from collections.abc import AsyncIterator, Iterable
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from starlette.responses import StreamingResponse

from moldau.client.types import Isolation
from moldau.console.access import TokenHolder, Viewer
from moldau.console.errors import ConsoleError
from moldau.console.live_tail import LiveTail
from moldau.console.read_request import ReadRequest, RecordFilter, search_of
from moldau.console.record_search import RecordSearch
from moldau.console.record_views import FoundRecord, exported, record_view
from moldau.console.routes.topics import find_topic
from moldau.console.sessions import TAILS_MAX, Session
from moldau.model.units import MiB

router = APIRouter()

WHOLE_BYTES_MAX: Final = MiB
DOWNLOAD_RECORDS_MAX: Final = 100_000
DOWNLOAD_BYTES_MAX: Final = 256 * MiB
CSV_COLUMNS: Final = ("partition", "offset", "timestamp", "key", "value", "headers")


@router.post("/topics/{topic}/read")
async def read(topic: str, wanted: ReadRequest, request: Request, session: TokenHolder) -> dict[str, Any]:
    """Return a page of records, and the positions of the next page."""
    search = await search_of(session, request.app.state.clock, topic, wanted)
    page = await search.run()
    await session.values.prepare_records(page.records)
    return {
        "records": [record_view(each, session.values.decode) for each in page.records],
        "positions": {place.partition: offset for place, offset in page.positions.items()} or None,
        "scanned": page.scanned,
        "read_bytes": page.read_bytes,
        "left": page.left,
        "elapsed_ms": round(page.elapsed_ms, 1),
    }


@router.get("/topics/{topic}/partitions/{partition}/records/{offset}")
async def read_one(topic: str, partition: int, offset: int, request: Request, session: Viewer) -> dict[str, Any]:
    """Return one record with up to 1 MiB of its key and value."""
    found = await _find(session, request, topic, partition, offset)
    await session.values.prepare_records([found])
    return {"topic": topic, **record_view(found, session.values.decode, WHOLE_BYTES_MAX)}


@router.get("/topics/{topic}/partitions/{partition}/records/{offset}/{part}")
async def download_part(
    topic: str, partition: int, offset: int, part: Literal["key", "value"], request: Request, session: Viewer
) -> Response:
    """Return the bytes of a key or a value, as a file."""
    found = await _find(session, request, topic, partition, offset)
    content = found.record.key if part == "key" else found.record.value
    headers = {"Content-Disposition": f'attachment; filename="{partition}-{offset}.{part}"'}
    return Response(content or b"", media_type="application/octet-stream", headers=headers)


@router.get("/topics/{topic}/tail")
async def tail(
    topic: str,
    session: Viewer,
    wanted: Annotated[RecordFilter, Depends()],
    partition: Annotated[list[int] | None, Query(max_length=1_000)] = None,
    with_uncommitted: bool = False,
) -> StreamingResponse:
    """Stream new records as server-sent events."""
    if session.tails >= TAILS_MAX:
        raise ConsoleError(429, "too_many_tails", f"At most {TAILS_MAX} live tails run at a time; stop one of them.")
    view = await find_topic(session, topic)
    isolation = Isolation.READ_UNCOMMITTED if with_uncommitted else Isolation.READ_COMMITTED
    chosen = frozenset(partition) if partition else None
    live = LiveTail(session.client, view, isolation, session.values, wanted.compile(session.values.decode), chosen)
    return StreamingResponse(_counted(session, live), media_type="text/event-stream")


@router.get("/topics/{topic}/download")
async def download(
    topic: str,
    wanted: Annotated[ReadRequest, Query()],
    request: Request,
    session: Viewer,
    format: Literal["ndjson", "csv"] = "ndjson",
    records: Annotated[int, Query(ge=1, le=DOWNLOAD_RECORDS_MAX)] = 10_000,
) -> StreamingResponse:
    """Stream records as a file, at most 100,000 or 256 MiB of them."""
    search = await search_of(session, request.app.state.clock, topic, wanted)
    media_type = "application/x-ndjson" if format == "ndjson" else "text/csv"
    headers = {"Content-Disposition": f'attachment; filename="{_file_name(topic)}.{format}"'}
    return StreamingResponse(_file(search, format, records), media_type=media_type, headers=headers)


async def _find(session: Session, request: Request, topic: str, partition: int, offset: int) -> FoundRecord:
    wanted = ReadRequest(direction="oldest", positions={partition: offset}, limit=1, with_uncommitted=True)
    search = await search_of(session, request.app.state.clock, topic, wanted)
    page = await search.run()
    found = next((each for each in page.records if each.record.offset == offset), None)
    if found is None:
        raise ConsoleError(404, "no_record", f"{topic}-{partition} has no record at offset {offset}.")
    return found


async def _counted(session: Session, live: LiveTail) -> AsyncIterator[bytes]:
    session.tails += 1
    try:
        async for each in live.events():
            yield each
    finally:
        session.tails -= 1


async def _file(search: RecordSearch, format: str, records_max: int) -> AsyncIterator[bytes]:
    if format == "csv":
        yield _csv([CSV_COLUMNS])
    count = read_bytes = 0
    while count < records_max and read_bytes < DOWNLOAD_BYTES_MAX:
        page = await search.run()
        chosen = [exported(each) for each in page.records[: records_max - count]]
        yield _csv(map(_csv_row, chosen)) if format == "csv" else b"".join(map(_json_line, chosen))
        count, read_bytes = count + len(chosen), read_bytes + page.read_bytes
        if not page.positions:
            return
        search = search.next_page(page)


def _json_line(record: dict[str, Any]) -> bytes:
    return json.dumps(record, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def _csv(rows: Iterable[Iterable[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode("utf-8", "replace")


def _csv_row(record: dict[str, Any]) -> list[Any]:
    return [
        record["partition"],
        record["offset"],
        record["timestamp"],
        _cell(record, "key"),
        _cell(record, "value"),
        json.dumps(record["headers"], ensure_ascii=False) if record["headers"] else "",
    ]


def _cell(record: dict[str, Any], name: str) -> str:
    """Return a field for a spreadsheet, which must not take it for a formula."""
    text = record.get(name) or record.get(f"{name}_base64") or ""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def _file_name(topic: str) -> str:
    return "".join(each if each.isascii() and (each.isalnum() or each in "._-") else "_" for each in topic)
