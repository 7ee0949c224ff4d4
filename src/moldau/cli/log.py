"""`moldau log`: dump or verify the files of a data directory, ours or Apache Kafka's."""

import mmap
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from moldau.cli.errors import CommandError
from moldau.cli.options import Json
from moldau.cli.output import human_bytes, note, show_json_line

app = typer.Typer(help="Dump or verify the files of a data directory.", no_args_is_help=True)

Entry = dict[str, Any]


class Decoder(StrEnum):
    """How to decode the values of records."""

    AUTO = "auto"
    NONE = "none"
    METADATA = "metadata"
    OFFSETS = "offsets"
    TRANSACTIONS = "transactions"


@app.callback()
def log() -> None:
    """Dump or verify the files of a data directory."""


@app.command()
def dump(
    paths: Annotated[list[Path], typer.Argument(metavar="FILE|DIRECTORY…", show_default=False)],
    records: Annotated[bool, typer.Option("--records", "-r", help="Show the records in each batch too.")] = False,
    decoder: Annotated[
        Decoder, typer.Option(help="Type of the records; by default from the directory's name.")
    ] = Decoder.AUTO,
    json: Json = False,
) -> None:
    """Show segments, indexes, snapshots and checkpoints. The exit code is 1 if a file is corrupt."""
    broken = 0
    for path in _files(paths):
        if not json:
            print(f"{path}  ({human_bytes(path.stat().st_size)})")
        for entry in _entries(path, records, decoder):
            broken += not entry.get("is_valid", True)
            if json:
                show_json_line({"file": str(path), **entry})
            else:
                print(_line(entry))
    if broken:
        raise CommandError(f"{broken} corrupt {'entry' if broken == 1 else 'entries'}")


@app.command()
def verify(
    paths: Annotated[list[Path], typer.Argument(metavar="DIRECTORY…", show_default=False)],
    json: Json = False,
) -> None:
    """Verify checksums, offsets and indexes of all segments in data directories or logs, also of a running broker.

    The exit code is 1 if something is corrupt.
    """
    from moldau.cli.log_verify import log_folders, verify_log
    from moldau.node.ports.files import SystemDisk

    disk = SystemDisk()
    segments = total_bytes = broken = 0
    for path in paths:
        if not path.is_dir():
            raise CommandError(f"{path}: not a directory")
        for folder in log_folders(path):
            for entry in verify_log(disk, folder):
                segments, total_bytes = segments + 1, total_bytes + entry["bytes"]
                broken += not entry["is_valid"]
                if json:
                    show_json_line(entry)
                else:
                    _show_verified(entry)
    if broken:
        raise CommandError(f"{broken} of {segments} segments {'is' if broken == 1 else 'are'} corrupt")
    if not json:
        print(f"{segments} segments with {human_bytes(total_bytes)} are valid")


def _show_verified(entry: Entry) -> None:
    for each in entry["corrupt"]:
        offsets = f"offsets {each['first_offset']}-{each['last_offset']}"
        print(f"{entry['segment']}: {each['reason']}, {offsets}, {each['bytes']} bytes at {each['position']}")
    if not entry["has_valid_indexes"]:
        print(f"{entry['segment']}: an index does not match the log; the broker restores it")
    if entry["incomplete_end_at"] is not None:
        print(
            f"{entry['segment']}: incomplete batch at {entry['incomplete_end_at']}, being written or truncated at start"
        )


def _files(paths: list[Path]) -> Iterator[Path]:
    """Yield the given files, and all known files of given directories, in order."""
    from moldau.cli.file_dump import kind_of

    for path in paths:
        if path.is_dir():
            known = sorted(each for each in path.rglob("*") if each.is_file() and kind_of(each))
            if not known:
                note(f"{path}: no log files found")
            yield from known
        elif path.exists():
            yield path
        else:
            raise CommandError(f"{path}: no such file or directory")


def _entries(path: Path, with_records: bool, decoder: Decoder) -> Iterator[Entry]:
    from moldau.cli.file_dump import BROKEN, FILES, kind_of

    kind = kind_of(path)
    if kind is None:
        raise CommandError(f"{path}: not a log file; known are .log .index .timeindex .txnindex .snapshot …")
    try:
        if kind == "segment":
            yield from _segment(path, with_records, decoder)
        else:
            yield from FILES[kind](path.read_bytes(), _base_offset(path))
    except BROKEN as error:
        yield {"type": "broken_file", "is_valid": False, "why": str(error)}


def _segment(path: Path, with_records: bool, decoder: Decoder) -> Iterator[Entry]:
    from moldau.cli import segment_dump

    if path.stat().st_size == 0:
        return
    functions = {
        Decoder.NONE: segment_dump.plain_record,
        Decoder.METADATA: segment_dump.metadata_record,
        Decoder.OFFSETS: segment_dump.group_record,
        Decoder.TRANSACTIONS: segment_dump.transaction_record,
    }
    chosen = _decoder_for(path) if decoder is Decoder.AUTO else decoder
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        view = memoryview(mapped)
        try:
            yield from segment_dump.segment_entries(view, with_records=with_records, decoder=functions[chosen])
        finally:
            view.release()


def _decoder_for(path: Path) -> Decoder:
    folder = path.resolve().parent.name
    if folder.startswith("__cluster_metadata") or path.suffix == ".checkpoint":
        return Decoder.METADATA
    if folder.startswith("__consumer_offsets-"):
        return Decoder.OFFSETS
    if folder.startswith("__transaction_state-"):
        return Decoder.TRANSACTIONS
    return Decoder.NONE


def _base_offset(path: Path) -> int:
    return int(path.stem) if path.stem.isdecimal() else 0


def _line(entry: Entry) -> str:
    import json

    shown = {name: value for name, value in entry.items() if name != "type" and _is_worth_showing(name, value)}
    fields = (f"{name} {value if isinstance(value, str) else json.dumps(value)}" for name, value in shown.items())
    indent = "    " if entry["type"] in ("record", "control", "broken_records") else "  "
    return f"{indent}{entry['type']}  " + "  ".join(fields)


def _is_worth_showing(name: str, value: object) -> bool:
    """Hide values that nearly every entry has."""
    if name == "is_valid":
        return value is False
    if name.startswith(("producer_", "base_sequence", "last_sequence")):
        return value != -1
    return not (name.startswith("is_") and value is False) and not (name == "delete_horizon_ms" and value is None)
