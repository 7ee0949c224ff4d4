"""The identity of a node: ids in its data directory, assigned when it is formatted and checked afterwards."""

from moldau.model.errors import InvalidConfig
from moldau.model.ids import UUID_BYTES, DirectoryId, NodeId
from moldau.model.ports import Random
from moldau.storage.log_dir import LogDir, MetaProperties, encode_id


def random_id(random: Random) -> bytes:
    """Return 16 random bytes whose text form has no leading dash, which tools would parse as an option."""
    value = random.randbytes(UUID_BYTES)
    while encode_id(value).startswith("-"):
        value = random.randbytes(UUID_BYTES)
    return value


def identify(
    log_dir: LogDir,
    node_id: int,
    random: Random,
    cluster_id: str | None = None,
    *,
    may_format: bool = True,
    directory_id: bytes | None = None,
) -> MetaProperties:
    """Return the identity in the directory; format a new one if allowed, and reject that of another node."""
    known = log_dir.identity()
    if known is None:
        if not may_format:
            raise InvalidConfig(
                f"{log_dir.path} is not formatted, and only a single-node cluster is formatted automatically. Format "
                f"all nodes with the same cluster id: moldau storage format --data {log_dir.path} --node-id {node_id} "
                "--cluster-id ID, on controllers with --initial-controllers or --no-initial-controllers."
            )
        directory = DirectoryId(directory_id or random_id(random))
        known = MetaProperties(cluster_id or encode_id(random_id(random)), NodeId(node_id), directory)
        log_dir.format(known)
    if known.node_id != node_id:
        raise InvalidConfig(
            f"{log_dir.path} belongs to node {known.node_id}, but node.id is {node_id}: set node.id={known.node_id}, "
            "or choose another data directory."
        )
    if cluster_id is not None and known.cluster_id != cluster_id:
        raise InvalidConfig(f"{log_dir.path} belongs to cluster {known.cluster_id}, not to {cluster_id}.")
    return known
