"""Positions in a log as written on the command line."""

from datetime import UTC, datetime

import pytest

from moldau.cli.errors import CommandError
from moldau.cli.positions import parse_position
from moldau.client import positions
from moldau.client.positions import AtEnd, AtOffset, AtStart, AtTime, BeforeEnd, Position

pytestmark = pytest.mark.proves("C4", part="ListOffsets")


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("start", AtStart()),
        ("beginning", AtStart()),
        ("end", AtEnd()),
        ("latest", AtEnd()),
        ("-10", BeforeEnd(10)),
        ("42", AtOffset(42)),
        ("@1700000000000", AtTime(1_700_000_000_000)),
        ("@2026-01-01T00:00:00Z", AtTime(int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000))),
        ("@2026-01-01T02:00:00+02:00", AtTime(int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000))),
        ("@2026-01-01", AtTime(int(datetime(2026, 1, 1).timestamp() * 1000))),
        ("@1969-12-31T23:59:59.999Z", AtTime(0)),  # -1 would be the end, and other negative numbers are rejected
        (f"@{2**63 - 1}", AtTime(2**63 - 1)),
    ],
)
def test_position_is_parsed(text: str, position: Position) -> None:
    assert parse_position(text, "--from") == position


@pytest.mark.parametrize("text", ["", "middle", "--5", "-", "1.5", "@", "@yesterday", "@2026-13-01", "+5", f"@{2**63}"])
def test_invalid_position_is_rejected_with_examples(text: str) -> None:
    with pytest.raises(CommandError, match="2026-01-01") as rejected:
        parse_position(text, "--from")
    assert rejected.value.exit_code == 2


def test_time_may_be_relative_to_now() -> None:
    now_ms = 1_700_000_000_000
    for text, ago_ms in (("@-90m", 5_400_000), ("@-1h", 3_600_000), ("@-7d", 604_800_000), ("@-0s", 0)):
        assert positions.parse_position(text, now_ms) == AtTime(now_ms - ago_ms)
    assert positions.parse_position("@-999999d", now_ms) == AtTime(0)
    for text in ("@-1", "@-1w", "@-h", "@--1h"):
        with pytest.raises(ValueError, match="is not a time"):
            positions.parse_position(text, now_ms)
