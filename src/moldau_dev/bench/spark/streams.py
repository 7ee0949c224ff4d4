"""One stream: exactly once into a topic, into `noop`, into a discarding Python sink. Measures batch durations."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from moldau.cli.bench.bench import Bench
from moldau.cli.bench.cluster import Topic
from moldau.cli.bench.rounds import Round, Subjects
from moldau.cli.errors import CommandError
from moldau_dev.bench.spark.records import PARTITIONS, Records

SINK: Final = "stream of 100 B rows, exactly once into a topic"
NOOP: Final = "the same stream into noop"
FLOOR: Final = "the same stream into a Python sink that keeps nothing"
BATCHES: Final = 4
_DONE_S_MAX: Final = 300


def streams(spark: Any, bench: Bench, topic: Topic, records: Records) -> Subjects:
    from moldau_dev.bench.spark.discard_sink import FORMAT, DiscardingSink

    spark.dataSource.register(DiscardingSink)
    return {
        SINK: lambda: _into_topic(spark, bench, topic, records),
        NOOP: lambda: _round(_rows(spark, bench, topic, records).writeStream.format("noop"), bench, records),
        FLOOR: lambda: _round(_rows(spark, bench, topic, records).writeStream.format(FORMAT), bench, records),
    }


def _rows(spark: Any, bench: Bench, topic: Topic, records: Records) -> Any:
    options = {
        "kafka.bootstrap.servers": bench.cluster.bootstrap_servers,
        "subscribe": topic.name,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": records.count // BATCHES,
    }
    return spark.readStream.format("moldau").options(**options).load().select("key", "value")


def _into_topic(spark: Any, bench: Bench, topic: Topic, records: Records) -> Round:
    with bench.cluster.topic(PARTITIONS) as target:
        options = {"kafka.bootstrap.servers": bench.cluster.bootstrap_servers, "topic": target.name}
        writer = _rows(spark, bench, topic, records).writeStream.format("moldau").options(**options)
        measured = _round(writer, bench, records)
        # Transaction markers have offsets too.
        if sum(bench.cluster.end_offsets(target)) < records.count:
            raise CommandError("the sink has written fewer rows than the stream has")
    return measured


def _round(writer: Any, bench: Bench, records: Records) -> Round:
    with tempfile.TemporaryDirectory(dir=bench.folder) as checkpoint:
        query = writer.option("checkpointLocation", str(Path(checkpoint))).trigger(availableNow=True).start()
        try:
            if not query.awaitTermination(_DONE_S_MAX):
                raise CommandError(f"a stream of {records.count} rows did not end within {_DONE_S_MAX} s")
        finally:
            query.stop()
        return of_batches([json.loads(each.json) for each in query.recentProgress], records)


def of_batches(progress: Sequence[dict[str, Any]], records: Records) -> Round:
    """Skip the first batch, which opens connections and starts the query."""
    with_rows = [each for each in progress if each["numInputRows"]]
    if len(with_rows) != BATCHES:
        raise CommandError(f"{BATCHES} batches expected, Spark reported {len(with_rows)}")
    counted = with_rows[1:]
    rows = sum(each["numInputRows"] for each in counted)
    elapsed_s = sum(each["durationMs"]["triggerExecution"] for each in counted) / 1000
    return Round(len(counted), elapsed_s, rows * records.record_bytes, rows)
