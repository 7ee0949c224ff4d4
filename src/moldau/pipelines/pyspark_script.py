"""A job of several queries as a plain PySpark script that needs only `format("moldau")`."""

from collections.abc import Sequence
from typing import Final

from moldau.pipelines.flow import Flow, options_code

_HEAD: Final = '''\
"""{title}: the queries of `moldau pipeline run activity` as plain PySpark. Its report is left out.

Needs Java 17 or newer, and Moldau with its extra spark.
"""

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

# Topics that queries read must be there when they start.
admin = AdminClient({{"bootstrap.servers": {servers!r}}})
for created in admin.create_topics([NewTopic(name, -1) for name in {topics!r}]).values():
    try:
        created.result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise

spark = (
    SparkSession.builder.appName({name!r})
    .master({master!r})
{settings}    .getOrCreate()
)
queries = []
'''
SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.ui.showConsoleProgress": "false",
}


def queries_script(
    name: str, flows: Sequence[tuple[Flow, str]], topics: Sequence[str], *, master: str | None, every: str | None
) -> str:
    """Return a script for flows and checkpoints. `every` is the trigger interval; None: run each once, in turn."""
    servers = flows[0][0].source.bootstrap_servers
    settings = options_code(SETTINGS).replace("    .option(", "    .config(")
    parts = [
        _HEAD.format(
            title=name, name=name, servers=servers, topics=list(topics), master=master or "local[*]", settings=settings
        )
    ]
    for flow, checkpoint in flows:
        parts += [f"\n# {flow.name}", *flow.code(), _started(flow, checkpoint, every)]
    if every:
        parts.append("spark.streams.awaitAnyTermination()\n")
    return "\n".join(parts)


def _started(flow: Flow, checkpoint: str, every: str | None) -> str:
    trigger = f"processingTime={every!r}" if every else "availableNow=True"
    started = (
        f"queries.append(\n    writer.queryName({flow.name!r})\n"
        f'    .option("checkpointLocation", {checkpoint!r})\n    .trigger({trigger})\n    .start()\n)\n'
    )
    return started if every else started + "queries[-1].awaitTermination()\n"
