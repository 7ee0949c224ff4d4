"""Produce records. The body is read here, after admission, so that requests in progress are bounded in memory.

Requests come here without the routing and the dependencies of FastAPI, which cost more than producing a record.
`router` describes the request in OpenAPI, and serves nothing.
"""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from moldau.client.brokers import REQUEST_FAILURES
from moldau.client.errors import RETRIABLE
from moldau.client.merged_batches import Lane, NotSent
from moldau.client.metadata import TopicView
from moldau.client.partitioner import StickyPartitioner, partition_for_key
from moldau.console.errors import EXPECTED, RETRY_AFTER, ConsoleError, error_json, error_response, status_and_code
from moldau.console.guard import BODY_BYTES_MAX
from moldau.console.schema_values import SchemaValues
from moldau.console.sessions import Session
from moldau.gateway.access import Caller, authorized_writer
from moldau.gateway.admission import Admission
from moldau.gateway.idempotency import KEY_CHARACTERS_MAX, IdempotencyWindow, Outcome
from moldau.gateway.produce_body import ACKS, PlainBody, ProduceBody, read_body, read_plain
from moldau.gateway.record_json import Encode, json_bytes
from moldau.gateway.schema_choice import SchemaChoice
from moldau.model.errors import KafkaError, LeaderNotAvailable, UnknownTopicOrPartition
from moldau.model.ids import TopicPartition
from moldau.records.builder import NewRecord
from moldau.records.compression import Compression
from moldau.records.record import Headers

router = APIRouter(tags=["records"])

BODY_S_MAX: Final = 30  # to send the body
TIMEOUT_MS: Final = 10_000
TIMEOUT_MS_MIN: Final = 100
TIMEOUT_MS_MAX: Final = 60_000
TOPIC_CHARACTERS_MAX: Final = 249
SCHEMAS_MAX: Final = 50  # of one request
REPLAYED: Final = "Idempotent-Replayed"
PATH_START: Final = "/v1/topics/"
PATH_END: Final = "/produce"
NO_HEADERS: Final[Headers] = ()


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
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=KEY_CHARACTERS_MAX)] = None,
    timeout_ms: Annotated[int, Query(ge=TIMEOUT_MS_MIN, le=TIMEOUT_MS_MAX)] = TIMEOUT_MS,
) -> None:
    """Produce records; the response has the partition and offset of each record, in the order of the request.

    A request with an Idempotency-Key that is repeated within ten minutes is produced once.
    """


