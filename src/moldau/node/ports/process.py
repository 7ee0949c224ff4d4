"""Process metrics from the operating system, under the names that Prometheus clients use."""

import os
import resource
import sys
from collections.abc import Iterator


def process_lines() -> Iterator[str]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    yield "# HELP process_cpu_seconds_total Seconds of CPU used, in user and system mode.\n"
    yield "# TYPE process_cpu_seconds_total counter\n"
    yield f"process_cpu_seconds_total {usage.ru_utime + usage.ru_stime}\n"
    yield "# HELP process_resident_memory_bytes Memory in use.\n"
    yield "# TYPE process_resident_memory_bytes gauge\n"
    yield f"process_resident_memory_bytes {_resident_bytes(usage.ru_maxrss)}\n"
    if os.path.isdir("/proc/self/fd"):
        yield "# HELP process_open_fds Open file descriptors.\n"
        yield "# TYPE process_open_fds gauge\n"
        yield f"process_open_fds {len(os.listdir('/proc/self/fd'))}\n"


def _resident_bytes(peak: int) -> int:
    """Return the current memory in use, or the peak where the system does not report it."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return peak if sys.platform == "darwin" else peak * 1024
