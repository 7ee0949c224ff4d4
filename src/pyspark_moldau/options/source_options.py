"""The validated source options: those of Spark's Kafka source and Moldau's own.

Spark passes option names in lower case; messages use the documented spelling.
"""

import difflib
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from moldau.model.ids import TopicPartition
from pyspark_moldau.options.kafka_settings import KafkaSettings, consumer_settings
from pyspark_moldau.options.offset_limits import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    AtOffsets,
    AtTimes,
    Earliest,
    Latest,
    Limit,
    OptionError,
    parse_assignment,
    parse_limit,
    parse_topic_ids,
)
from pyspark_moldau.options.topic_names import check_topic_name

log = logging.getLogger("pyspark_moldau")

KNOWN: Final = {
    name.lower(): name
    for name in (
        "subscribe subscribePattern assign startingOffsets startingTimestamp startingOffsetsByTimestamp "
        "startingOffsetsByTimestampStrategy endingOffsets endingTimestamp endingOffsetsByTimestamp failOnDataLoss "
        "maxOffsetsPerTrigger minOffsetsPerTrigger maxTriggerDelay minPartitions maxRecordsPerPartition includeHeaders "
        "groupIdPrefix kafkaConsumer.pollTimeoutMs fetchOffset.numRetries fetchOffset.retryIntervalMs commitOffsets "
        "topicIds fetcher path topic deliveryGuarantee stagingLocation commitTopic deadLetterTopic txnAppId txnVersion "
        "valueFormat schemaRegistry valueSubject valueErrors "
        "sender includeTimestamp checkpointLocation queryName"
    ).split()
}
_RATES: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
_ENDINGS: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_DELAY_MS: Final = 15 * 60 * 1000
_MISSPELLED: Final = 0.8  # similarity of names, from 0 to 1
_POLL_MS: Final = 120_000
_RETRIES: Final = 3
_RETRY_MS: Final = 10
_READING_GROUP: Final = "moldau-spark"
_UNIT_MS: Final = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


class Fetcher(Enum):
    """How tasks fetch: raw batches through Moldau's client, or records through librdkafka."""

    RAW = "raw"
    LIBRDKAFKA = "librdkafka"


@dataclass(frozen=True, slots=True)
class Topics:
    """All partitions of these topics."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pattern:
    """All partitions of topics whose name contains a match; anchor the expression with `^` and `$`."""

    expression: str

    def matches(self, topic: str) -> bool:
        return re.search(self.expression, topic) is not None


@dataclass(frozen=True, slots=True)
class Assignment:
    """Exactly these partitions."""

    partitions: tuple[TopicPartition, ...]


Subscription: TypeAlias = Topics | Pattern | Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of one query. `ending` applies to batch queries only, rates to streams only."""

    subscription: Subscription
    kafka: KafkaSettings
    starting: Limit
    ending: Limit
    falls_back_to_latest: bool  # a start time after the last record means the latest offset instead of an error
    fails_on_data_loss: bool
    offsets_per_trigger_max: int | None
    offsets_per_trigger_min: int | None
    trigger_delay_ms_max: int
    partitions_min: int | None
    records_per_partition_max: int | None
    includes_headers: bool
    group: str | None  # consumer group to which the progress is committed
    reading_group: str  # group.id for clients that require one; nothing is committed to it
    fetcher: Fetcher
    topic_ids: Mapping[str, str]  # ids at the start of the checkpoint, which does not store them
    poll_timeout_ms: int
    retries: int
    retry_interval_ms: int


def batch_options(raw: Mapping[str, str]) -> SourceOptions:
    """Parse the options of `spark.read`; options for streams are ignored with a warning."""
    given = _lowered(raw)
    _check_rates(given)
    for name in _RATES:
        if name.lower() in given:
            log.warning("Option '%s' applies to streams only and is ignored in a batch query.", name)
            del given[name.lower()]
    options = _parse(given, default_start=Earliest())
    _check_batch_start(options.starting)
    _check_batch_end(options.ending)
    _check_times(options.starting, options.ending)
    return options


