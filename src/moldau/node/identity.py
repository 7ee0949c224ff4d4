"""Who a node is: the ids in its data folder, given to a new one and checked in an old one."""

from moldau.model.errors import InvalidConfig
from moldau.model.ids import UUID_BYTES, DirectoryId, NodeId
from moldau.model.ports import Random
from moldau.storage.log_dir import LogDir, MetaProperties, encode_id


def random_id(random: Random) -> bytes:
    """Sixteen random bytes that do not print with a leading dash, which tools would take for an option."""
    value = random.randbytes(UUID_BYTES)
    while encode_id(value).startswith("-"):
        value = random.randbytes(UUID_BYTES)
    return value


def identify(
    folder: LogDir,
    node_id: int,
    random: Random,
    cluster_id: str | None = None,
    *,
    may_format: bool = True,
    directory_id: bytes | None = None,
) -> MetaProperties:
    """The identity in the folder; a new folder is formatted if it may be, one of another node is refused."""
    known = folder.identity()
    if known is None:
        if not may_format:
            raise InvalidConfig(
                f"{folder.path} is not formatted, and only a node that is a cluster by itself may do that alone: give "
                f"all nodes the same cluster id, with moldau storage format --data {folder.path} --node-id {node_id} "
                "--cluster-id ID, and controllers --initial-controllers or --no-initial-controllers besides."
            )
        directory = DirectoryId(directory_id or random_id(random))
        known = MetaProperties(cluster_id or encode_id(random_id(random)), NodeId(node_id), directory)
        folder.format(known)
    if known.node_id != node_id:
        raise InvalidConfig(
            f"{folder.path} belongs to node {known.node_id}, but node.id is {node_id}: set node.id={known.node_id}, "
            "or choose another folder."
        )
    if cluster_id is not None and known.cluster_id != cluster_id:
        raise InvalidConfig(f"{folder.path} belongs to cluster {known.cluster_id}, not to {cluster_id}.")
    return known
