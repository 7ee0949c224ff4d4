"""The validated sink options: those of Spark's Kafka sink and Moldau's delivery guarantees."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from moldau.records.compression import Compression
from pyspark_moldau.options.kafka_settings import KafkaSettings, producer_settings
from pyspark_moldau.options.offset_limits import OptionError
from pyspark_moldau.options.source_options import check_unknown_options
from pyspark_moldau.options.topic_names import check_topic_name

COMMIT_TOPIC: Final = "moldau-spark-commits"
# The default of the Java producer; librdkafka's own is slightly lower.
ROW_BYTES_MAX: Final = 1_048_576
_BATCH_BYTES_MAX: Final = 524_288
_COMPRESSION: Final = "compression.type"
_CODECS: Final = {each.name.lower(): each for each in Compression}
_FOLDER: Final = "moldau-staging"
_CHECKPOINT: Final = "checkpointlocation"
_TOPIC_SEPARATOR: Final = "@"  # not allowed in topic names
_REJECTED: Final = {
    "asyncprogresstrackingenabled": (
        "Option 'asyncProgressTrackingEnabled' cannot be used here: a batch is committed together with its rows."
    )
}


class Guarantee(Enum):
    """How often a `read_committed` consumer sees each row after crashes and replays."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


@dataclass(frozen=True, slots=True)
class BatchIdentity:
    """Writer and batch number, which identify a replay."""

    writer: str
    batch: int
    is_durable: bool = True  # replays are possible after a restart, so the commit marker must persist
    run: str | None = None  # run id of the query, or id of the driver; None if unknown
    is_user_versioned: bool = False  # user versions may have gaps and repeat; the batches of a run are consecutive


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options of one query. `staging` is the folder through which tasks pass rows to the driver."""

    kafka: KafkaSettings
    topic: str | None
    guarantee: Guarantee
    staging: Path
    commit_topic: str
    dead_letter_topic: str | None
    has_headers: bool
    has_timestamps: bool
    identity: BatchIdentity | None  # for a batch query: `txnAppId` and `txnVersion`
    is_raw: bool = True  # exactly once: tasks encode record batches, and Moldau's client sends them

    @property
    def is_sent_by_librdkafka(self) -> bool:
        return not self.is_raw or self.guarantee is not Guarantee.EXACTLY_ONCE

    @property
    def row_bytes_max(self) -> int:
        return self.kafka.number("max.request.size", ROW_BYTES_MAX)

    @property
    def batch_bytes_max(self) -> int:
        """The maximum uncompressed batch size; a larger row gets a batch of its own."""
        return min(self.kafka.number("batch.size", _BATCH_BYTES_MAX), self.row_bytes_max)

    @property
    def codec(self) -> Compression:
        name = self.kafka.java.get(_COMPRESSION, "none").lower()
        if name not in _CODECS:
            raise OptionError(f"Option 'kafka.{_COMPRESSION}' must be one of {', '.join(_CODECS)}, not {name!r}.")
        return _CODECS[name]

    @property
    def codec_level(self) -> int | None:
        name = f"compression.{self.codec.name.lower()}.level"
        text = self.kafka.java.get(name)
        if text is not None and not text.removeprefix("-").isdecimal():
            raise OptionError(f"Option 'kafka.{name}' must be a number, not {text!r}.")
        return None if text is None else int(text)


def sink_stream_options(raw: Mapping[str, str]) -> SinkOptions:
    """Parse the options of `writeStream`; exactly once by default."""
    given = _lowered(raw)
    for name in ("txnAppId", "txnVersion"):
        if name.lower() in given:
            raise OptionError(f"Option '{name}' is only for batch writes: a stream has its own query and batch ids.")
    return _parse(given, Guarantee.EXACTLY_ONCE, None)


def sink_batch_options(raw: Mapping[str, str]) -> SinkOptions:
    """Parse the options of `df.write`: at least once by default, exactly once with `txnAppId`."""
    given = _lowered(raw)
    identity = _identity(given)
    default = Guarantee.AT_LEAST_ONCE if identity is None else Guarantee.EXACTLY_ONCE
    options = _parse(given, default, identity)
    if identity is not None and options.guarantee is not Guarantee.EXACTLY_ONCE:
        raise OptionError("Option 'txnAppId' makes a write exactly-once; this contradicts 'deliveryGuarantee'.")
    return options


def _parse(given: Mapping[str, str], default: Guarantee, identity: BatchIdentity | None) -> SinkOptions:
    for name, sentence in _REJECTED.items():
        if given.get(name, "false").lower() != "false":
            raise OptionError(sentence)
    check_unknown_options(given)
    guarantee = _guarantee(given, default)
    kafka = producer_settings(given)
    if guarantee is Guarantee.EXACTLY_ONCE:
        _check_transactional(kafka)
    options = SinkOptions(
        kafka=kafka,
        topic=_topic(given, "topic"),
        guarantee=guarantee,
        staging=_staging(given),
        commit_topic=_topic(given, "commitTopic") or COMMIT_TOPIC,
        dead_letter_topic=_topic(given, "deadLetterTopic"),
        has_headers=_flag(given, "includeHeaders", default=True),
        has_timestamps=_flag(given, "includeTimestamp", default=False),
        identity=identity,
        is_raw=_is_raw(given, kafka),
    )
    if options.is_raw:
        _ = options.codec_level  # raises for an invalid value
    return options


def _is_raw(given: Mapping[str, str], kafka: KafkaSettings) -> bool:
    """Whether to use Moldau's own client, which does not support every SASL mechanism."""
    chosen = given.get("sender", "auto").strip().lower()
    if chosen not in ("auto", "raw", "librdkafka"):
        raise OptionError(f"Option 'sender' must be auto, raw or librdkafka, not {chosen!r}.")
    if chosen == "raw" and not kafka.suits_own_client:
        raise OptionError(
            "Option 'sender' cannot be 'raw' with this SASL mechanism: remove it to send through librdkafka."
        )
    return chosen != "librdkafka" and kafka.suits_own_client


