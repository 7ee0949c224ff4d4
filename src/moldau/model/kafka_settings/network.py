"""Kafka's settings for sockets, threads and delayed requests that have no effect."""

from typing import Final

from moldau.model.kafka_settings.row import BOOLEAN, CLUSTER, INT, LIST, LONG, row
from moldau.model.settings import LONG_MAX
from moldau.model.units import SECOND_MS

ROWS: Final = (
    row("background.threads", INT, 10, "Threads for background work.", at_least=1, scope=CLUSTER),
    row("num.io.threads", INT, 8, "Threads that handle requests.", at_least=1, scope=CLUSTER),
    row("num.network.threads", INT, 3, "Threads that read and write sockets.", at_least=1, scope=CLUSTER),
    row("queued.max.requests", INT, 500, "Maximum number of queued requests.", at_least=1),
    row("socket.listen.backlog.size", INT, 50, "Maximum number of pending connections.", at_least=1),
    row("socket.connection.setup.timeout.ms", LONG, 10 * SECOND_MS, "Initial timeout of connecting to another node."),
    row(
        "socket.connection.setup.timeout.max.ms", LONG, 30 * SECOND_MS, "Maximum timeout of connecting to another node."
    ),
    row("request.timeout.ms", INT, 30 * SECOND_MS, "Timeout of requests to other nodes."),
    row("early.start.listeners", LIST, None, "Listeners to start before the authorizer is ready."),
    row("fetch.purgatory.purge.interval.requests", INT, 1000, "Purge interval of the fetch purgatory."),
    row("producer.purgatory.purge.interval.requests", INT, 1000, "Purge interval of the produce purgatory."),
    row("delete.records.purgatory.purge.interval.requests", INT, 1, "Purge interval of the DeleteRecords purgatory."),
    row("share.fetch.purgatory.purge.interval.requests", INT, 1000, "Purge interval of the share fetch purgatory."),
    row(
        "server.max.startup.time.ms",
        LONG,
        LONG_MAX,
        "Maximum startup time of the broker.",
        at_least=0,
        is_internal=True,
    ),
    row("unstable.api.versions.enable", BOOLEAN, False, "Serve API versions in development.", is_internal=True),
    row("unstable.feature.versions.enable", BOOLEAN, False, "Allow features in development.", is_internal=True),
)
