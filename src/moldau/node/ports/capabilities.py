"""What this operating system can do beyond POSIX. Every one of these has a fallback."""

import os
import select
import socket
import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Capabilities:
    """`Capabilities.portable()` forces every fallback, which is how they are tested on Linux."""

    has_sendfile: bool
    has_fallocate: bool
    has_nowait_reads: bool
    has_epoll: bool
    has_low_water_mark: bool  # a socket is readable when so much has come, or the end
    more_flag: int  # MSG_MORE, or 0 where the kernel has none

    @classmethod
    def detect(cls) -> "Capabilities":
        return cls(
            has_sendfile=hasattr(os, "sendfile"),
            has_fallocate=sys.platform == "linux",
            has_nowait_reads=hasattr(os, "RWF_NOWAIT"),
            has_epoll=hasattr(select, "epoll"),
            has_low_water_mark=sys.platform == "linux",
            more_flag=getattr(socket, "MSG_MORE", 0),
        )

    @classmethod
    def portable(cls) -> "Capabilities":
        return cls(
            has_sendfile=False,
            has_fallocate=False,
            has_nowait_reads=False,
            has_epoll=False,
            has_low_water_mark=False,
            more_flag=0,
        )
