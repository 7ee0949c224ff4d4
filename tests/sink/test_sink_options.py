"""The options of the sink, and the columns of its input."""

import logging
import tempfile
from pathlib import Path

import pytest

from pyspark_moldau.options.offset_limits import OptionError
from pyspark_moldau.options.sink_options import BatchIdentity, Guarantee, sink_batch_options, sink_stream_options
from pyspark_moldau.sink.records import check_columns
from pyspark_moldau.sink.transaction_commit import transaction_timeout_ms

SERVERS = {"kafka.bootstrap.servers": "here:9092"}
TOPIC = {**SERVERS, "topic": "out"}


def test_stream_defaults_to_exactly_once_and_batch_to_at_least_once() -> None:
    assert sink_stream_options(TOPIC).guarantee is Guarantee.EXACTLY_ONCE
    assert sink_batch_options(TOPIC).guarantee is Guarantee.AT_LEAST_ONCE
    chosen = {**TOPIC, "deliveryguarantee": "at-least-once"}
    assert sink_stream_options(chosen).guarantee is Guarantee.AT_LEAST_ONCE


def test_txn_app_id_and_version_make_a_batch_exactly_once() -> None:
    options = sink_batch_options({**TOPIC, "txnAppId": "nightly", "txnVersion": "17"})
    assert options.guarantee is Guarantee.EXACTLY_ONCE
    assert options.identity == BatchIdentity("nightly@out", 17, is_user_versioned=True)


@pytest.mark.proves("D2")
def test_writer_names_of_different_targets_are_distinct() -> None:
    def writer(application: str, **topic: str) -> str:
        identity = sink_batch_options({**SERVERS, **topic, "txnAppId": application, "txnVersion": "1"}).identity
        assert identity is not None
        return identity.writer

    assert writer("nightly") == "nightly"  # the rows name their topics
    assert writer("nightly", topic="orders") == "nightly@orders"
    distinct = [
        *(writer("a", topic=topic) for topic in ("b", "c")),
        *(writer(application) for application in ("a", "a@", "a@b", "a@b@", "a@b@c")),
        *(writer(application, topic="b") for application in ("a@", "a@b")),
        writer("a@b", topic="c"),
    ]
    assert len(set(distinct)) == len(distinct)


