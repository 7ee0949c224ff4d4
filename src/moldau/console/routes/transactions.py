"""Transactions: the list, one transaction, hanging ones, and how to end them."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field

from moldau.client.transactions import ActiveProducer, Transactions
from moldau.console.access import Editor, Viewer, confirm
from moldau.console.errors import ConsoleError, error_json
from moldau.console.list_page import Page, PageSize, Search, Sort, cut, matching, ordered
from moldau.console.routes.topics import Confirmation
from moldau.model.ids import TopicPartition
from moldau.model.units import MINUTE_MS

router = APIRouter()

RESPONSE_MS_MAX: Final = 3_000
PARTITIONS_SHOWN_MAX: Final = 1_000


class HangingTransaction(BaseModel):
    """The place where a hanging transaction starts."""

    topic: Annotated[str, Field(max_length=249)]
    partition: Annotated[int, Field(ge=0)]
    start_offset: Annotated[int, Field(ge=0)]
    confirm: Annotated[str, Field(max_length=500)]


@router.get("/transactions")
async def list_transactions(
    session: Viewer,
    search: Search = "",
    page: Page = 1,
    size: PageSize = 50,
    sort: Sort = "transactional_id",
    state: Annotated[list[str] | None, Query(max_length=10)] = None,
) -> dict[str, Any]:
    listed, failures = await Transactions(session.client).list_reachable(RESPONSE_MS_MAX, states=state or ())
    found = ordered(matching(listed, search, lambda each: each.transactional_id), sort, _SORT_KEYS)
    rows = [
        {
            "transactional_id": each.transactional_id,
            "state": each.state,
            "producer_id": each.producer_id,
            "coordinator": each.coordinator,
        }
        for each in cut(found, page, size)
    ]
    failed = [{"broker": node, **error_json(error)} for node, error in sorted(failures.items())]
    return {"transactions": rows, "total": len(found), "page": page, "size": size, "failures": failed}


@router.get("/hanging-transactions")
async def list_hanging(
    request: Request, session: Viewer, minutes: Annotated[int, Query(ge=1, le=1_000_000)] = 15
) -> dict[str, Any]:
    now_ms = request.app.state.clock.wall_ms()
    found = await Transactions(session.client).hanging(now_ms, minutes * MINUTE_MS)
    return {"hanging": [{**_producer(each.producer), "transactional_id": each.transactional_id} for each in found]}


@router.post("/hanging-transactions/abort")
async def abort(wanted: HangingTransaction, session: Editor) -> dict[str, Any]:
    """Abort the transaction that is open since this offset, on this partition only."""
    place = TopicPartition(wanted.topic, wanted.partition)
    confirm(wanted.confirm, str(place))
    transactions = Transactions(session.client)
    producer = await transactions.open_at(place, wanted.start_offset)
    if producer is None:
        message = f"{place} has no transaction that is open since offset {wanted.start_offset}."
        raise ConsoleError(404, "no_transaction", message)
    await transactions.abort(producer)
    return _producer(producer)


@router.get("/transactions/{transactional_id:path}")
async def describe(transactional_id: str, session: Viewer) -> dict[str, Any]:
    found = await Transactions(session.client).describe(transactional_id)
    return {
        "transactional_id": found.transactional_id,
        "state": found.state,
        "coordinator": found.coordinator,
        "producer_id": found.identity.producer_id,
        "producer_epoch": found.identity.epoch,
        "timeout_ms": found.timeout_ms,
        "start_ms": found.start_ms,
        "partitions": [str(each) for each in found.partitions[:PARTITIONS_SHOWN_MAX]],
    }


@router.delete("/transactions/{transactional_id:path}")
async def terminate(transactional_id: str, wanted: Confirmation, session: Editor) -> dict[str, Any]:
    """Fence the producer of this id and abort its open transaction."""
    confirm(wanted.confirm, transactional_id)
    identity = await Transactions(session.client).terminate(transactional_id)
    return {"terminated": transactional_id, "producer_epoch": identity.epoch}


_SORT_KEYS: Final[dict[str, Any]] = {
    "transactional_id": lambda each: each.transactional_id,
    "state": lambda each: (each.state, each.transactional_id),
    "coordinator": lambda each: (each.coordinator, each.transactional_id),
}


def _producer(producer: ActiveProducer) -> dict[str, Any]:
    return {
        "topic": producer.topic_partition.topic,
        "partition": producer.topic_partition.partition,
        "producer_id": producer.identity.producer_id,
        "producer_epoch": producer.identity.epoch,
        "last_timestamp": producer.last_timestamp_ms,
        "start_offset": producer.transaction_start_offset,
    }
