"""Produce records from the browser: one, edited and sent again, or many at once."""

import base64
import binascii
import json
from typing import Annotated, Any, Final

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from moldau.client.partitioner import StickyPartitioner, partition_for_key
from moldau.console.access import Editor
from moldau.console.errors import ConsoleError
from moldau.console.routes.topics import find_topic
from moldau.records.builder import NewRecord
from moldau.records.compression import Compression
from moldau.schemas.codecs import Codecs
from moldau.schemas.wire_format import frame

router = APIRouter()

RECORDS_MAX: Final = 1_000
HEADERS_MAX: Final = 100


class Payload(BaseModel):
    """Bytes as text or as base64; null without either."""

    text: str | None = None
    base64: str | None = None
    schema_id: Annotated[int | None, Field(ge=1, lt=2**31, description="The text is JSON of this schema.")] = None

    def to_bytes(self, codecs: Codecs | None = None) -> bytes | None:
        if self.schema_id is not None and self.text is not None and codecs is not None:
            return _with_schema(codecs, self.schema_id, self.text)
        if self.base64 is not None:
            try:
                return base64.b64decode(self.base64, validate=True)
            except binascii.Error:
                raise ConsoleError(400, "invalid_base64", "A key, value or header is not valid base64.") from None
        if self.text is None:
            return None
        try:
            return self.text.encode()
        except UnicodeEncodeError:
            raise ConsoleError(400, "invalid_text", "A key, value or header has an unpaired surrogate.") from None


def _with_schema(codecs: Codecs, schema_id: int, text: str) -> bytes:
    try:
        return codecs.encode(schema_id, json.loads(text))
    except (ValueError, RecursionError) as error:
        raise ConsoleError(400, "invalid_value", f"Schema {schema_id} does not accept the value: {error}") from None


class Header(Payload):
    """A record header."""

    name: Annotated[str, Field(max_length=10_000)]


class ProducedRecord(BaseModel):
    """A record to produce. Without a partition, its key selects one as Kafka's producers do."""

    partition: Annotated[int | None, Field(ge=0, lt=2**31)] = None
    timestamp: Annotated[int | None, Field(ge=0, lt=2**63)] = None
    key: Payload = Payload()
    value: Payload = Payload()
    headers: Annotated[list[Header], Field(max_length=HEADERS_MAX)] = []


class ProduceBody(BaseModel):
    """Records, produced in order within each partition."""

    records: Annotated[list[ProducedRecord], Field(min_length=1, max_length=RECORDS_MAX)]
    compression: Annotated[str, Field(pattern="^(none|gzip|snappy|lz4|zstd)$")] = "none"


@router.post("/topics/{topic}/records", status_code=201)
async def produce(topic: str, body: ProduceBody, request: Request, session: Editor) -> dict[str, Any]:
    """Produce with acks=all; the result has the partition and offset of each record, in the order of the request."""
    view = await find_topic(session, topic)
    sticky = StickyPartitioner(request.app.state.random, len(view.partitions)).current
    now_ms = request.app.state.clock.wall_ms()
    codecs = session.values.codecs
    await session.values.prepare(
        frame(part.schema_id, b"") for each in body.records for part in (each.key, each.value) if part.schema_id
    )
    batches: dict[int, list[tuple[int, NewRecord]]] = {}
    for number, each in enumerate(body.records):
        key = each.key.to_bytes(codecs)
        partition = each.partition
        if partition is None:
            partition = sticky if key is None else partition_for_key(key, len(view.partitions))
        if view.partition(partition) is None:
            raise ConsoleError(404, "unknown_topic_or_partition", f"{topic} has no partition {partition}.")
        timestamp = now_ms if each.timestamp is None else each.timestamp
        headers = tuple((header.name, header.to_bytes()) for header in each.headers)
        batches.setdefault(partition, []).append((number, (timestamp, key, each.value.to_bytes(codecs), headers)))
    places: dict[int, dict[str, int]] = {}
    compression = Compression[body.compression.upper()]
    for partition, numbered in batches.items():
        records = [record for _, record in numbered]
        result = await session.client.produce(topic, partition, records, compression=compression)
        for index, (number, _) in enumerate(numbered):
            places[number] = {"partition": partition, "offset": result.base_offset + index}
    return {"records": [places[number] for number in range(len(body.records))]}
