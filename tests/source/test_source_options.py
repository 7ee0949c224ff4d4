"""The options of the Spark source follow the rules of the official source."""

import logging
from collections.abc import Callable

import pytest

from moldau.model.ids import TopicPartition
from pyspark_moldau.options.offset_limits import AtOffsets, AtTime, AtTimes, Earliest, Latest, OptionError
from pyspark_moldau.options.source_options import (
    Assignment,
    Fetcher,
    Pattern,
    SourceOptions,
    Topics,
    batch_options,
    includes_headers,
    stream_options,
)

MUST = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "clicks"}


def batch(**given: object) -> SourceOptions:
    return batch_options(MUST | named(given))


def stream(**given: object) -> SourceOptions:
    return stream_options(MUST | named(given))


def named(given: dict[str, object]) -> dict[str, str]:
    return {name.replace("__", "."): str(value) for name, value in given.items()}


def test_option_names_are_case_insensitive() -> None:
    options = batch_options({"KAFKA.bootstrap.servers": "a:1", "SUBSCRIBE": "Clicks", "minPartitions": "7"})
    assert (options.subscription, options.partitions_min) == (Topics(("Clicks",)), 7)


def test_subscribe_accepts_several_topics_and_spaces() -> None:
    assert batch(subscribe=" a, b ,a,, ").subscription == Topics(("a", "b"))


@pytest.mark.proves("D1")
def test_pattern_matches_anywhere_in_a_name_unless_anchored() -> None:
    """Like in the official source, the pattern need not match the whole name."""
    subscription = batch_options({"kafka.bootstrap.servers": "a:1", "subscribePattern": "click.*"}).subscription
    assert isinstance(subscription, Pattern)
    assert subscription.matches("clicks")
    assert subscription.matches("my-clicks")
    assert not subscription.matches("views")
    assert not Pattern("^clicks$").matches("my-clicks")


def test_partitions_can_be_assigned() -> None:
    options = batch_options({"kafka.bootstrap.servers": "a:1", "assign": '{"b": [1, 0], "a": [2]}'})
    assert options.subscription == Assignment((TopicPartition("a", 2), TopicPartition("b", 0), TopicPartition("b", 1)))


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"subscribe": "a", "assign": '{"a": [0]}'},
        {"subscribe": "a", "subscribePattern": "a"},
        {"subscribe": " "},
        {"subscribe": ", ,"},
        {"subscribePattern": "("},
        {"assign": "{}"},
        {"assign": '{"a": 0}'},
        {"assign": '{"a": [-1]}'},
        {"assign": '{"a": [true]}'},
        {"assign": "a"},
        {"assign": '{"größen": [0]}'},
        {"subscribe": "a,größen"},
        {"subscribe": "a b"},
    ],
)
def test_exactly_one_valid_topic_selection_is_required(given: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=r"subscribe|assign"):
        batch_options({"kafka.bootstrap.servers": "a:1"} | given)


def test_missing_bootstrap_servers_are_rejected() -> None:
    with pytest.raises(OptionError, match=r"kafka\.bootstrap\.servers"):
        batch_options({"subscribe": "a"})
    with pytest.raises(
        OptionError, match=r"'kafka\.bootstrap\.server' is unknown\. Did you mean 'kafka\.bootstrap\.servers'"
    ):
        batch_options({"subscribe": "a", "kafka.bootstrap.server": "a:1"})


@pytest.mark.proves("D1")
@pytest.mark.parametrize(
    ("name", "nearest"),
    [("startingOffset", "startingOffsets"), ("failOnDataLos", "failOnDataLoss"), ("minPartition", "minPartitions")],
)
def test_misspelled_option_is_rejected_with_the_nearest_name(name: str, nearest: str) -> None:
    with pytest.raises(OptionError, match=f"'{name.lower()}' is unknown. Did you mean '{nearest}'?"):
        stream_options({**MUST, name: "earliest"})


@pytest.mark.proves("D1")
def test_stream_starts_at_latest_and_batch_at_earliest() -> None:
    assert stream().starting == Latest()
    assert (batch().starting, batch().ending) == (Earliest(), Latest())


def test_offsets_are_earliest_latest_or_json() -> None:
    assert stream(startingOffsets="EARLIEST").starting == Earliest()
    options = stream(startingOffsets='{"clicks": {"0": 23, "1": -2, "2": -1}}')
    where = [TopicPartition("clicks", index) for index in range(3)]
    assert options.starting == AtOffsets({where[0]: 23, where[1]: -2, where[2]: -1})


