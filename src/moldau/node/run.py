"""A node as a process: real ports, signals, logging, clean shutdown."""

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
from moldau.node.ports.loop_watchdog import LoopWatchdog
from moldau.node.ports.process import process_lines
from moldau.node.ports.randomness import system_random
from moldau.node.ports.sockets import SocketNetwork

UNLIMITED_BYTES: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Announcement:
    """Printed once a node serves requests."""

    bootstrap_servers: str
    metrics: str | None
    data: str
    cluster_id: str


class NodeFailed(Exception):
    """The node must stop: a sync failed, or a bug would corrupt its state."""


def serve(
    configuration: Configuration, announce: Callable[[Announcement], None], *, lifeline: int | None = None
) -> None:
    """Run a node until SIGTERM, SIGINT, SIGHUP, or end of file on the `lifeline` descriptor.

    Raises the error that stops it.
    """
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
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
        loop.add_signal_handler(signal.SIGHUP, end)  # the terminal was closed
    if lifeline is not None:
        _watch(lifeline, end)
    node = Node(configuration, system_ports(configuration), on_failure=fail, process_lines=process_lines)
    if not await _start(node, ended):
        return
    # Objects loaded so far are permanent: exclude them from garbage collection.
    gc.collect()
    gc.freeze()
    announce(
        Announcement(node.bootstrap_servers, node.metrics_address, configuration.settings.folders[0], node.cluster_id)
    )
    watchdog = LoopWatchdog(configuration.settings.log_dir_io_timeout_ms)
    watchdog.start()
    try:
        await ended  # raises a failure, after which the shutdown must not be marked as clean
    finally:
        watchdog.stop()
    await node.stop()


async def _start(node: Node, ended: "asyncio.Future[None]") -> bool:
    """Start the node, unless a signal ends it first: recovering a large log may take a while."""
    starting = asyncio.get_running_loop().create_task(node.start())
    await asyncio.wait([starting, ended], return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.wait([starting])
    if not starting.cancelled():
        if starting.exception() is not None and ended.done():
            ended.result()  # raises the failure that the node reported, which is more specific
        starting.result()  # raises the error that prevented the start
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
    """Return the real clock, randomness, disk, executor and network."""
    settings = configuration.settings
    capabilities = Capabilities.portable() if settings.is_portable else Capabilities.detect()
    budget = settings.queued_max_request_bytes
    return Ports(
        clock=SystemClock(),
        random=system_random(),
        executor=SystemExecutor(),
        disk=SystemDisk(capabilities),
        network=SocketNetwork(
            request_bytes_max=UNLIMITED_BYTES if budget < 0 else budget,
            capabilities=capabilities,
            send_buffer_bytes=settings.socket_send_buffer_bytes,
            receive_buffer_bytes=settings.socket_receive_buffer_bytes,
        ),
    )


def _raise_file_limit() -> None:
    """Raise the descriptor limit: a log needs several files, a connection two descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):
            return  # macOS rejects an unlimited number; keep the current limit
