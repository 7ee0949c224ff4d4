"""The parts of the broker that fast paths use."""

from typing import Protocol

from moldau.broker.fetch.contexts import FollowerFetchHost
from moldau.broker.partitions.table import Partitions
from moldau.broker.partitions.write_coalescer import WriteCoalescer
from moldau.broker.requests.context import ContextHost
from moldau.machines.metadata.image import MetadataImage


class FastPathHost(ContextHost, Protocol):
    """For every fast path."""

    @property
    def write_coalescer(self) -> WriteCoalescer: ...


class ProduceFastPathHost(FastPathHost, Protocol):
    """For Produce."""

    @property
    def image(self) -> MetadataImage: ...

    @property
    def partitions(self) -> Partitions: ...


class FollowerFetchFastPathHost(FastPathHost, FollowerFetchHost, Protocol):
    """For fetches of followers."""
