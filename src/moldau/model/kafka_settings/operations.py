"""Kafka's settings for quotas, metrics and plug-ins that have no effect."""

from typing import Final

from moldau.model.kafka_settings.row import CLASS, CLUSTER, INT, LIST, LONG, STRING, row
from moldau.model.units import SECOND_MS

ROWS: Final = (
    row(
        "alter.log.dirs.replication.quota.window.num",
        INT,
        11,
        "Number of samples for the quota of moves between log directories.",
        at_least=1,
    ),
    row("alter.log.dirs.replication.quota.window.size.seconds", INT, 1, "Time span of each sample.", at_least=1),
    row("client.quota.callback.class", CLASS, None, "Class that determines client quotas."),
    row("replication.quota.window.num", INT, 11, "Number of samples for the replication quota.", at_least=1),
    row("replication.quota.window.size.seconds", INT, 1, "Time span of each sample.", at_least=1),
    row("config.providers", LIST, (), "Config providers, which load values from external sources.", scope=CLUSTER),
    row("kafka.metrics.polling.interval.secs", INT, 10, "Polling interval of Yammer metrics reporters.", at_least=1),
    row("kafka.metrics.reporters", LIST, (), "Yammer metrics reporter classes."),
    row(
        "metric.reporters",
        LIST,
        ("org.apache.kafka.common.metrics.JmxReporter",),
        "Metrics reporter classes.",
        scope=CLUSTER,
    ),
    row("metrics.jmx.include", STRING, ".*", "Pattern of metrics to expose over JMX.", scope=CLUSTER),
    row("metrics.jmx.exclude", STRING, "", "Pattern of metrics to hide from JMX.", scope=CLUSTER),
    row("metrics.num.samples", INT, 2, "Number of samples per metric.", at_least=1),
    row("metrics.recording.level", STRING, "INFO", "Detail level of metrics."),
    row("metrics.sample.window.ms", LONG, 30 * SECOND_MS, "Time span of a metric sample.", at_least=1),
)
