"""Moldau's connector rejects what Spark's connector rejects, and on purpose some more."""

from pathlib import Path
from typing import Any

import pytest
from connector import BOTH, OFFICIAL, OURS, table, with_options
from connector_scene import produce_numbers

from moldau.testing.broker import Broker
from moldau_dev.spark import until_done

TOPIC = "{topic}"

# Invalid options of a batch read, in addition to `subscribe`; None removes an option.
WRONG_IN_A_BATCH: dict[str, dict[str, object]] = {
    "no topics": {"subscribe": None},
    "an empty list of topics": {"subscribe": " , "},
    "two ways to name topics": {"assign": '{"a": [0]}'},
    "an empty pattern": {"subscribe": None, "subscribePattern": " "},
    "an assignment that is none": {"subscribe": None, "assign": "a"},
    "a topic that is not there": {"subscribe": "nowhere"},
    "no bootstrap": {"kafka.bootstrap.servers": None},
    "start at the latest": {"startingOffsets": "latest"},
    "a partition's start at the latest": {"startingOffsets": '{"{topic}": {"0": -1, "1": 0}}'},
    "end at the earliest": {"endingOffsets": "earliest"},
    "a partition's end at the earliest": {"endingOffsets": '{"{topic}": {"0": -2, "1": 0}}'},
    "offsets that are none": {"startingOffsets": "soon"},
    "a partition that is not named": {"startingOffsets": '{"{topic}": {"0": 1}}'},
    "a partition that is not there": {"startingOffsets": '{"{topic}": {"0": 1, "1": 1, "7": 1}}'},
    "an end that leaves out a partition": {"endingOffsets": '{"{topic}": {"0": 1}}'},
    "times that leave out a partition": {"startingOffsetsByTimestamp": '{"{topic}": {"0": 1}}'},
    "a start after the end": {
        "startingOffsets": '{"{topic}": {"0": 3, "1": 3}}',
        "endingOffsets": '{"{topic}": {"0": 1, "1": 1}}',
    },
    "a start after the last record": {"startingOffsets": '{"{topic}": {"0": 99999, "1": 0}}'},
    "a time that is none": {"startingTimestamp": "noon"},
    "an end time that is none": {"endingTimestamp": "noon"},
    "a start time after the last record": {"startingTimestamp": 9_999_999_999_999},
    "a start time after the end time": {
        "startingOffsetsByTimestamp": '{"{topic}": {"0": 9, "1": 9}}',
        "endingOffsetsByTimestamp": '{"{topic}": {"0": 1, "1": 1}}',
    },
    "no such strategy": {"startingOffsetsByTimestampStrategy": "perhaps"},
    "no partitions at least": {"minPartitions": 0},
    "partitions that are no number": {"minPartitions": "many"},
    "no records at most": {"maxRecordsPerPartition": 0},
    "the least above the most": {"minOffsetsPerTrigger": 5, "maxOffsetsPerTrigger": 4},
    "no flag": {"failOnDataLoss": "perhaps"},
    "no flag for headers": {"includeHeaders": "perhaps"},
    "auto.offset.reset": {"kafka.auto.offset.reset": "earliest"},
    "key.deserializer": {"kafka.key.deserializer": "x"},
    "value.deserializer": {"kafka.value.deserializer": "x"},
    "enable.auto.commit": {"kafka.enable.auto.commit": "true"},
    "interceptor.classes": {"kafka.interceptor.classes": "x"},
    "isolation.level": {"kafka.isolation.level": "perhaps"},
}
# Also invalid in a stream.
WRONG_IN_A_STREAM: dict[str, dict[str, object]] = {
    "an end": {"endingOffsets": "latest"},
    "an end by times": {"endingOffsetsByTimestamp": '{"{topic}": {"0": 1, "1": 1}}'},
    "no topics": {"subscribe": None},
    "a topic that is not there": {"subscribe": "nowhere"},
    "a partition that is not named": {"startingOffsets": '{"{topic}": {"0": 1}}'},
    "a start time after the last record": {"startingTimestamp": 9_999_999_999_999},
    "the least above the most": {"minOffsetsPerTrigger": 5, "maxOffsetsPerTrigger": 4},
    "a delay that is none": {"maxTriggerDelay": "a while"},
    "a most that is no number": {"maxOffsetsPerTrigger": "many"},
    "auto.offset.reset": {"kafka.auto.offset.reset": "earliest"},
}
# Rejected by Moldau only; Spark's connector reads less than requested, or ignores unknown options.
REJECTED_BY_MOLDAU_ONLY: dict[str, dict[str, object]] = {
    "a partition to assign that is not there": {"subscribe": None, "assign": '{"{topic}": [0, 9]}'},
    "an unknown setting": {"kafka.fetch.max.byte": "1"},
}
WRONG_ROWS = {
    "no value": "select 'x' as payload",
    "a value that is a number": "select 1 as value",
    "a key that is a number": "select 1 as key, 'x' as value",
    "a partition that is a long": "select 'x' as value, 1L as partition",
    "headers that are text": "select 'x' as value, 'h' as headers",
    "a topic that is null": "select 'x' as value, cast(null as string) as topic",
    "a partition that is not there": "select 'x' as value, 99 as partition",
    "a partition below zero": "select 'x' as value, -5 as partition",
}
WRONG_WRITES: dict[str, dict[str, object]] = {
    "no topic": {"topic": None},
    "no bootstrap": {"kafka.bootstrap.servers": None},
    "key.serializer": {"kafka.key.serializer": "x"},
    "value.serializer": {"kafka.value.serializer": "x"},
    "a name that is none": {"topic": "no topic!"},
    "acks": {"kafka.acks": "7"},
}
SLOW = {"kafka.max.block.ms": 5_000, "kafka.delivery.timeout.ms": 6_000, "kafka.request.timeout.ms": 5_000}


