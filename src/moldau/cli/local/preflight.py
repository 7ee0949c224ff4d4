"""Whether a local cluster may be started: nobody runs on its folders, and nobody listens where it wants to."""

import errno
import socket
from typing import Final

from moldau.cli.errors import CommandError
from moldau.cli.local.layout import STATE_FILE, LocalCluster, LocalNode
from moldau.model.ids import Address
from moldau.node.ports.capabilities import Capabilities
from moldau.node.ports.files import SystemDisk
from moldau.storage.log_dir import META_PROPERTIES, LogDir, LogDirLocked

CHOOSE: Final = "does another cluster run? choose another --port; controllers listen 10000 above it, or below"
FREE: Final = "stop what listens there; this cluster knows its controllers by their ports, so they stay"


def check_folders_and_ports(cluster: LocalCluster) -> None:
    """Looked at before anything is written: a cluster that runs keeps the settings that its nodes are started again
    with, and a new one is not made with ports of controllers that are taken, since those can never change."""
    for node in cluster.nodes:
        _check_folder(cluster, node)
    is_known = (cluster.folder / STATE_FILE).exists()
    for node in cluster.nodes:
        _check_port(node.address, CHOOSE)
        if node.controller is not None:
            _check_port(Address(node.address.host, node.controller.port), FREE if is_known else CHOOSE)


def _check_folder(cluster: LocalCluster, node: LocalNode) -> None:
    if not (node.folder / META_PROPERTIES).exists():
        return
    try:
        LogDir.open(SystemDisk(Capabilities.detect()), str(node.folder)).close()
    except LogDirLocked:
        raise CommandError(
            f"the cluster in {cluster.folder} runs already (node {node.node_id} does): stop it, or choose another "
            "--data folder"
        ) from None


def _check_port(address: Address, advice: str) -> None:
    """What else may be wrong with an address, the node that is given it will say."""
    try:
        socket.create_server((address.host, address.port)).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise CommandError(f"{address} is in use: {advice}") from None