def stream_options(raw: Mapping[str, str]) -> SourceOptions:
    """Parse the options of `spark.readStream`; ending offsets are rejected."""
    given = _lowered(raw)
    for name in _ENDINGS:
        if name.lower() in given:
            raise OptionError(f"Option '{name}' is not supported for streams, which have no end.")
    _check_rates(given)
    return _parse(given, default_start=Latest())


def includes_headers(raw: Mapping[str, str]) -> bool:
    """Whether rows have the column `headers`."""
    return _flag(_lowered(raw), "includeHeaders", default=False)


def _lowered(raw: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in raw.items()}


def _check_rates(given: Mapping[str, str]) -> None:
    least, most = _positive(given, "minOffsetsPerTrigger"), _positive(given, "maxOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        raise OptionError(f"Option 'minOffsetsPerTrigger' ({least}) is above 'maxOffsetsPerTrigger' ({most}).")


def _parse(given: Mapping[str, str], default_start: Limit) -> SourceOptions:
    check_unknown_options(given)
    kafka = consumer_settings(given)
    return SourceOptions(
        subscription=_subscription(given),
        kafka=kafka,
        starting=parse_limit("starting", given, default_start),
        ending=parse_limit("ending", given, Latest()),
        falls_back_to_latest=_choice(given, "startingOffsetsByTimestampStrategy", ("error", "latest")) == "latest",
        fails_on_data_loss=_flag(given, "failOnDataLoss", default=True),
        offsets_per_trigger_max=_positive(given, "maxOffsetsPerTrigger"),
        offsets_per_trigger_min=_positive(given, "minOffsetsPerTrigger"),
        trigger_delay_ms_max=_duration_ms(given, "maxTriggerDelay", _DELAY_MS),
        partitions_min=_positive(given, "minPartitions"),
        records_per_partition_max=_positive(given, "maxRecordsPerPartition"),
        includes_headers=_flag(given, "includeHeaders", default=False),
        group=given.get("commitoffsets") or kafka.group_id,
        reading_group=kafka.group_id or given.get("groupidprefix") or _READING_GROUP,
        fetcher=_fetcher(given, kafka),
        topic_ids=parse_topic_ids(given.get("topicids", "{}")),
        poll_timeout_ms=_positive(given, "kafkaConsumer.pollTimeoutMs") or _POLL_MS,
        retries=_count(given, "fetchOffset.numRetries", _RETRIES),
        retry_interval_ms=_count(given, "fetchOffset.retryIntervalMs", _RETRY_MS),
    )


def _subscription(given: Mapping[str, str]) -> Subscription:
    chosen = [name for name in ("subscribe", "subscribePattern", "assign") if name.lower() in given]
    if len(chosen) != 1:
        said = "none of them is" if not chosen else f"{' and '.join(chosen)} are"
        raise OptionError(f"Exactly one of the options subscribe, subscribePattern, assign is required; {said} given.")
    text = given[chosen[0].lower()].strip()
    if not text:
        raise OptionError(f"Option '{chosen[0]}' is empty: it names no topic.")
    match chosen[0]:
        case "assign":
            return _assignment(text)
        case "subscribePattern":
            return _pattern(text)
        case _:
            return _topics(text)


def _assignment(text: str) -> Assignment:
    partitions = parse_assignment(text)
    for topic in {each.topic for each in partitions}:
        check_topic_name("assign", topic)
    return Assignment(partitions)


def _topics(text: str) -> Topics:
    names = tuple(
        dict.fromkeys(check_topic_name("subscribe", name.strip()) for name in text.split(",") if name.strip())
    )
    if not names:
        raise OptionError(f"Option 'subscribe' names no topic: {text!r}.")
    return Topics(names)


def _pattern(text: str) -> Pattern:
    try:
        re.compile(text)
    except re.error as error:
        raise OptionError(f"Option 'subscribePattern' is not a valid regular expression: {error}.") from None
    return Pattern(text)


def _check_batch_start(limit: Limit) -> None:
    if isinstance(limit, Latest):
        raise OptionError("Option 'startingOffsets' cannot be 'latest' in a batch query: nothing would be read.")
    if isinstance(limit, AtOffsets) and LATEST_OFFSET in limit.offsets.values():
        raise OptionError("Option 'startingOffsets' cannot have -1 (latest) for a partition in a batch query.")


def _check_batch_end(limit: Limit) -> None:
    if isinstance(limit, Earliest):
        raise OptionError("Option 'endingOffsets' cannot be 'earliest' in a batch query: nothing would be read.")
    if isinstance(limit, AtOffsets) and EARLIEST_OFFSET in limit.offsets.values():
        raise OptionError("Option 'endingOffsets' cannot have -2 (earliest) for a partition in a batch query.")


def _check_times(starting: Limit, ending: Limit) -> None:
    if not isinstance(starting, AtTimes) or not isinstance(ending, AtTimes):
        return
    for where in sorted(starting.times_ms.keys() & ending.times_ms.keys()):
        start_ms, end_ms = starting.times_ms[where], ending.times_ms[where]
        if start_ms > end_ms:
            raise OptionError(
                f"A batch query would end before it starts: 'startingOffsetsByTimestamp' has {start_ms} for {where}, "
                f"'endingOffsetsByTimestamp' {end_ms}."
            )


def _fetcher(given: Mapping[str, str], kafka: KafkaSettings) -> Fetcher:
    chosen = _choice(given, "fetcher", ("auto", "raw", "librdkafka"))
    if chosen == "raw" and not kafka.suits_own_client:
        raise OptionError(
            "Option 'fetcher' cannot be 'raw' with this SASL mechanism: remove it to read through librdkafka."
        )
    return Fetcher.RAW if chosen != "librdkafka" and kafka.suits_own_client else Fetcher.LIBRDKAFKA


def check_unknown_options(given: Mapping[str, str]) -> None:
    """Reject misspelled options. Others that neither source nor sink knows are Spark's own, and are ignored."""
    for name in given:
        if name in KNOWN or name.startswith(("kafka.", "schema.registry.")):
            continue
        if near := difflib.get_close_matches(name, KNOWN, 1, _MISSPELLED):
            raise OptionError(f"Option '{name}' is unknown. Did you mean '{KNOWN[near[0]]}'?")
        log.warning("Option '%s' is unknown and is ignored.", name)


def _choice(given: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    value = given.get(name.lower(), choices[0]).strip().lower()
    if value not in choices:
        raise OptionError(f"Option '{name}' must be one of {', '.join(choices)}, not {value!r}.")
    return value


def _flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    value = given.get(name.lower(), str(default)).strip().lower()
    if value not in ("true", "false"):
        raise OptionError(f"Option '{name}' must be true or false, not {value!r}.")
    return value == "true"


def _positive(given: Mapping[str, str], name: str) -> int | None:
    value = given.get(name.lower())
    if value is None:
        return None
    if not value.strip().isdecimal() or int(value) == 0:
        raise OptionError(f"Option '{name}' must be a positive number, not {value!r}.")
    return int(value)


def _count(given: Mapping[str, str], name: str, default: int) -> int:
    value = given.get(name.lower(), str(default)).strip()
    if not value.isdecimal():
        raise OptionError(f"Option '{name}' must be a number, not {value!r}.")
    return int(value)


def _duration_ms(given: Mapping[str, str], name: str, default_ms: int) -> int:
    value = given.get(name.lower())
    if value is None:
        return default_ms
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", value.strip().lower())
    if found is None or found[2] not in _UNIT_MS:
        raise OptionError(f"Option '{name}' must be a duration like 500ms, 30s or 15m, not {value!r}.")
    return int(found[1]) * _UNIT_MS[found[2]]
