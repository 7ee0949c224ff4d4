"""Kafka's settings of sockets, threads and waiting requests that have no effect here."""

from typing import Final

from moldau.model.kafka_settings.row import BOOLEAN, CLUSTER, INT, LIST, LONG, row
from moldau.model.settings import INT_MAX, LONG_MAX
from moldau.model.units import SECOND_MS, KiB

ROWS: Final = (
    row("background.threads", INT, 10, "Threads for background work.", at_least=1, scope=CLUSTER),
    row("num.io.threads", INT, 8, "Threads that work on requests.", at_least=1, scope=CLUSTER),
    row("num.network.threads", INT, 3, "Threads that read and write sockets.", at_least=1, scope=CLUSTER),
    row("queued.max.requests", INT, 500, "How many requests may wait for a thread.", at_least=1),
    row(
        "max.connection.creation.rate",
        INT,
        INT_MAX,
        "New connections per second the broker takes.",
        at_least=0,
        scope=CLUSTER,
    ),
    row("socket.listen.backlog.size", INT, 50, "Connections that may wait to be accepted.", at_least=1),
    row("socket.receive.buffer.bytes", INT, 100 * KiB, "The receive buffer asked of the system; -1 leaves it be."),
    row("socket.send.buffer.bytes", INT, 100 * KiB, "The send buffer asked of the system; -1 leaves it be."),
    row("socket.connection.setup.timeout.ms", LONG, 10 * SECOND_MS, "The first patience with a peer that is called."),
    row("socket.connection.setup.timeout.max.ms", LONG, 30 * SECOND_MS, "The longest patience with a called peer."),
    row("request.timeout.ms", INT, 30 * SECOND_MS, "How long a request to another node waits for its answer."),
    row("early.start.listeners", LIST, None, "Listeners that open before the authorizer is ready."),
    row("fetch.purgatory.purge.interval.requests", INT, 1000, "How often waiting fetches are swept."),
    row("producer.purgatory.purge.interval.requests", INT, 1000, "How often waiting produces are swept."),
    row("delete.records.purgatory.purge.interval.requests", INT, 1, "How often waiting DeleteRecords are swept."),
    row("share.fetch.purgatory.purge.interval.requests", INT, 1000, "How often waiting share fetches are swept."),
    row(
        "server.max.startup.time.ms",
        LONG,
        LONG_MAX,
        "How long the broker may take to start.",
        at_least=0,
        is_internal=True,
    ),
    row("unstable.api.versions.enable", BOOLEAN, False, "Serve API versions in development.", is_internal=True),
    row("unstable.feature.versions.enable", BOOLEAN, False, "Allow features in development.", is_internal=True),
)
