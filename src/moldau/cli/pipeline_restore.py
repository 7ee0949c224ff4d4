"""Input and output of `moldau pipeline run restore`: --until, the offset map, and the verification."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from moldau.cli.errors import CommandError, usage_error
from moldau.cli.output import note, show_json, show_table
from moldau.cli.positions import parse_position
from moldau.client.positions import AtEnd, AtOffset, AtTime

if TYPE_CHECKING:
    from moldau.pipelines.restore import Restored, Until

MAP_FILE: Final = "offsets.json"
PIECES_SHOWN: Final = 20


def parse_until(text: str | None) -> "Until":
    """Parse @TIME, an offset, offsets by partition, or `end`."""
    from moldau.pipelines.restore import Until

    if text is None:
        return Until()
    if re.fullmatch(r"\d+:\d+(,\d+:\d+)*", text):
        pairs = [each.split(":") for each in text.split(",")]
        return Until(offsets={int(partition): int(offset) for partition, offset in pairs})
    match parse_position(text, "--until"):
        case AtTime(time_ms):
            return Until(time_ms=time_ms)
        case AtOffset(offset):
            return Until(offset=offset)
        case AtEnd():
            return Until()
        case _:
            raise usage_error(f"--until {text}: use @TIME, an offset, 0:120,1:98, or end")


def show_restored(restored: "Restored", *, is_json: bool, folder: Path) -> None:
    """Print the result; raise if the verification found differences."""
    (folder / MAP_FILE).write_text(json.dumps(restored.map.shape(), indent=2) + "\n")
    is_same = None if restored.differences is None else not restored.differences
    if is_json:
        show_json(
            {
                "topic": restored.topic,
                "rows": restored.rows,
                "verified": is_same,
                "differences": restored.differences,
                "offsets": restored.map.shape(),
                "groups": restored.groups,
            }
        )
    else:
        _show_map(restored, folder)
    for line in restored.notes:
        note(line)
    if restored.differences:
        raise CommandError(f"{restored.topic} differs from the archive: {'; '.join(restored.differences)}")


def _show_map(restored: "Restored", folder: Path) -> None:
    pieces = [each for found in restored.map.pieces.values() for each in found]
    columns = ("partition", "old offsets", "new offsets")
    rows = [(each.partition, f"{each.old}-{each.old_last}", f"{each.new}-{each.new_last}") for each in pieces]
    show_table(columns, rows[:PIECES_SHOWN], numbers=columns)
    if len(rows) > PIECES_SHOWN:
        note(f"… and {len(rows) - PIECES_SHOWN} more; all are in {folder / MAP_FILE}")
    for group, offsets in restored.groups.items():
        note(f"group {group}: offsets {', '.join(f'{partition}: {at}' for partition, at in offsets.items())}")
    verified = ", verified against the archive" if restored.differences is not None and not restored.differences else ""
    note(f"restored {restored.rows:,} records to {restored.topic}{verified}")