@pytest.mark.parametrize(
    "text",
    ["soon", "[]", '{"a": 5}', '{"a": {"0": "5"}}', '{"a": {"0": -3}}', '{"a": {"x": 1}}', '{"a": {"0": true}}', "{"],
)
def test_invalid_offsets_are_rejected(text: str) -> None:
    with pytest.raises(OptionError, match="startingOffsets"):
        stream(startingOffsets=text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("startingTimestamp", "99999999999999999999"),
        ("startingTimestamp", "-1"),
        ("startingOffsetsByTimestamp", '{"clicks": {"0": 99999999999999999999}}'),
        ("startingOffsets", '{"clicks": {"0": 99999999999999999999}}'),
    ],
)
def test_out_of_range_timestamps_and_offsets_are_rejected(name: str, text: str) -> None:
    with pytest.raises(OptionError, match=name):
        stream(**{name: text})


def test_global_timestamp_overrides_timestamps_by_partition_and_offsets() -> None:
    by_time = {"startingOffsetsByTimestamp": '{"clicks": {"0": 1000}}'}
    assert stream(startingOffsets="earliest", **by_time).starting == AtTimes({TopicPartition("clicks", 0): 1000})
    assert stream(startingOffsets="earliest", startingTimestamp=5, **by_time).starting == AtTime(5)
    ending = batch(endingOffsets="latest", endingTimestamp=9, endingOffsetsByTimestamp='{"clicks": {"0": 1}}').ending
    assert ending == AtTime(9)


@pytest.mark.parametrize("given", [{"startingTimestamp": "-1"}, {"startingTimestamp": "noon"}])
def test_invalid_timestamp_is_rejected(given: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="startingTimestamp"):
        stream_options(MUST | given)


@pytest.mark.parametrize("offsets", ["latest", '{"clicks": {"0": -1}}'])
def test_batch_cannot_start_at_latest(offsets: str) -> None:
    with pytest.raises(OptionError, match=r"startingOffsets.*batch"):
        batch(startingOffsets=offsets)


@pytest.mark.parametrize("offsets", ["earliest", '{"clicks": {"0": -2}}'])
def test_batch_cannot_end_at_earliest(offsets: str) -> None:
    with pytest.raises(OptionError, match=r"endingOffsets.*batch"):
        batch(endingOffsets=offsets)


def test_batch_cannot_end_at_a_time_before_its_start() -> None:
    times = ['{"clicks": {"0": 5, "1": 5}}', '{"clicks": {"0": 5, "1": 4}}']
    with pytest.raises(OptionError, match=r"end before it starts.*clicks-1"):
        batch(startingOffsetsByTimestamp=times[0], endingOffsetsByTimestamp=times[1])
    assert isinstance(batch(startingOffsetsByTimestamp=times[1], endingOffsetsByTimestamp=times[0]).ending, AtTimes)


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_stream_rejects_ending_options(name: str) -> None:
    with pytest.raises(OptionError, match=f"{name}.*stream"):
        stream_options(MUST | {name: "latest"})


@pytest.mark.parametrize(
    "name",
    ["auto.offset.reset", "key.deserializer", "value.deserializer", "enable.auto.commit", "interceptor.classes"],
)
@pytest.mark.parametrize("parse", [batch_options, stream_options])
def test_settings_that_break_the_source_are_rejected(
    name: str, parse: Callable[[dict[str, str]], SourceOptions]
) -> None:
    with pytest.raises(OptionError, match=name):
        parse(MUST | {f"kafka.{name}": "x"})


@pytest.mark.parametrize("name", ["minPartitions", "maxRecordsPerPartition"])
@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5"])
def test_counts_must_be_positive(name: str, value: str) -> None:
    with pytest.raises(OptionError, match=f"{name}.*positive"):
        batch_options(MUST | {name: value})


@pytest.mark.proves("D1")
def test_min_offsets_cannot_exceed_max_offsets_per_trigger() -> None:
    with pytest.raises(OptionError, match=r"minOffsetsPerTrigger.*maxOffsetsPerTrigger"):
        stream(minOffsetsPerTrigger=11, maxOffsetsPerTrigger=10)
    with pytest.raises(OptionError, match=r"minOffsetsPerTrigger.*maxOffsetsPerTrigger"):
        batch(minOffsetsPerTrigger=11, maxOffsetsPerTrigger=10)
    assert stream(minOffsetsPerTrigger=10, maxOffsetsPerTrigger=10).offsets_per_trigger_min == 10


