"""`moldau produce`: write lines or JSON objects to a topic as records."""

import asyncio
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moldau.cli.completion import complete_topics
from moldau.cli.errors import CommandError, usage_error
from moldau.cli.interrupts import run_async
from moldau.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, Json, pairs
from moldau.cli.output import note, show_json
from moldau.cli.schema_values import (
    LATEST,
    Form,
    KeyForm,
    KeySchemaChoice,
    MessageName,
    RegistryUrl,
    SchemaChoice,
    ValueEncoder,
    ValueForm,
    encoders_of,
)

if TYPE_CHECKING:
    from moldau.cli.batch_sender import RateLimit, Sender
    from moldau.records.record import Headers

app = typer.Typer()


class Codec(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Acks(StrEnum):
    NONE = "0"
    LEADER = "1"
    ALL = "all"


class Input(StrEnum):
    LINES = "lines"
    JSON = "json"


@app.command()
def produce(
    topic: Annotated[str, typer.Argument(show_default=False, autocompletion=complete_topics)],
    files: Annotated[list[Path] | None, typer.Argument(metavar="[FILE…]", show_default=False)] = None,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-K", metavar="TEXT", help="Split each line into key and value.")
    ] = None,
    allow_missing_key: Annotated[
        bool, typer.Option("--allow-missing-key", help="With -K: a line without separator is a record without key.")
    ] = False,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="Add to every record; may be repeated."),
    ] = None,
    form: Annotated[
        Input, typer.Option("--format", help="lines, or json as printed by `moldau consume --json`.")
    ] = Input.LINES,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Write to this partition only.")
    ] = None,
    acks: Annotated[
        Acks, typer.Option("--acks", help="Acknowledge when: 0 sent, 1 leader has it, all ISR.")
    ] = Acks.ALL,
    compression: Annotated[Codec, typer.Option("--compression", "-z")] = Codec.NONE,
    rate: Annotated[float | None, typer.Option("--rate", min=0.001, help="Limit, in records per second.")] = None,
    batch_bytes: Annotated[int, typer.Option("--batch-bytes", min=1, help="Send a batch when it has this size.")] = 256
    * 1024,
    idempotent: Annotated[bool, typer.Option(help="Retries neither duplicate nor reorder records.")] = True,
    empty_as_null: Annotated[bool, typer.Option("--null", help="Write a tombstone (null) for an empty value.")] = False,
    key_form: KeyForm = Form.BYTES,
    value_form: ValueForm = Form.BYTES,
    key_schema: KeySchemaChoice = LATEST,
    value_schema: SchemaChoice = LATEST,
    value_message: MessageName = None,
    registry: RegistryUrl = None,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """Write each line of standard input, or of files, as a record.

    Records with a key go to hash(key) % partitions, as with Kafka's own producers; records without a key fill one batch
    after the other. A batch is sent when it is full or when the input pauses.

    With --value-format, each value is JSON, and its schema that of the subject TOPIC-value in the registry.
    """
    if not files and sys.stdin.isatty():
        note("type one record per line, Ctrl-D to finish")
    options = _Options(
        topic, files or [], key_separator, header, form, partition, acks, rate, empty_as_null, allow_missing_key
    )
    forms, schemas = {"key": key_form, "value": value_form}, {"key": key_schema, "value": value_schema}
    options.encoders = encoders_of(topic, registry, forms, schemas, value_message)
    run_async(_produce(bootstrap_servers, options, compression, batch_bytes, idempotent, json))


class _Options:
    """How to turn lines into records."""

    def __init__(
        self,
        topic: str,
        files: list[Path],
        key_separator: str | None,
        headers: list[str] | None,
        form: Input,
        partition: int | None,
        acks: Acks,
        rate: float | None,
        empty_as_null: bool,
        allow_missing_key: bool,
    ) -> None:
        if key_separator == "":
            raise usage_error("--key-separator is empty")
        self.topic = topic
        self.files = files
        self.key_separator = None if key_separator is None else key_separator.replace("\\t", "\t").encode()
        self.headers: Headers = tuple((name, text.encode()) for name, text in pairs(headers, "--header").items())
        self.form = form
        self.partition = partition
        self.acks = {Acks.NONE: 0, Acks.LEADER: 1, Acks.ALL: -1}[acks]
        self.rate = rate
        self.empty_as_null = empty_as_null
        self.allow_missing_key = allow_missing_key
        self.encoders: dict[str, ValueEncoder] = {}

    def record(self, line: bytes, now_ms: int) -> tuple[int | None, Any]:
        """Return the partition chosen by the user or the record (None: any), and the record."""
        if self.form is Input.JSON:
            return self._from_json(line, now_ms)
        key = None
        if self.key_separator is not None:
            head, separator, tail = line.partition(self.key_separator)
            if separator:
                key, line = head, tail
            elif not self.allow_missing_key:
                raise CommandError(
                    f"no separator {self.key_separator.decode()!r} in {line[:40].decode(errors='replace')!r}; "
                    "--allow-missing-key sends such lines without a key"
                )
        value = None if self.empty_as_null and not line else line
        return self.partition, (now_ms, self._encoded("key", key), self._encoded("value", value), self.headers)

    def _encoded(self, part: str, text: bytes | None) -> bytes | None:
        if text is None or part not in self.encoders:
            return text
        try:
            return self.encoders[part].encode_text(text)
        except ValueError as error:
            shown = text[:80].decode(errors="replace")
            raise CommandError(f"{part}{'' if str(error)[:1] in '.:[' else ': '}{error}: {shown}") from error

    def _from_json(self, line: bytes, now_ms: int) -> tuple[int | None, Any]:
        from moldau.cli.record_format import from_json

        encode = {part: encoder.encode for part, encoder in self.encoders.items()}
        try:
            partition, timestamp, key, value, headers = from_json(line, encode)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CommandError(f"not a record in JSON: {error}: {line[:80].decode(errors='replace')}") from error
        chosen = self.partition if self.partition is not None else partition
        return chosen, (now_ms if timestamp is None else timestamp, key, value, (*headers, *self.headers))


