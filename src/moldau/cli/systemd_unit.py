"""A hardened systemd unit for `moldau start`."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from moldau.cli.errors import usage_error

STATE_PARENT: Final = Path("/var/lib")  # where systemd creates a StateDirectory
STOP_S: Final = 60  # a broker takes up to 30 s to hand over its partitions
OPEN_FILES: Final = 1_048_576
_PLAIN_PATH: Final = re.compile(r"/[A-Za-z0-9/._@:+-]*")  # no character that systemd expands or splits at
_USER: Final = re.compile(r"[a-z_][a-z0-9_-]{0,30}")

# The broker reads its program and settings, writes to its data directory, and uses the network: nothing else.
HARDENING: Final = """\
UMask=0077
NoNewPrivileges=yes
CapabilityBoundingSet=
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=yes
PrivateDevices=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
"""


@dataclass(frozen=True, slots=True)
class SystemdUnit:
    """The parts of a unit that differ between installations."""

    program: Path
    data: Path
    config: Path | None
    user: str

    def __post_init__(self) -> None:
        for option, path in (("--program", self.program), ("--data", self.data), ("--config", self.config)):
            if path is not None and not _PLAIN_PATH.fullmatch(str(path)):
                raise usage_error(f"{option} {path}: write an absolute path of letters, digits and /._@:+-")
        if not _USER.fullmatch(self.user):
            raise usage_error(f"--user {self.user}: write the name of a system user, for example moldau")

    @property
    def text(self) -> str:
        command = f"{self.program} start --data {self.data}"
        if self.config is not None:
            command += f" --config {self.config}"
        return (
            "[Unit]\nDescription=Moldau\nWants=network-online.target\nAfter=network-online.target\n\n"
            f"[Service]\nType=exec\nUser={self.user}\n{self._data_directory}\nExecStart={command}\n"
            f"Restart=on-failure\nRestartSec=5\nTimeoutStopSec={STOP_S}\nLimitNOFILE={OPEN_FILES}\n{HARDENING}\n"
            "[Install]\nWantedBy=multi-user.target\n"
        )

    @property
    def _data_directory(self) -> str:
        """systemd creates a directory below /var/lib for the user; any other one exists already."""
        if self.data.is_relative_to(STATE_PARENT) and self.data != STATE_PARENT and ".." not in self.data.parts:
            return f"StateDirectory={self.data.relative_to(STATE_PARENT)}\nStateDirectoryMode=0700"
        return f"ReadWritePaths={self.data}"
