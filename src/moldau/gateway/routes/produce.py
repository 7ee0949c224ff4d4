"""Produce records. The body is read here, after admission, so that requests in progress are bounded in memory."""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Header, Query, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.responses import Response

from moldau.client.async_client import AsyncClient
from moldau.client.brokers import REQUEST_FAILURES
from moldau.client.errors import RETRIABLE
from moldau.client.metadata import TopicView
from moldau.client.partitioner import StickyPartitioner, partition_for_key
from moldau.console.errors import RETRY_AFTER, ConsoleError, error_json, status_and_code
from moldau.console.guard import BODY_BYTES_MAX
from moldau.console.schema_values import SchemaValues
from moldau.console.sessions import Session
from moldau.gateway.access import Writer
from moldau.gateway.admission import Admission
from moldau.gateway.idempotency import KEY_CHARACTERS_MAX, IdempotencyWindow, Outcome
from moldau.gateway.record_json import RECORDS_MAX, Encode, ProducedRecord, json_bytes
from moldau.gateway.schema_choice import SchemaChoice
from moldau.model.errors import KafkaError, LeaderNotAvailable, UnknownTopicOrPartition
from moldau.model.ids import TopicPartition
from moldau.records.builder import NewRecord
from moldau.records.compression import Compression

router = APIRouter(tags=["records"])

BODY_S_MAX: Final = 30  # to send the body
TIMEOUT_MS: Final = 10_000
TIMEOUT_MS_MAX: Final = 60_000
TOPIC_CHARACTERS_MAX: Final = 249
ACKS: Final = {"all": -1, "1": 1, "0": 0}
SCHEMAS_MAX: Final = 50  # of one request
REPLAYED: Final = "Idempotent-Replayed"


class ProduceBody(BaseModel):
    """Records, produced in order within each partition."""

    model_config = ConfigDict(extra="forbid")

    records: Annotated[list[ProducedRecord], Field(min_length=1, max_length=RECORDS_MAX)]
    acks: Literal["all", "1", "0"] = "all"
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "none"
    key_schema: SchemaChoice | None = None
    value_schema: SchemaChoice | None = None


@dataclass(frozen=True, slots=True)
class _Batch:
    """The records of one partition, with their numbers in the request."""

    partition: int
    numbers: list[int]
    records: list[NewRecord]


@router.post(
    "/topics/{topic}/produce",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ProduceBody"}}},
        }
    },
)
async def produce(
    topic: str,
    request: Request,
    caller: Writer,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=KEY_CHARACTERS_MAX)] = None,
    timeout_ms: Annotated[int, Query(ge=100, le=TIMEOUT_MS_MAX)] = TIMEOUT_MS,
) -> Response:
    """Produce records; the response has the partition and offset of each record, in the order of the request.

    A request with an Idempotency-Key that is repeated within ten minutes is produced once.
    """
    admission: Admission = request.app.state.admission
    window: IdempotencyWindow = request.app.state.idempotency
    clock = request.app.state.clock
    with admission.produce(_announced_size(request)):
        content = await _read_body(request)
        if idempotency_key is None:
            return _response(await _produce(caller.session, request, topic, content, timeout_ms))
        key = (caller.session.user or "", topic, idempotency_key)
        fingerprint = hashlib.sha256(content).digest()
        outcome = await window.repeated(key, fingerprint, clock.monotonic_ms())
        if outcome is not None:
            return _response(outcome, {REPLAYED: "true"})
        window.begin(key, fingerprint, clock.monotonic_ms())
        try:
            outcome = await _produce(caller.session, request, topic, content, timeout_ms)
        except BaseException:
            window.abandon(key)
            raise
        window.end(key, outcome, clock.monotonic_ms())
        return _response(outcome)


def _announced_size(request: Request) -> int:
    length = request.headers.get("content-length", "")
    return int(length) if length.isdecimal() else BODY_BYTES_MAX


async def _read_body(request: Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_S_MAX):
            return await request.body()
    except TimeoutError:
        message = f"The request body did not arrive within {BODY_S_MAX} s."
        raise ConsoleError(408, "body_timeout", message) from None


async def _produce(session: Session, request: Request, topic: str, content: bytes, timeout_ms: int) -> Outcome:
    try:
        body = ProduceBody.model_validate_json(content)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
        raise RequestValidationError([{**each, "loc": ("body", *each["loc"])} for each in details]) from None
    client = session.client
    view = await _writable_topic(client, topic)
    encoders = await encoders_of(session.values, topic, body)
    batches = _batches(view, body.records, request, encoders)
    results = await asyncio.gather(
        *(
            client.produce(
                topic,
                each.partition,
                each.records,
                acks=ACKS[body.acks],
                compression=Compression[body.compression.upper()],
                total_timeout_ms=timeout_ms,
            )
            for each in batches
        ),
        return_exceptions=True,
    )
    rows: list[dict[str, Any]] = [{} for _ in body.records]
    failures: list[Exception] = []
    for batch, result in zip(batches, results, strict=True):
        if isinstance(result, REQUEST_FAILURES):
            failures.append(result)
            row = {"partition": batch.partition, **_failure_json(result)}
            for number in batch.numbers:
                rows[number] = row
        elif isinstance(result, BaseException):
            raise result
        else:
            for index, number in enumerate(batch.numbers):
                offset = result.base_offset + index if result.base_offset >= 0 else None
                rows[number] = {"partition": batch.partition, "offset": offset}
    return _outcome(rows, failures, is_stored=len(failures) < len(batches))