async def _produce(
    bootstrap: str, options: _Options, compression: Codec, batch_bytes: int, idempotent: bool, json: bool
) -> None:
    from moldau.cli.batch_sender import Sender
    from moldau.cli.cluster_client import connect_async
    from moldau.client.settings import ClientSettings
    from moldau.node.ports.clock import SystemClock
    from moldau.node.ports.randomness import system_random
    from moldau.records.compression import Compression

    async with connect_async(bootstrap, ClientSettings(allow_auto_create_topics=True)) as client:
        view = await client.retry(lambda: client.topic(options.topic), about=options.topic)
        _check_partition(options.partition, options.topic, len(view.partitions))
        # Deduplication needs acks=all: with less, a record may be lost unnoticed and a retry would leave a gap.
        identity = await client.init_producer_id() if idempotent and options.acks == -1 else None
        sender = Sender(
            client,
            SystemClock(),
            system_random(),
            options.topic,
            len(view.partitions),
            identity=identity,
            acks=options.acks,
            compression=Compression[compression.name],
            batch_bytes=batch_bytes,
        )
        try:
            await _send_all(sender, options, len(view.partitions))
        except CommandError as error:  # an input error: say how much was sent, so that the rest can be sent again
            await sender.flush()
            sent = _count(sum(buffer.sent_records for buffer in sender.buffers), "record")
            raise CommandError(f"{error}; sent {sent} before that", exit_code=error.exit_code) from error
        finally:
            await sender.cancel()
    _summarise(sender, options.topic, json)


async def _send_all(sender: "Sender", options: _Options, partitions: int) -> None:
    from moldau.cli.batch_sender import RateLimit
    from moldau.cli.input_lines import read_lines
    from moldau.node.ports.clock import SystemClock

    clock = SystemClock()
    limit = None if options.rate is None else RateLimit(clock, options.rate)
    async for chunk in read_lines(options.files):
        for number, line in enumerate(chunk.lines, chunk.first_line):
            if limit is not None:
                await _wait(limit, sender)
            try:
                partition, record = options.record(line, clock.wall_ms())
                _check_partition(partition, options.topic, partitions)
            except CommandError as error:
                raise CommandError(f"{chunk.source}:{number}: {error}", exit_code=error.exit_code) from error
            await sender.add(record, partition)
        if chunk.is_pause:
            await sender.flush()


async def _wait(limit: "RateLimit", sender: "Sender") -> None:
    wait_ms = limit.wait_ms()
    if wait_ms > 0:
        await sender.flush()
        await asyncio.sleep(wait_ms / 1000)


def _check_partition(partition: int | None, topic: str, partitions: int) -> None:
    if partition is not None and not 0 <= partition < partitions:
        raise usage_error(f"topic {topic} has {partitions} partitions, partition {partition} does not exist")


def _summarise(sender: "Sender", topic: str, json: bool) -> None:
    buffers = [buffer for buffer in sender.buffers if buffer.sent_records]
    records = sum(buffer.sent_records for buffer in buffers)
    if json:
        written = [
            {
                "partition": buffer.partition,
                "records": buffer.sent_records,
                "first_offset": buffer.first_offset,
                "last_offset": buffer.last_offset,
            }
            for buffer in buffers
        ]
        show_json({"topic": topic, "records": records, "bytes": sender.sent_bytes, "partitions": written})
    elif sys.stderr.isatty():
        note(f"wrote {_count(records, 'record')} to {_count(len(buffers), 'partition')} of topic {topic}")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
