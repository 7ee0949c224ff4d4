"""`moldau storage`: whose a data folder is, what is in it, and making a new one."""

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from moldau.cli.errors import CommandError
from moldau.cli.options import Json
from moldau.cli.output import human_bytes, note, show_json, show_table

app = typer.Typer(help="Look at a data folder, or make a new one.", no_args_is_help=True)

Data = Annotated[Path, typer.Option("--data", "-d", metavar="FOLDER", help="The data folder.")]
DATA_DEFAULT = Path("moldau-data")
NODE_ID_MAX: Final = 2**31 - 1  # as the protocol has it


@app.command()
def info(data: Data = DATA_DEFAULT, json: Json = False) -> None:
    """Show whose folder it is, whether it was left cleanly, and how much each partition holds."""
    if not data.is_dir():
        raise CommandError(f"{data}: no such folder; name one with --data")
    told = _describe(data)
    if json:
        show_json(told)
        return
    identity = told["identity"]
    print(f"folder {data}")
    if identity is None:
        note("it is not formatted; `moldau start` does that by itself, or: moldau storage format")
    else:
        print(f"  cluster {identity['cluster_id']}  node {identity['node_id']}  directory {identity['directory_id']}")
    print(f"  last stop  {_last_stop(told)}")
    print(
        f"  partitions {len(told['partitions'])}, {human_bytes(sum(each['size_bytes'] for each in told['partitions']))}"
    )
    keys = ("topic", "partition", "segments", "start_offset", "size_bytes")
    rows = [[each[key] for key in keys] for each in told["partitions"]]
    if rows:
        show_table(
            ("topic", "partition", "segments", "starts at", "bytes"),
            rows,
            numbers=("partition", "segments", "starts at", "bytes"),
        )


@app.command("format")
def format_folder(
    data: Annotated[
        Path | None, typer.Option("--data", "-d", metavar="FOLDER", help="The data folder. [moldau-data]")
    ] = None,
    cluster_id: Annotated[
        str | None, typer.Option("--cluster-id", "-t", help="The same for all nodes; a new one if not given.")
    ] = None,
    node_id: Annotated[
        int | None, typer.Option("--node-id", min=0, max=NODE_ID_MAX, help="The node's number. [1]")
    ] = None,
    standalone: Annotated[
        bool, typer.Option("--standalone", "-s", help="The first voter of the quorum is this node alone.")
    ] = False,
    initial_controllers: Annotated[
        str | None,
        typer.Option(
            "--initial-controllers",
            "-I",
            metavar="ID@HOST:PORT:DIRECTORY,…",
            help="The first voters of the quorum; the same for all of them.",
        ),
    ] = None,
    no_initial_controllers: Annotated[
        bool, typer.Option("--no-initial-controllers", "-N", help="A controller that joins a quorum later.")
    ] = False,
    files: Annotated[
        list[Path] | None,
        typer.Option("--config", metavar="FILE", help="The node's settings: its id, folder and listeners."),
    ] = None,
    ignore_formatted: Annotated[
        bool, typer.Option("--ignore-formatted", help="No error if it was done before.")
    ] = False,
    json: Json = False,
) -> None:
    """Give a new data folder its cluster, node and directory ids, and a controller its first voters."""
    from moldau.cli.storage_format import FormatFlags, format_data

    flags = FormatFlags(data, node_id, cluster_id, standalone, initial_controllers, no_initial_controllers)
    path, identity = format_data(flags, files or [], ignore_formatted=ignore_formatted)
    if json:
        show_json({"folder": path, "cluster_id": identity.cluster_id, "node_id": identity.node_id})
    else:
        print(f"{path} belongs to node {identity.node_id} of cluster {identity.cluster_id}")


def _last_stop(told: dict[str, Any]) -> str:
    if told["is_clean"]:
        return "clean"
    # A node that starts makes the first segment of its metadata log at once.
    has_run = any(each["segments"] for each in told["partitions"])
    return "not clean, or a node runs" if has_run else "none: no node has run here yet"


def _describe(data: Path) -> dict[str, Any]:
    from moldau.cli.files import read_identity
    from moldau.storage.log_dir import CLEAN_SHUTDOWN, encode_id, parse_partition

    known = read_identity(data)
    identity = known and {
        "cluster_id": known.cluster_id,
        "node_id": known.node_id,
        "directory_id": encode_id(known.directory_id),
    }
    found = [(parse_partition(each.name), each) for each in sorted(data.iterdir()) if each.is_dir()]
    partitions = [_partition(place.topic, place.partition, each) for place, each in found if place is not None]
    return {
        "folder": str(data),
        "identity": identity,
        "is_clean": (data / CLEAN_SHUTDOWN).exists(),
        "partitions": sorted(partitions, key=lambda each: (each["topic"], each["partition"])),
    }


def _partition(topic: str, partition: int, folder: Path) -> dict[str, Any]:
    segments = sorted(folder.glob("*.log"))
    sizes = [each.stat().st_size for each in folder.iterdir() if each.is_file()]
    return {
        "topic": topic,
        "partition": partition,
        "segments": len(segments),
        "start_offset": int(segments[0].stem) if segments else None,
        "size_bytes": sum(sizes),
    }
