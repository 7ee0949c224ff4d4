"""`moldau storage`: whose a data folder is, what is in it, and making a new one."""

from pathlib import Path
from typing import Annotated, Any

import typer

from moldau.cli.errors import Complaint, wrong_usage
from moldau.cli.options import Json
from moldau.cli.output import human_bytes, note, show_json, show_table

app = typer.Typer(help="Look at a data folder, or make a new one.", no_args_is_help=True)

Data = Annotated[Path, typer.Option("--data", "-d", metavar="FOLDER", help="The data folder.")]
DATA_DEFAULT = Path("moldau-data")


@app.command()
def info(data: Data = DATA_DEFAULT, json: Json = False) -> None:
    """Show whose folder it is, whether it was left cleanly, and how much each partition holds."""
    if not data.is_dir():
        raise Complaint(f"{data}: no such folder; name one with --data")
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
    print(f"  last stop  {'clean' if told['is_clean'] else 'not clean, or a node runs'}")
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
    data: Data = DATA_DEFAULT,
    cluster_id: Annotated[str | None, typer.Option("--cluster-id", "-t", help="A new one if not given.")] = None,
    node_id: Annotated[int, typer.Option("--node-id", min=0, help="The node's number.")] = 1,
    ignore_formatted: Annotated[
        bool, typer.Option("--ignore-formatted", help="No error if it was done before.")
    ] = False,
    json: Json = False,
) -> None:
    """Give a new data folder its cluster, node and directory ids."""
    from moldau.model.errors import InvalidConfig
    from moldau.node.identity import identify
    from moldau.node.ports.capabilities import Capabilities
    from moldau.node.ports.files import SystemDisk
    from moldau.node.ports.randomness import system_random
    from moldau.storage.folder import BrokenFolder, DataFolder, FolderInUse, decode_id

    _check_cluster_id(cluster_id, decode_id)
    try:
        folder = DataFolder.open(SystemDisk(Capabilities.detect()), str(data))
        try:
            if folder.identity() is not None and not ignore_formatted:
                raise Complaint(f"{data} is formatted already; --ignore-formatted accepts that")
            identity = identify(folder, node_id, system_random(), cluster_id)
        finally:
            folder.close()
    except (FolderInUse, BrokenFolder, InvalidConfig) as error:
        raise Complaint(str(error)) from error
    if json:
        show_json({"folder": str(data), "cluster_id": identity.cluster_id, "node_id": identity.node_id})
    else:
        print(f"{data} belongs to node {identity.node_id} of cluster {identity.cluster_id}")


def _check_cluster_id(cluster_id: str | None, decode_id: Any) -> None:
    if cluster_id is not None:
        try:
            decode_id(cluster_id)
        except ValueError:
            raise wrong_usage(
                f"--cluster-id {cluster_id}: it has 22 letters, digits, - and _, as Kafka prints a UUID"
            ) from None


def _describe(data: Path) -> dict[str, Any]:
    from moldau.storage.folder import (
        CLEAN_SHUTDOWN,
        META_PROPERTIES,
        BrokenFolder,
        FolderIdentity,
        encode_id,
        parse_partition,
    )

    identity = None
    meta = data / META_PROPERTIES
    if meta.exists():
        try:
            known = FolderIdentity.decode(meta.read_bytes())
        except BrokenFolder as error:
            raise Complaint(f"{meta}: {error}") from error
        identity = {
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
