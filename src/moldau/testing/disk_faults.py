"""Faults of a simulated disk: random faults, planned failures, planned crashes."""

import os
from dataclasses import dataclass
from enum import Enum


class Crashed(BaseException):
    """The process died in this call. Not an `Exception`, so that no handler of the dead process catches it."""


class When(Enum):
    """When a planned crash happens, relative to its I/O point."""

    BEFORE = "before"
    TORN = "torn"
    AFTER = "after"


@dataclass(frozen=True, slots=True)
class IoPoint:
    """One call that changes the disk. I/O points are numbered from 1 over the lifetime of the disk."""

    number: int
    operation: str
    path: str


@dataclass(slots=True)
class DiskFaults:
    """The probability of each fault per call, from 0 to 1. All are off by default."""

    read_error: float = 0.0
    write_error: float = 0.0
    fsync_error: float = 0.0
    short_write: float = 0.0
    cold_read: float = 0.0  # `is_cached` returns False
    # Without an fsync, or after a failed one, an arbitrary subset of the writes is durable instead of a prefix, and the
    # next process may still read from the page cache what is not durable.
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
        """Whether this call is to fail; counts calls that match."""
        if operation != self.operation or self.path_part not in path or self.times == 0:
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.times -= 1
        return True


def os_error(number: int, path: str) -> OSError:
    """Build the error as the kernel would: `OSError` picks its subclass by number, such as `FileNotFoundError`."""
    return OSError(number, os.strerror(number), path)