def _check_transactional(kafka: KafkaSettings) -> None:
    for name, allowed in (("acks", ("all", "-1")), ("enable.idempotence", ("true",))):
        value = kafka.java.get(name, allowed[0])
        if value.lower() not in allowed:
            raise OptionError(
                f"Option 'kafka.{name}' cannot be {value!r} when rows are written exactly once; leave it out, or set "
                "'deliveryGuarantee' to at-least-once."
            )


def _identity(given: Mapping[str, str]) -> BatchIdentity | None:
    writer, version = _text(given, "txnAppId"), _text(given, "txnVersion")
    if writer is None and version is None:
        return None
    if writer is None or version is None:
        raise OptionError("Options 'txnAppId' and 'txnVersion' must be set together: one of them is missing.")
    if not version.isdecimal():
        raise OptionError(f"Option 'txnVersion' must be a number, such as the id of a batch, not {version!r}.")
    return BatchIdentity(_writer(writer, _text(given, "topic")), int(version), is_user_versioned=True)


def _writer(application: str, topic: str | None) -> str:
    """Return the writer id: one per application and topic, or per application if rows name their topics."""
    if topic is None and _TOPIC_SEPARATOR not in application:
        return application
    # The suffix is a topic or empty, so ids of different writers never collide.
    return f"{application}{_TOPIC_SEPARATOR}{topic or ''}"


def _guarantee(given: Mapping[str, str], default: Guarantee) -> Guarantee:
    said = given.get("deliveryguarantee", default.value).strip().lower().replace("_", "-")
    for guarantee in Guarantee:
        if said == guarantee.value:
            return guarantee
    raise OptionError(f"Option 'deliveryGuarantee' must be exactly-once or at-least-once, not {said!r}.")


def _staging(given: Mapping[str, str]) -> Path:
    """Return the option's folder, else one beside a local checkpoint, else a temporary folder."""
    chosen = _text(given, "stagingLocation")
    if chosen is not None:
        folder = _local_path(chosen)
        if folder is None:
            raise OptionError(f"Option 'stagingLocation' must be a folder that all nodes can write to, not {chosen!r}.")
        return folder
    checkpoint = _local_path(given[_CHECKPOINT]) if _CHECKPOINT in given else None
    return (checkpoint or Path(tempfile.gettempdir())) / _FOLDER


def _local_path(location: str) -> Path | None:
    parts = urlsplit(location)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if parts.scheme else Path(location).absolute()


def _text(given: Mapping[str, str], name: str) -> str | None:
    value = given.get(name.lower())
    if value is None:
        return None
    if not value.strip():
        raise OptionError(f"Option '{name}' is empty.")
    return value.strip()


def _topic(given: Mapping[str, str], name: str) -> str | None:
    topic = _text(given, name)
    return None if topic is None else check_topic_name(name, topic)


def _flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    value = given.get(name.lower(), str(default)).strip().lower()
    if value not in ("true", "false"):
        raise OptionError(f"Option '{name}' must be true or false, not {value!r}.")
    return value == "true"


def _lowered(raw: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in raw.items()}
