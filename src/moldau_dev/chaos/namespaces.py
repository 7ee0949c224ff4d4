"""Network namespaces for nodes, joined by a bridge; each direction between two can be cut silently.

A cut needs only `ip`: the neighbour entry of the sender gets an unused hardware address, so that its packets are lost
in one direction without an error. Delays and random loss need `tc netem`, if the kernel has it.
"""

import contextlib
import os
import shutil
import subprocess
from typing import Final

UNUSED_HARDWARE_ADDRESS: Final = "02:ff:ff:ff:ff:ff"
RUNNER: Final = 0  # the end of this process


class Wires:
    """Ends are numbered: 0 is this process, the others are nodes, each in its own namespace."""

    def __init__(self, nodes: int) -> None:
        self._mark = os.getpid() % 60_000
        self._net = f"10.{200 + self._mark // 250 % 50}.{self._mark % 250}"
        self._bridge = f"mld{self._mark}"
        self._ends = range(RUNNER, nodes + 1)
        self.can_delay = False

    @staticmethod
    def are_allowed() -> bool:
        """Whether this process may create namespaces and links."""
        if shutil.which("ip") is None or os.geteuid() != 0:
            return False
        name = f"mld-try-{os.getpid()}"
        made = _ip("netns", "add", name, must=False) and _ip(
            "link", "add", f"mlt{os.getpid() % 60_000}", "type", "bridge", must=False
        )
        _ip("link", "del", f"mlt{os.getpid() % 60_000}", must=False)
        _ip("netns", "del", name, must=False)
        return made

    def lay(self) -> None:
        """Create namespaces, links and bridge, until `remove`."""
        self.remove()
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("addr", "add", f"{self.address(RUNNER)}/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        for end in self._ends[1:]:
            self._lay(end)
        self.mend()
        self.can_delay = self._try_delay()

    def remove(self) -> None:
        for end in self._ends[1:]:
            _ip("netns", "del", self._namespace(end), must=False)
        _ip("link", "del", self._bridge, must=False)

    def address(self, end: int) -> str:
        return f"{self._net}.{end + 1}"

    def command(self, end: int) -> tuple[str, ...]:
        """Return the prefix of a command to run at this end."""
        return ("ip", "netns", "exec", self._namespace(end))

    def cut(self, sender: int, receiver: int) -> None:
        """Drop packets from sender to receiver until `mend`."""
        self._set_neighbour(sender, receiver, UNUSED_HARDWARE_ADDRESS)

    def cut_off(self, *ends: int) -> None:
        """Cut these ends off from all others in both directions; they still reach each other."""
        for one in ends:
            for other in self._ends:
                if other not in ends:
                    self.cut(one, other)
                    self.cut(other, one)

    def delay(self, end: int, ms: int, spread_ms: int) -> None:
        """Delay the packets that this end sends; only where `can_delay`."""
        how = ("delay", f"{ms}ms", f"{spread_ms}ms")
        self._run(end, "tc", "qdisc", "replace", "dev", "eth0", "root", "netem", *how)

    def mend(self) -> None:
        """Remove all cuts and delays."""
        for one in self._ends:
            for other in self._ends:
                if one != other:
                    self._set_neighbour(one, other, self._hardware(other))
        if self.can_delay:
            for end in self._ends[1:]:
                self._run(end, "tc", "qdisc", "del", "dev", "eth0", "root", must=False)

    def _lay(self, end: int) -> None:
        name, outer = self._namespace(end), f"mlv{self._mark}-{end}"
        _ip("netns", "add", name)
        _ip("link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "set", outer, "master", self._bridge, "up")
        self._run(end, "ip", "addr", "add", f"{self.address(end)}/24", "dev", "eth0")
        self._run(end, "ip", "link", "set", "eth0", "address", self._hardware(end))
        self._run(end, "ip", "link", "set", "eth0", "up")
        self._run(end, "ip", "link", "set", "lo", "up")

    def _hardware(self, end: int) -> str:
        if end == RUNNER:
            with open(f"/sys/class/net/{self._bridge}/address") as file:
                return file.read().strip()
        return f"02:00:{self._mark >> 8 & 255:02x}:{self._mark & 255:02x}:00:{end:02x}"

    def _set_neighbour(self, end: int, other: int, hardware: str) -> None:
        device = self._bridge if end == RUNNER else "eth0"
        self._run(
            end, "ip", "neigh", "replace", self.address(other), "lladdr", hardware, "dev", device, "nud", "permanent"
        )

    def _try_delay(self) -> bool:
        tried = self._run(
            self._ends[1], "tc", "qdisc", "add", "dev", "eth0", "root", "netem", "delay", "0ms", must=False
        )
        self._run(self._ends[1], "tc", "qdisc", "del", "dev", "eth0", "root", must=False)
        return tried

    def _run(self, end: int, *command: str, must: bool = True) -> bool:
        return _run(*(() if end == RUNNER else self.command(end)), *command, must=must)

    def _namespace(self, end: int) -> str:
        return f"mld-{self._mark}-{end}"

    def __enter__(self) -> "Wires":
        try:
            self.lay()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self.remove()


def _ip(*arguments: str, must: bool = True) -> bool:
    return _run("ip", *arguments, must=must)


def _run(*command: str, must: bool) -> bool:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if must and result.returncode != 0:
        raise OSError(f"{' '.join(command)}: {result.stderr.strip()}")
    return result.returncode == 0
