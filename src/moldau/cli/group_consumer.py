"""`moldau consume --group`: read as a member of a consumer group, with the Python API and so with librdkafka."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from moldau.cli.client_options import client_settings
from moldau.cli.errors import CommandError, usage_error
from moldau.cli.standard_streams import stop_thread_on_broken_pipe, write_out
from moldau.client.positions import AtEnd, AtOffset, AtStart, AtTime, Position
from moldau.client.security_settings import PASSWORD, SECURITY_PREFIXES, SECURITY_PROTOCOL, USERNAME
from moldau.records.record import Record

if TYPE_CHECKING:
    from moldau.cli.record_format import Formatter

LAST_MS: Final = int(datetime(9999, 12, 31, tzinfo=UTC).timestamp() * 1000)  # the last year that datetime supports


def consume_in_group(
    bootstrap_servers: str,
    topic: str,
    group: str,
    begin: Position,
    count: int | None,
    formatter: "Formatter",
    *,
    is_committed_only: bool,
) -> None:
    """Print records as they arrive. Printed records count as processed, and their offsets are committed."""
    try:
        from moldau.api import Failed, connect
    except ModuleNotFoundError as missing:
        raise CommandError("--group needs confluent-kafka: pip install confluent-kafka") from missing
    isolation = "read_committed" if is_committed_only else "read_uncommitted"
    start = _start(begin)
    check_topic(topic, bootstrap_servers)
    try:
        with (
            exit_on_sigterm(),
            stop_thread_on_broken_pipe(),
            connect(bootstrap_servers, **librdkafka_settings()) as connection,
            connection.consume(topic, group=group, start=start, isolation_level=isolation) as messages,
        ):
            for number, message in enumerate(messages, 1):
                record = Record(message.offset, message.timestamp_ms, message.key, message.value, message.headers)
                write_out(formatter(message.topic, message.partition, record))
                if number == count:
                    return
    except Failed as error:
        raise CommandError(str(error)) from error


def librdkafka_settings() -> dict[str, str]:
    """The security settings of the command, for librdkafka."""
    given = {name: text for name, text in client_settings().items() if name.startswith(SECURITY_PREFIXES)}
    if not given:
        return {}
    from pyspark_moldau.options.offset_limits import OptionError
    from pyspark_moldau.options.security_settings import security_settings

    as_they_are = (SECURITY_PROTOCOL, USERNAME, PASSWORD)
    try:
        return {name: given[name] for name in as_they_are if name in given} | security_settings(given)
    except OptionError as error:
        raise CommandError(str(error)) from error


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Leave the group on SIGTERM as on Ctrl-C, so that the other members need not wait for a session timeout."""

    def end(number: int, _: object) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def check_topic(topic: str, bootstrap_servers: str) -> None:
    """Check with Moldau's own client first: librdkafka retries forever if the broker or topic does not exist."""
    from moldau.cli.cluster_client import connect

    with connect(bootstrap_servers) as client:
        for view in client.describe_topics([topic]):
            if view.error is not None:
                raise view.error


def _start(begin: Position) -> str | int | datetime:
    match begin:
        case AtStart():
            return "earliest"
        case AtEnd():
            return "latest"
        case AtOffset(offset):
            return offset
        case AtTime(timestamp_ms):
            return datetime.fromtimestamp(min(timestamp_ms, LAST_MS) / 1000, UTC)
        case _:
            raise usage_error("--from -N cannot be combined with --group; use start, end, @TIME or an offset")
