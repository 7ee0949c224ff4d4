"""Event loop stalls from a broker's metrics: the difference of two scrapes, and its quantiles."""

import re
import urllib.request
from collections.abc import Mapping
from typing import Final

HISTOGRAM: Final = "moldau_loop_stall_seconds"
PAGE_BYTES_MAX: Final = 64 * 1024 * 1024
SCRAPE_S_MAX: Final = 10.0

Buckets = Mapping[float, int]  # upper bound in seconds -> cumulative count

_BUCKET: Final = re.compile(r'_bucket\{le="([^"]+)"\} (\d+)')


def scrape(url: str) -> str:
    # The broker announced this address itself.
    with urllib.request.urlopen(url, timeout=SCRAPE_S_MAX) as page:
        return str(page.read(PAGE_BYTES_MAX).decode())


def parse_buckets(page: str, name: str = HISTOGRAM) -> dict[float, int]:
    """The cumulative buckets of a histogram without labels; empty if the page does not have it."""
    buckets: dict[float, int] = {}
    for line in page.splitlines():
        if line.startswith(name) and (found := _BUCKET.match(line, len(name))):
            buckets[float(found[1])] = int(found[2])
    return buckets


def since(before: Buckets, after: Buckets) -> dict[float, int]:
    """Return the counts since `before`. A bucket missing in `before` had the count of the next lower one."""
    return {bound: count - _at(before, bound) for bound, count in after.items()}


def _at(buckets: Buckets, bound: float) -> int:
    return max((count for each, count in buckets.items() if each <= bound), default=0)


def quantile_s(buckets: Buckets, share: float) -> float | None:
    """Return an upper bound of the quantile, the lowest bucket bound that covers this share; None without samples."""
    if not buckets or not max(buckets.values()):
        return None
    wanted = share * max(buckets.values())
    return min(bound for bound, count in buckets.items() if count >= wanted)
