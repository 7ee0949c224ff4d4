"""The parts of the broker that connections and listeners use."""

from typing import Protocol

from moldau.broker.configs.broker_settings import BrokerSettings
from moldau.broker.quotas.client_quotas import ClientQuotas
from moldau.broker.requests.context import ContextHost


class WriteBuffer(Protocol):
    """Appends of one turn of the event loop, which are written before their acknowledgements are sent."""

    is_open: bool
    more_follows: bool

    @property
    def is_empty(self) -> bool: ...

    def close(self) -> None: ...

    def end(self) -> OSError | None: ...


class NetworkHost(ContextHost, Protocol):
    """Every request needs the parts of `ContextHost`; a connection writes appended batches and reports bugs."""

    @property
    def settings(self) -> BrokerSettings: ...

    @property
    def write_coalescer(self) -> WriteBuffer: ...

    @property
    def inter_broker_listener(self) -> str: ...

    @property
    def client_quotas(self) -> ClientQuotas: ...

    def report_bug(self, where: str, error: BaseException) -> None: ...
