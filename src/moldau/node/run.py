"""A node as a process: real ports, signals, logs, and a clean end."""

import asyncio
import gc
import os
import resource
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from moldau.model.ports import Ports
from moldau.node.configuration import Configuration
from moldau.node.logs import set_up_logs
from moldau.node.node import Node
from moldau.node.ports.capabilities import Capabilities
from moldau.node.ports.clock import SystemClock
from moldau.node.ports.executor import SystemExecutor
from moldau.node.ports.files import SystemDisk
from moldau.node.ports.process import process_lines
from moldau.node.ports.randomness import system_random
from moldau.node.ports.sockets import SocketNetwork

UNLIMITED_BYTES: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Announcement:
    """What a node says once it serves."""

    bootstrap_servers: str
    metrics: str | None
    data: str
    cluster_id: str


class NodeFailed(Exception):
    """The node could not go on: a failed sync, or a bug that would make it go on wrong."""


def serve(
    configuration: Configuration, announce: Callable[[Announcement], None], *, lifeline: int | None = None
) -> None:
    """Run a node until SIGTERM, SIGINT, or the end of the `lifeline` descriptor. Raises what keeps it from running."""
    set_up_logs(configuration.settings.log_format, configuration.settings.log_level)
    _raise_file_limit()
    asyncio.run(_serve(configuration, announce, lifeline))


async def _serve(configuration: Configuration, announce: Callable[[Announcement], None], lifeline: int | None) -> None:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def end(failure: BaseException | None = None) -> None:
        if not ended.done():
            ended.set_exception(failure) if failure else ended.set_result(None)

    def fail(what: str, error: BaseException) -> None:
        failure = NodeFailed(f"{what}: {error}")
        failure.__cause__ = error
        end(failure)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    if lifeline is not None:
        _watch(lifeline, end)
    node = Node(configuration, system_ports(configuration), on_failure=fail, process_lines=process_lines)
    if not await _started(node, ended):
        return
    # What is loaded now stays: the collector need not look at it again.
    gc.collect()
    gc.freeze()
    announce(
        Announcement(node.bootstrap_servers, node.metrics_address, configuration.settings.folders[0], node.cluster_id)
    )
    await ended  # raises the failure, if that is what ended it: then nothing may be marked as clean
    await node.stop()


async def _started(node: Node, ended: "asyncio.Future[None]") -> bool:
    """Start the node, unless it is told to end meanwhile: bringing back a large log may take a while."""
    starting = asyncio.get_running_loop().create_task(node.start())
    await asyncio.wait([starting, ended], return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.wait([starting])
    if not starting.cancelled():
        if starting.exception() is not None and ended.done():
            ended.result()  # raises the failure that the node told of by itself: it says more
        starting.result()  # raises what kept it from starting
        return True
    ended.result()
    return False


def _watch(lifeline: int, end: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()

    def readable() -> None:
        if not os.read(lifeline, 1):
            loop.remove_reader(lifeline)
            end()

    os.set_blocking(lifeline, False)
    loop.add_reader(lifeline, readable)


def system_ports(configuration: Configuration) -> Ports:
    """The machine's own clock, randomness, disk, threads and network."""
    settings = configuration.settings
    able = Capabilities.portable() if settings.is_portable else Capabilities.detect()
    budget = settings.queued_max_request_bytes
    return Ports(
        clock=SystemClock(),
        random=system_random(),
        executor=SystemExecutor(),
        disk=SystemDisk(able),
        network=SocketNetwork(request_bytes_max=UNLIMITED_BYTES if budget < 0 else budget, able=able),
    )


def _raise_file_limit() -> None:
    """A log is several files and a connection two descriptors: take all that the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):
            return  # macOS refuses an unlimited number; what there is has to do
