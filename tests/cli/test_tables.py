"""Tables on a terminal of 80 columns: one line per row, or one block per row where that cannot be."""

import io
from collections.abc import Callable
from contextlib import redirect_stdout

import pytest

from moldau.cli.brokers import show_brokers
from moldau.cli.output import show_table
from moldau.cli.quorums import show_quorum
from moldau.client.brokers import BrokerState
from moldau.client.quorum import QuorumReplica, QuorumView
from moldau.model.ids import Address


class Terminal(io.StringIO):
    """Standard output that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)


def printed(show: Callable[[], None]) -> list[str]:
    with redirect_stdout(Terminal()) as terminal:
        show()
    return [line.rstrip() for line in terminal.getvalue().splitlines()]


def broker(number: int) -> BrokerState:
    return BrokerState(
        node_id=number,
        address=Address("localhost", 9091 + number),
        rack=None,
        is_fenced=False,
        replicas=1200,
        out_of_sync=0,
        leaders=400,
        preferred=400,
        size_bytes=123_400_000_000,
        free_bytes=912_000_000_000,
        is_drained=False,
    )


def test_broker_list_fits_into_80_columns() -> None:
    header, *rows = printed(lambda: show_brokers([broker(1), broker(2), broker(3)]))
    assert header.split() == ["ID", "ADDRESS", "STATE", "LEADERS", "PREFERRED", "REPLICAS", "SIZE", "FREE"]
    assert len(rows) == 3
    assert rows[0].split() == "1 localhost:9092 serves 400 400 1200 114.9 GiB 849.4 GiB".split()


def test_quorum_describe_fits_into_80_columns() -> None:
    def replica(number: int) -> QuorumReplica:
        listeners = (("CONTROLLER", Address("localhost", 19091 + number)),)
        return QuorumReplica(number, bytes([number]) * 16, 12_345_678, 1000, 1000, listeners)

    view = QuorumView(1, 12, 12_345_678, (replica(1), replica(2), replica(3)), ())
    _, header, *rows = printed(lambda: show_quorum(view))
    assert header.split() == ["NODE", "ROLE", "END", "LAG", "BEHIND", "LISTENERS", "DIRECTORY"]
    assert len(rows) == 3
    assert rows[1].split() == "2 voter 12345678 0 0.0 s localhost:19093 AgICAgICAgICAgICAgICAg".split()


def test_row_of_a_table_too_wide_for_the_terminal_becomes_a_block() -> None:
    rows = [("orders", 1, "x" * 90), ("clicks", 2, "y")]
    assert printed(lambda: show_table(("topic", "n", "configs"), rows)) == [
        *("TOPIC    orders", "N        1", f"CONFIGS  {'x' * 90}"),
        "",
        *("TOPIC    clicks", "N        2", "CONFIGS  y"),
    ]
