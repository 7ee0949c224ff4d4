"""What can go wrong with a simulated disk, and when: likely faults, planned failures, planned crashes."""

import os
from dataclasses import dataclass
from enum import Enum


class Crashed(BaseException):
    """The process died in this call. Not an `Exception`: no handler of a dead process runs on."""


class When(Enum):
    """Where in an I/O point a planned crash strikes."""

    BEFORE = "before"
    TORN = "torn"
    AFTER = "after"


@dataclass(frozen=True, slots=True)
class IoPoint:
    """One call that changes the disk. They are numbered from 1 over the life of the disk."""

    number: int
    operation: str
    path: str


@dataclass(slots=True)
class DiskFaults:
    """How likely each call is to go wrong, from 0 to 1. All are off at first."""

    read_error: float = 0.0
    write_error: float = 0.0
    fsync_error: float = 0.0
    short_write: float = 0.0
    cold_read: float = 0.0  # `is_cached` says no
    # What reaches the platter without an fsync, or in spite of a failed one, is any part of the writes, not a prefix;
    # and a process that starts after a failed one may still see in the cache what the platter has lost.
    scatters: bool = False


@dataclass(slots=True)
class PlannedCrash:
    number: int
    when: When
    loses_power: bool


@dataclass(slots=True)
class PlannedFailure:
    operation: str
    error: int
    path_part: str
    skip: int
    times: int
    keep_bytes: int = 0

    def matches(self, operation: str, path: str) -> bool:
        """Whether this call is the one; counts it."""
        if operation != self.operation or self.path_part not in path or self.times == 0:
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.times -= 1
        return True


def os_error(number: int, path: str) -> OSError:
    """As the kernel would raise it: `OSError` picks its subclass by the number, `FileNotFoundError` for one."""
    return OSError(number, os.strerror(number), path)