def test_batch_ignores_rates_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        options = batch(maxOffsetsPerTrigger=6, minOffsetsPerTrigger=5, maxTriggerDelay="a while")
    assert options.offsets_per_trigger_max is options.offsets_per_trigger_min is None
    assert [name for name in ("maxOffsets", "minOffsets", "maxTriggerDelay") if name in caplog.text] == [
        "maxOffsets",
        "minOffsets",
        "maxTriggerDelay",
    ]


@pytest.mark.parametrize("name", ["maxOffsetsPerTrigger", "minOffsetsPerTrigger"])
def test_rate_must_be_a_number(name: str) -> None:
    assert stream(maxOffsetsPerTrigger=7).offsets_per_trigger_max == 7
    with pytest.raises(OptionError, match=name):
        stream_options(MUST | {name: "many"})


def test_timeouts_and_retries_default_to_those_of_the_official_source() -> None:
    options = batch()
    assert (options.poll_timeout_ms, options.retries, options.retry_interval_ms) == (120_000, 3, 10)
    words = {"kafkaConsumer.pollTimeoutMs": "5", "fetchOffset.numRetries": "0", "fetchOffset.retryIntervalMs": "7"}
    options = batch_options(MUST | words)
    assert (options.poll_timeout_ms, options.retries, options.retry_interval_ms) == (5, 0, 7)
    for name in words:
        with pytest.raises(OptionError, match=name):
            batch_options(MUST | {name: "some"})


@pytest.mark.parametrize(
    ("text", "ms"), [("15m", 900_000), ("30s", 30_000), ("500ms", 500), ("7", 7), ("2 h", 7_200_000)]
)
def test_trigger_delay_is_parsed_as_a_duration(text: str, ms: int) -> None:
    assert stream(maxTriggerDelay=text).trigger_delay_ms_max == ms


def test_trigger_delay_defaults_to_15_minutes_and_must_be_valid() -> None:
    assert stream().trigger_delay_ms_max == 900_000
    with pytest.raises(OptionError, match="maxTriggerDelay"):
        stream(maxTriggerDelay="a while")


def test_flags_are_true_or_false() -> None:
    assert includes_headers({"INCLUDEHEADERS": "True"})
    assert not includes_headers({})
    assert batch().fails_on_data_loss
    assert not batch(failOnDataLoss="FALSE").fails_on_data_loss
    with pytest.raises(OptionError, match="failOnDataLoss"):
        batch(failOnDataLoss="maybe")


def test_start_time_after_the_last_record_is_an_error_by_default() -> None:
    assert not stream().falls_back_to_latest
    assert stream(startingOffsetsByTimestampStrategy="latest").falls_back_to_latest
    with pytest.raises(OptionError, match="startingOffsetsByTimestampStrategy"):
        stream(startingOffsetsByTimestampStrategy="never")


def test_commit_group_is_commit_offsets_or_group_id_or_none() -> None:
    assert stream().group is None
    assert stream(kafka__group__id="a").group == "a"
    assert stream(kafka__group__id="a", commitOffsets="b").group == "b"


def test_reading_group_is_group_id_or_the_prefix() -> None:
    assert stream(kafka__group__id="a", groupIdPrefix="p").reading_group == "a"
    assert stream(groupIdPrefix="p").reading_group == "p"
    assert stream().reading_group == "moldau-spark"


def test_read_committed_must_be_requested() -> None:
    assert not batch().kafka.reads_committed
    assert batch_options(MUST | {"kafka.isolation.level": "read_committed"}).kafka.reads_committed
    with pytest.raises(OptionError, match=r"isolation\.level"):
        batch_options(MUST | {"kafka.isolation.level": "READ"})


def test_mechanism_that_the_own_client_lacks_requires_librdkafka() -> None:
    assert batch().fetcher is Fetcher.RAW
    assert batch(fetcher="librdkafka").fetcher is Fetcher.LIBRDKAFKA
    assert batch(kafka__security__protocol="SSL").fetcher is Fetcher.RAW
    scram = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "SCRAM-SHA-512"}
    assert batch_options(MUST | scram).fetcher is Fetcher.RAW
    kerberos = scram | {"kafka.sasl.mechanism": "GSSAPI"}
    assert batch_options(MUST | kerberos).fetcher is Fetcher.LIBRDKAFKA
    with pytest.raises(OptionError, match="fetcher"):
        batch_options(MUST | kerberos | {"fetcher": "raw"})


def test_unknown_source_option_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        batch(colour="red")
    assert "Option 'colour' is unknown and is ignored." in caplog.text
