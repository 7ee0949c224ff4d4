"""Kafka's settings of quotas, metrics and plug-ins that have no effect here."""

from typing import Final

from moldau.model.kafka_settings.row import CLASS, CLUSTER, INT, LIST, LONG, STRING, row
from moldau.model.units import SECOND_MS, MiB

ROWS: Final = (
    row("alter.log.dirs.replication.quota.window.num", INT, 11, "Samples of the quota for moves.", at_least=1),
    row("alter.log.dirs.replication.quota.window.size.seconds", INT, 1, "Span of such a sample.", at_least=1),
    row("client.quota.callback.class", CLASS, None, "A class that sets clients' quotas."),
    row("controller.quota.window.num", INT, 11, "Samples of the quota for metadata changes.", at_least=1),
    row("controller.quota.window.size.seconds", INT, 1, "Span of such a sample.", at_least=1),
    row("quota.window.num", INT, 11, "Samples of clients' quotas.", at_least=1),
    row("quota.window.size.seconds", INT, 1, "Span of such a sample.", at_least=1),
    row("replication.quota.window.num", INT, 11, "Samples of the quota for replication.", at_least=1),
    row("replication.quota.window.size.seconds", INT, 1, "Span of such a sample.", at_least=1),
    row("config.providers", LIST, (), "Classes that fetch values from elsewhere.", scope=CLUSTER),
    row("kafka.metrics.polling.interval.secs", INT, 10, "How often older reporters look.", at_least=1),
    row("kafka.metrics.reporters", LIST, (), "Older classes that report metrics."),
    row(
        "metric.reporters",
        LIST,
        ("org.apache.kafka.common.metrics.JmxReporter",),
        "Classes that report metrics.",
        scope=CLUSTER,
    ),
    row("metrics.jmx.include", STRING, ".*", "The metrics that JMX shows.", scope=CLUSTER),
    row("metrics.jmx.exclude", STRING, "", "The metrics that JMX hides.", scope=CLUSTER),
    row("metrics.num.samples", INT, 2, "Samples that a metric is computed from.", at_least=1),
    row("metrics.recording.level", STRING, "INFO", "How detailed metrics are."),
    row("metrics.sample.window.ms", LONG, 30 * SECOND_MS, "Span of a metric's sample.", at_least=1),
    row("telemetry.max.bytes", INT, MiB, "The largest metrics a client may push.", at_least=1),
)
