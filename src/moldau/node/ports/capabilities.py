"""Features of the operating system beyond POSIX, each of which has a fallback."""

import os
import select
import socket
import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Capabilities:
    """`Capabilities.portable()` forces every fallback, so that they can be tested on Linux."""

    has_sendfile: bool
    has_fallocate: bool
    has_nowait_reads: bool
    has_epoll: bool
    has_low_water_mark: bool  # SO_RCVLOWAT: a socket becomes readable only with this many bytes, or at end of stream
    more_flag: int  # MSG_MORE, or 0 if unsupported

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
