"""Checks before a local cluster starts: its directories are not locked, and its ports are free."""

import errno
import socket
from typing import Final

from moldau.cli.errors import CommandError
from moldau.cli.local.layout import STATE_FILE, LocalCluster, LocalNode
from moldau.model.ids import Address
from moldau.node.ports.capabilities import Capabilities
from moldau.node.ports.files import SystemDisk
from moldau.storage.log_dir import META_PROPERTIES, LogDir, LogDirLocked

CHOOSE: Final = "is another cluster running? choose another --port; controllers listen 10000 above it, or below"
FREE: Final = "stop the process that listens there; the ports of a cluster's controllers cannot change"


def check_folders_and_ports(cluster: LocalCluster) -> None:
    """Run before anything is written: a running cluster must keep the settings files that its nodes restart with, and a
    new one must not be created with controller ports that are taken, since they can never change."""
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
            f"the cluster in {cluster.folder} is running (node {node.node_id} holds its lock): stop it, or choose "
            "another --data directory"
        ) from None


def _check_port(address: Address, advice: str) -> None:
    """Other errors of an address are reported by the node that listens there."""
    try:
        socket.create_server((address.host, address.port)).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise CommandError(f"{address} is in use: {advice}") from None