def of(topic: str, given: dict[str, object]) -> dict[str, object]:
    named = {name: value.replace(TOPIC, topic) if isinstance(value, str) else value for name, value in given.items()}
    return {"subscribe": topic, **named}


def error_of(attempt: Any) -> str | None:
    """Return the error message, or None on success."""
    try:
        attempt()
    except Exception as error:
        return str(error) or repr(error)
    return None


@pytest.fixture(scope="module")
def filled(moldau_broker: Broker) -> str:
    topic = moldau_broker.create_topic("for-errors", partitions=2)
    produce_numbers(moldau_broker, topic, 20)
    return topic


def both_errors(attempt: Any) -> dict[str, str | None]:
    errors = {form: error_of(lambda form=form: attempt(form)) for form in BOTH}
    for form, words in errors.items():
        print(f"{form}: {(words or 'nothing').splitlines()[:2]}")
    return errors


@pytest.mark.parametrize("name", WRONG_IN_A_BATCH)
def test_both_connectors_reject_invalid_batch_options(
    spark: Any, moldau_broker: Broker, filled: str, name: str
) -> None:
    options = of(filled, WRONG_IN_A_BATCH[name])
    errors = both_errors(lambda form: table(spark, form, moldau_broker, options))
    assert errors[OFFICIAL], "Spark's connector accepts this"
    assert errors[OURS], errors[OFFICIAL]


@pytest.mark.parametrize("name", WRONG_IN_A_STREAM)
def test_both_connectors_reject_invalid_stream_options(
    spark: Any, moldau_broker: Broker, filled: str, tmp_path: Path, name: str
) -> None:
    options = of(filled, WRONG_IN_A_STREAM[name])

    def run(form: str) -> None:
        frame = with_options(spark.readStream, form, moldau_broker, options).load()
        until_done(frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / form)))

    errors = both_errors(run)
    assert errors[OFFICIAL], "Spark's connector accepts this"
    assert errors[OURS], errors[OFFICIAL]


@pytest.mark.parametrize("name", REJECTED_BY_MOLDAU_ONLY)
def test_moldau_alone_rejects_unknown_options(spark: Any, moldau_broker: Broker, filled: str, name: str) -> None:
    options = of(filled, REJECTED_BY_MOLDAU_ONLY[name])
    errors = both_errors(lambda form: table(spark, form, moldau_broker, options))
    assert errors[OFFICIAL] is None, "Spark's connector rejects it too"
    assert errors[OURS]


def test_moldau_alone_rejects_an_end_time_in_a_stream(
    spark: Any, moldau_broker: Broker, filled: str, tmp_path: Path
) -> None:
    options = {"subscribe": filled, "startingOffsets": "earliest", "endingTimestamp": 1}

    def run(form: str) -> None:
        frame = with_options(spark.readStream, form, moldau_broker, options).load()
        until_done(frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / form)))

    errors = both_errors(run)
    assert errors[OFFICIAL] is None
    assert errors[OURS]


@pytest.mark.parametrize("name", WRONG_ROWS)
def test_both_connectors_reject_invalid_rows(spark: Any, moldau_broker: Broker, filled: str, name: str) -> None:
    options = {**SLOW, "topic": None if "topic" in WRONG_ROWS[name] else filled}
    frame = spark.sql(WRONG_ROWS[name])
    errors = both_errors(lambda form: with_options(frame.write, form, moldau_broker, options).mode("append").save())
    assert errors[OFFICIAL], "Spark's connector accepts this"
    assert errors[OURS], errors[OFFICIAL]


@pytest.mark.parametrize("name", WRONG_WRITES)
def test_both_connectors_reject_invalid_write_options(
    spark: Any, moldau_broker: Broker, filled: str, name: str
) -> None:
    options = {**SLOW, "topic": filled, **WRONG_WRITES[name]}
    frame = spark.sql("select 'x' as value")
    errors = both_errors(lambda form: with_options(frame.write, form, moldau_broker, options).mode("append").save())
    assert errors[OFFICIAL], "Spark's connector accepts this"
    assert errors[OURS], errors[OFFICIAL]


@pytest.mark.parametrize("mode", ["overwrite", "ignore"])
def test_both_connectors_reject_other_save_modes(spark: Any, moldau_broker: Broker, filled: str, mode: str) -> None:
    frame = spark.sql("select 'x' as value")
    errors = both_errors(
        lambda form: with_options(frame.write, form, moldau_broker, {"topic": filled}).mode(mode).save()
    )
    assert errors[OFFICIAL], "Spark's connector accepts this"
    assert errors[OURS], errors[OFFICIAL]