class ProduceRequests:
    """ASGI middleware that responds to produce requests, and passes on all others."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        topic = _topic_in(scope)
        if topic is None:
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            response = await _respond(topic, request)
        except EXPECTED as error:
            response = error_response(error)
        await response(scope, receive, send)


def _topic_in(scope: Scope) -> str | None:
    """Return the topic in the path of a produce request."""
    if scope["type"] != "http":
        return None
    path: str = scope["path"]
    if not (path.startswith(PATH_START) and path.endswith(PATH_END)):
        return None
    topic = path[len(PATH_START) : -len(PATH_END)]
    return topic if topic and "/" not in topic else None


async def _respond(topic: str, request: Request) -> Response:
    if request.method != "POST":
        raise ConsoleError(405, "http_405", "Produce with POST.", {"Allow": "POST"})
    caller = await authorized_writer(request)
    key = request.headers.get("idempotency-key")
    if key is not None and not 1 <= len(key) <= KEY_CHARACTERS_MAX:
        message = f"An Idempotency-Key has 1 to {KEY_CHARACTERS_MAX} characters, not {len(key)}."
        raise ConsoleError(422, "invalid_request", message)
    timeout_ms = _timeout_ms(request)
    admission: Admission = request.app.state.admission
    with admission.produce(_announced_size(request)):
        content = await _read_body(request)
        if key is None:
            return _response(await _produce(caller.session, request, topic, content, timeout_ms))
        return await _produce_once(caller, request, topic, content, timeout_ms, key)


async def _produce_once(
    caller: Caller, request: Request, topic: str, content: bytes, timeout_ms: int, given_key: str
) -> Response:
    """Produce unless a request with this key did before."""
    window: IdempotencyWindow = request.app.state.idempotency
    clock = request.app.state.clock
    key = (caller.session.user or "", topic, given_key)
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


def _timeout_ms(request: Request) -> int:
    if not request.scope["query_string"]:
        return TIMEOUT_MS
    text = request.query_params.get("timeout_ms", str(TIMEOUT_MS))
    if not text.isdecimal() or not TIMEOUT_MS_MIN <= int(text[:10]) <= TIMEOUT_MS_MAX:
        message = f"timeout_ms is {text[:40]}; it is a number from {TIMEOUT_MS_MIN} to {TIMEOUT_MS_MAX}."
        raise ConsoleError(422, "invalid_request", message)
    return int(text)


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


@dataclass(slots=True)
class _Batch:
    """The records of one partition, with their numbers in the request."""

    partition: int
    numbers: list[int]
    records: list[NewRecord]


async def _produce(session: Session, request: Request, topic: str, content: bytes, timeout_ms: int) -> Outcome:
    view = await _writable_topic(session, topic)
    plain = read_plain(content)
    if plain is not None:
        batches = _plain_batches(view, plain, request)
        body: PlainBody | ProduceBody = plain
    else:
        body = read_body(content)
        encoders = await encoders_of(session.values, topic, body)
        batches = _batches(view, body.records, request, encoders)
    _check_partitions(view, batches)
    acks, compression = ACKS[body.acks], Compression[body.compression.upper()]
    waiting = [
        session.batches.produce(Lane(topic, each.partition, acks, compression, timeout_ms), each.records)
        for each in batches
    ]
    results = await asyncio.gather(*waiting, return_exceptions=True)
    return _outcome(len(body.records), batches, results)


async def _writable_topic(session: Session, topic: str) -> TopicView:
    if len(topic) > TOPIC_CHARACTERS_MAX:
        raise ConsoleError(404, "unknown_topic_or_partition", "A topic name has at most 249 characters.")
    client = session.client
    try:
        view = await client.topic(topic)
        if any(each.leader < 0 for each in view.partitions):  # as of the last look
            client.invalidate_topic(topic, is_stale=False)
            view = await client.topic(topic)
    except UnknownTopicOrPartition:
        message = f"Topic {topic} does not exist, or you may not see it; create it with POST /v1/topics."
        raise ConsoleError(404, "unknown_topic_or_partition", message) from None
    return view


def _sticky_partition(view: TopicView, request: Request) -> int:
    """Return the partition of all records of a request that have no key."""
    led = [each.index for each in view.partitions if each.leader >= 0]
    return StickyPartitioner(request.app.state.random, len(view.partitions), lambda: led).current


def _plain_batches(view: TopicView, plain: PlainBody, request: Request) -> list[_Batch]:
    partitions, sticky = len(view.partitions), -1
    now_ms = request.app.state.clock.wall_ms()
    batches: dict[int, _Batch] = {}
    for number, (key, value) in enumerate(plain.records):
        if key is not None:
            partition = partition_for_key(key, partitions)
        else:
            partition = sticky = sticky if sticky >= 0 else _sticky_partition(view, request)
        batch = batches.get(partition)
        if batch is None:
            batch = batches[partition] = _Batch(partition, [], [])
        batch.numbers.append(number)
        batch.records.append((now_ms, key, value, NO_HEADERS))
    return list(batches.values())


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


def _batches(view: TopicView, records: Sequence[Any], request: Request, encoders: Encoders) -> list[_Batch]:
    sticky = _sticky_partition(view, request)
    now_ms = request.app.state.clock.wall_ms()
    batches: dict[int, _Batch] = {}
    for number, each in enumerate(records):
        key = each.key_bytes(encoders.of("key", each.key_schema_id))
        partition = each.partition
        if partition is None:
            partition = sticky if key is None else partition_for_key(key, len(view.partitions))
        batch = batches.setdefault(partition, _Batch(partition, [], []))
        batch.numbers.append(number)
        batch.records.append(each.to_record(key, now_ms, encoders.of("value", each.value_schema_id)))
    return list(batches.values())


def _check_partitions(view: TopicView, batches: Sequence[_Batch]) -> None:
    for each in batches:
        target = view.partition(each.partition)
        if target is None:
            message = f"{view.name} has no partition {each.partition}."
            raise ConsoleError(404, "unknown_topic_or_partition", message)
        if target.leader < 0:
            place = TopicPartition(view.name, each.partition)
            raise LeaderNotAvailable(f"{place} has no leader at the moment; nothing is stored, send the request again.")


def _is_uncertain(error: BaseException) -> bool:
    """Return whether an attempt may have stored the records: earlier attempts may have failed differently."""
    if isinstance(error, NotSent):
        return False
    return not isinstance(error, KafkaError) or error.code in RETRIABLE


def _failure_json(error: Exception) -> dict[str, str]:
    found = error_json(error)
    if _is_uncertain(error):
        found["message"] = f"{found['message'].rstrip('.')} (the records may be stored)"
    return found


def _outcome(count: int, batches: Sequence[_Batch], results: Sequence[int | BaseException]) -> Outcome:
    """Return the response: the place of each record, or the error of its batch."""
    rows: list[bytes] = [b""] * count
    failures: list[Exception] = []
    for batch, result in zip(batches, results, strict=True):
        if isinstance(result, REQUEST_FAILURES):
            failures.append(result)
            row = json_bytes({"partition": batch.partition, **_failure_json(result)})
            for number in batch.numbers:
                rows[number] = row
        elif isinstance(result, BaseException):
            raise result
        elif result < 0:
            for number in batch.numbers:
                rows[number] = b'{"partition":%d,"offset":null}' % batch.partition
        else:
            for offset, number in enumerate(batch.numbers, result):
                rows[number] = b'{"partition":%d,"offset":%d}' % (batch.partition, offset)
    records = b'"records":[' + b",".join(rows) + b"]}"
    if not failures:
        return Outcome(200, b"{" + records, is_stored=True)
    status, _ = status_and_code(failures[0])
    body = json_bytes(_failure_json(failures[0]))[:-1] + b"," + records
    is_stored = len(failures) < len(batches)
    return Outcome(status, body, is_stored, is_unknown=any(map(_is_uncertain, failures)))


def _response(outcome: Outcome, headers: dict[str, str] | None = None) -> Response:
    waits = RETRY_AFTER if outcome.status in (429, 503) else {}
    return Response(outcome.body, outcome.status, {**waits, **(headers or {})}, media_type="application/json")
