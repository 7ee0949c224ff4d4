"""Positions in a log as options of commands: --from, --until and --to."""

from collections.abc import Mapping

from moldau.cli.errors import usage_error
from moldau.client import positions
from moldau.client.positions import AtOffset, AtStart, Extent, ListsOffsets, Position, resolve
from moldau.client.types import Isolation
from moldau.model.ids import TopicPartition
from moldau.node.ports.clock import SystemClock


def parse_position(text: str, option: str) -> Position:
    try:
        return positions.parse_position(text, SystemClock().wall_ms())
    except ValueError as error:
        raise usage_error(f"{option} {error}") from None


async def resolve_end(
    client: ListsOffsets, position: Position, known: Mapping[TopicPartition, Extent], isolation: Isolation
) -> dict[TopicPartition, int]:
    """Like `resolve`, but keep an offset beyond the log end: the reader waits for it."""
    if isinstance(position, AtStart):
        raise usage_error("--until start would read nothing")
    if isinstance(position, AtOffset):
        return dict.fromkeys(known, position.offset)
    return await resolve(client, position, known, isolation)