def test_rows_are_staged_beside_the_checkpoint_or_at_staging_location(tmp_path: Path) -> None:
    beside = sink_stream_options({**TOPIC, "checkpointLocation": f"file://{tmp_path}/a%20b"})
    assert beside.staging == tmp_path / "a b" / "moldau-staging"
    assert sink_stream_options({**TOPIC, "stagingLocation": str(tmp_path)}).staging == tmp_path
    for elsewhere in ("s3://bucket/x", "dbfs:/x"):
        staging = sink_stream_options({**TOPIC, "checkpointLocation": elsewhere}).staging
        assert staging == Path(tempfile.gettempdir()) / "moldau-staging"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"deliveryGuarantee": "sometimes"}, "'deliveryGuarantee' must be exactly-once or at-least-once"),
        ({"stagingLocation": "s3://bucket/x"}, "'stagingLocation' must be a folder"),
        ({"stagingLocation": "dbfs:/x"}, "'stagingLocation' must be a folder"),
        ({"topic": " "}, "'topic' is empty"),
        ({"topic": "größen"}, "'topic': 'größen' is not a valid topic name"),
        ({"deadLetterTopic": "a b"}, "'deadLetterTopic': 'a b' is not a valid topic name"),
        ({"commitTopic": ".."}, "'commitTopic': '..' is not a valid topic name"),
        ({"kafka.transactional.id": "mine"}, "'kafka.transactional.id' is not supported"),
        ({"kafka.key.serializer": "x"}, "'kafka.key.serializer' is not supported"),
        ({"kafka.value.serializer": "x"}, "'kafka.value.serializer' is not supported"),
        ({"kafka.bootstrap.servers": ""}, "'kafka.bootstrap.servers' is required"),
        ({"includeHeaders": "perhaps"}, "'includeHeaders' must be true or false"),
        ({"kafka.acks": "1"}, "'kafka.acks' cannot be '1' when rows are written exactly once"),
        ({"kafka.enable.idempotence": "false"}, "'kafka.enable.idempotence' cannot be 'false'"),
        ({"asyncProgressTrackingEnabled": "true"}, "'asyncProgressTrackingEnabled' cannot be used"),
        ({"txnAppId": "a", "txnVersion": "1"}, "'txnAppId' is only for batch writes"),
    ],
)
def test_invalid_stream_option_is_rejected(options: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        sink_stream_options({**TOPIC, **options})


@pytest.mark.proves("D2")
def test_misspelled_sink_option_is_rejected_with_the_nearest_name() -> None:
    with pytest.raises(OptionError, match=r"'deliverygarantee' is unknown\. Did you mean 'deliveryGuarantee'\?"):
        sink_batch_options({**TOPIC, "deliveryGarantee": "exactly-once"})


@pytest.mark.proves("D2")
def test_unknown_sink_option_is_logged_unless_it_is_from_spark(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        sink_batch_options({**TOPIC, "colour": "red"})
    assert "Option 'colour' is unknown and is ignored." in caplog.text
    caplog.clear()
    own = {"checkpointLocation": "/tmp/c", "path": "x", "queryname": "q"}  # passed by Spark with every batch
    sink_stream_options({**TOPIC, "includeTimestamp": "true", **own})
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"txnAppId": "a"}, "must be set together"),
        ({"txnVersion": "1"}, "must be set together"),
        ({"txnAppId": "a", "txnVersion": "one"}, "'txnVersion' must be a number"),
        ({"txnAppId": "a", "txnVersion": "1", "deliveryGuarantee": "at-least-once"}, "contradicts"),
    ],
)
def test_invalid_batch_option_is_rejected(options: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        sink_batch_options({**TOPIC, **options})


@pytest.mark.parametrize(
    ("types", "words"),
    [
        ({"key": "string"}, "Column 'value' is required; the columns are key"),
        ({"value": "int"}, "Column 'value' has type int; it must be string or binary"),
        ({"value": "string", "key": "bigint"}, "Column 'key' has type bigint; it must be string or binary"),
        ({"value": "binary", "partition": "bigint"}, "Column 'partition' has type bigint; it must be int"),
        ({"value": "binary", "headers": "string"}, "Column 'headers' has type string; it must be array<struct<"),
    ],
)
def test_column_of_a_wrong_type_is_named_with_its_type(types: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        check_columns(types, sink_stream_options(TOPIC))


def test_rows_need_a_topic_option_or_column() -> None:
    with pytest.raises(OptionError, match="set the option 'topic' or add a column 'topic'"):
        check_columns({"value": "string"}, sink_stream_options(SERVERS))
    check_columns({"value": "string", "topic": "string"}, sink_stream_options(SERVERS))


def test_unused_columns_may_have_any_type() -> None:
    columns = {"value": "string", "topic": "int", "timestamp": "string", "offset": "map<int,int>"}
    check_columns(columns, sink_stream_options(TOPIC))


@pytest.mark.proves("D2")
@pytest.mark.parametrize(
    ("rows", "size_bytes", "timeout_ms"),
    [
        (1, 0, 60_000),
        (2_000_000, 0, 200_000),
        (50_000_000, 0, 900_000),
        (500_000, 50_000_000, 60_000),
        (500_000, 5_000_000_000, 250_000),
        (500_000, 50_000_000_000, 900_000),
        (4_000_000, 5_000_000_000, 400_000),
    ],
)
def test_transaction_timeout_grows_with_rows_and_bytes(rows: int, size_bytes: int, timeout_ms: int) -> None:
    assert transaction_timeout_ms(sink_stream_options(TOPIC), rows, size_bytes) == timeout_ms
    requested = sink_stream_options({**TOPIC, "kafka.transaction.timeout.ms": "5000"})
    assert transaction_timeout_ms(requested, rows, size_bytes) == 5000


def test_raw_sender_is_the_default_unless_unsupported_or_overridden() -> None:
    assert sink_stream_options(TOPIC).is_raw
    assert not sink_stream_options({**TOPIC, "sender": "librdkafka"}).is_raw
    assert sink_stream_options({**TOPIC, "kafka.security.protocol": "SSL"}).is_raw
    kerberos = {**TOPIC, "kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "GSSAPI"}
    assert not sink_stream_options(kerberos).is_raw
    with pytest.raises(OptionError, match="'sender' cannot be 'raw' with this SASL mechanism"):
        sink_stream_options({**kerberos, "sender": "raw"})


def test_batch_settings_come_from_the_producer_settings() -> None:
    options = sink_stream_options(
        {**TOPIC, "kafka.compression.type": "zstd", "kafka.compression.zstd.level": "7", "kafka.batch.size": "16384"}
    )
    assert (options.codec.name, options.codec_level, options.batch_bytes_max) == ("ZSTD", 7, 16384)
    with pytest.raises(OptionError, match=r"compression\.gzip\.level' must be a number"):
        sink_stream_options({**TOPIC, "kafka.compression.type": "gzip", "kafka.compression.gzip.level": "best"})