async def _writable_topic(client: AsyncClient, topic: str) -> TopicView:
    if len(topic) > TOPIC_CHARACTERS_MAX:
        raise ConsoleError(404, "unknown_topic_or_partition", "A topic name has at most 249 characters.")
    try:
        view = await client.topic(topic)
        if any(each.leader < 0 for each in view.partitions):  # as of the last look
            client.invalidate_topic(topic, is_stale=False)
            view = await client.topic(topic)
    except UnknownTopicOrPartition:
        message = f"Topic {topic} does not exist, or you may not see it; create it with POST /v1/topics."
        raise ConsoleError(404, "unknown_topic_or_partition", message) from None
    return view


@dataclass(frozen=True, slots=True)
class Encoders:
    """The encoders of a request: of all its keys or values, and of schema ids of single records."""

    of_part: Mapping[str, Encode]
    of_id: Mapping[int, Encode]

    def of(self, part: str, schema_id: int | None) -> Encode | None:
        return self.of_part.get(part) if schema_id is None else self.of_id[schema_id]


async def encoders_of(values: SchemaValues, topic: str, body: ProduceBody) -> Encoders:
    """Look up the schemas of a request; schemas that it brings are registered."""
    choices = {"key": body.key_schema, "value": body.value_schema}
    of_part = {
        part: (await choice.encoder(values, f"{topic}-{part}", may_register=True)).encode
        for part, choice in choices.items()
        if choice is not None
    }
    ids = {schema_id for each in body.records for schema_id in (each.key_schema_id, each.value_schema_id) if schema_id}
    if len(ids) > SCHEMAS_MAX:
        raise ConsoleError(422, "too_many_schemas", f"A request has at most {SCHEMAS_MAX} schema ids.")
    of_id = {
        each: (await SchemaChoice(id=each).encoder(values, topic, may_register=False)).encode for each in sorted(ids)
    }
    return Encoders(of_part, of_id)


def _batches(view: TopicView, records: Sequence[ProducedRecord], request: Request, encoders: Encoders) -> list[_Batch]:
    partitions = len(view.partitions)
    led = [each.index for each in view.partitions if each.leader >= 0]
    sticky = StickyPartitioner(request.app.state.random, partitions, lambda: led).current
    now_ms = request.app.state.clock.wall_ms()
    batches: dict[int, _Batch] = {}
    for number, each in enumerate(records):
        key = each.key_bytes(encoders.of("key", each.key_schema_id))
        partition = each.partition
        if partition is None:
            partition = sticky if key is None else partition_for_key(key, partitions)
        batch = batches.setdefault(partition, _Batch(partition, [], []))
        batch.numbers.append(number)
        batch.records.append(each.to_record(key, now_ms, encoders.of("value", each.value_schema_id)))
    for partition in batches:
        target = view.partition(partition)
        place = TopicPartition(view.name, partition)
        if target is None:
            raise ConsoleError(404, "unknown_topic_or_partition", f"{view.name} has no partition {partition}.")
        if target.leader < 0:
            raise LeaderNotAvailable(f"{place} has no leader at the moment; nothing is stored, send the request again.")
    return list(batches.values())


def _is_uncertain(error: Exception) -> bool:
    """Return whether an attempt may have stored the records: earlier attempts may have failed differently."""
    return not isinstance(error, KafkaError) or error.code in RETRIABLE


def _failure_json(error: Exception) -> dict[str, str]:
    found = error_json(error)
    if _is_uncertain(error):
        found["message"] = f"{found['message'].rstrip('.')} (the records may be stored)"
    return found


def _outcome(rows: list[dict[str, Any]], failures: Sequence[Exception], *, is_stored: bool) -> Outcome:
    if not failures:
        return Outcome(200, json_bytes({"records": rows}), is_stored=True)
    status, _ = status_and_code(failures[0])
    body = json_bytes({**_failure_json(failures[0]), "records": rows})
    return Outcome(status, body, is_stored, is_unknown=any(map(_is_uncertain, failures)))


def _response(outcome: Outcome, headers: dict[str, str] | None = None) -> Response:
    waits = RETRY_AFTER if outcome.status in (429, 503) else {}
    return Response(outcome.body, outcome.status, {**waits, **(headers or {})}, media_type="application/json")
