"""`moldau storage`: show the identity and contents of a data directory, and format a new one."""

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from moldau.cli.errors import CommandError
from moldau.cli.options import Json
from moldau.cli.output import human_bytes, note, show_json, show_table

app = typer.Typer(help="Show or format a data directory.", no_args_is_help=True)

Data = Annotated[Path, typer.Option("--data", "-d", metavar="DIRECTORY", help="The data directory.")]
DATA_DEFAULT = Path("moldau-data")
NODE_ID_MAX: Final = 2**31 - 1  # an int32 of the protocol


@app.command()
def info(data: Data = DATA_DEFAULT, json: Json = False) -> None:
    """Show cluster and node of a data directory, how it was shut down, and the size of each partition."""
    if not data.is_dir():
        raise CommandError(f"{data}: no such directory; choose one with --data")
    described = _describe(data)
    if json:
        show_json(described)
        return
    identity = described["identity"]
    print(f"directory {data}")
    if identity is None:
        note("not formatted; `moldau start` formats an empty directory, or run: moldau storage format")
    else:
        print(f"  cluster {identity['cluster_id']}  node {identity['node_id']}  directory {identity['directory_id']}")
    print(f"  last shutdown  {_last_shutdown(described)}")
    size = human_bytes(sum(each["size_bytes"] for each in described["partitions"]))
    print(f"  partitions     {len(described['partitions'])}, {size}")
    keys = ("topic", "partition", "segments", "start_offset", "size_bytes")
    rows = [[each[key] for key in keys] for each in described["partitions"]]
    if rows:
        show_table(
            ("topic", "partition", "segments", "start offset", "bytes"),
            rows,
            numbers=("partition", "segments", "start offset", "bytes"),
        )


@app.command("format")
def format_folder(
    data: Annotated[
        list[Path] | None,
        typer.Option(
            "--data", "-d", metavar="DIRECTORY", help="A data directory, first that of the metadata log. [moldau-data]"
        ),
    ] = None,
    cluster_id: Annotated[
        str | None, typer.Option("--cluster-id", "-t", help="Same for all nodes; generated if not given.")
    ] = None,
    node_id: Annotated[int | None, typer.Option("--node-id", min=0, max=NODE_ID_MAX, help="The node id. [1]")] = None,
    standalone: Annotated[
        bool, typer.Option("--standalone", "-s", help="This node is the only initial voter of the quorum.")
    ] = False,
    initial_controllers: Annotated[
        str | None,
        typer.Option(
            "--initial-controllers",
            "-I",
            metavar="ID@HOST:PORT:DIRECTORY,…",
            help="Initial voters of the quorum; same for all of them.",
        ),
    ] = None,
    no_initial_controllers: Annotated[
        bool, typer.Option("--no-initial-controllers", "-N", help="A controller that joins the quorum later.")
    ] = False,
    files: Annotated[
        list[Path] | None,
        typer.Option("--config", metavar="FILE", help="The node's settings file: id, directory and listeners."),
    ] = None,
    add_scram: Annotated[
        list[str] | None,
        typer.Option(
            "--add-scram",
            "-S",
            metavar="MECHANISM=[name=USER,password=…]",
            help="A first user, with iterations=, salt= and saltedpassword= if you like; same on all controllers.",
        ),
    ] = None,
    ignore_formatted: Annotated[
        bool, typer.Option("--ignore-formatted", help="No error if it is formatted already.")
    ] = False,
    json: Json = False,
) -> None:
    """Format data directories: write cluster, node and directory id, the voters and users of a new cluster."""
    from moldau.cli.storage_format import FormatFlags, format_data

    users = tuple(add_scram or ())
    flags = FormatFlags(
        tuple(data or ()), node_id, cluster_id, standalone, initial_controllers, no_initial_controllers, users
    )
    paths, identity = format_data(flags, files or [], ignore_formatted=ignore_formatted)
    if json:
        own = {"cluster_id": identity.cluster_id, "node_id": identity.node_id}
        show_json({"folder": paths[0], "folders": paths, **own})
        return
    for path in paths:
        print(f"{path} belongs to node {identity.node_id} of cluster {identity.cluster_id}")


def _last_shutdown(described: dict[str, Any]) -> str:
    if described["is_clean"]:
        return "clean"
    # A node creates the first segment of its metadata log as soon as it starts.
    has_run = any(each["segments"] for each in described["partitions"])
    return "unclean, or a node is running" if has_run else "none: no node has run here yet"


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
