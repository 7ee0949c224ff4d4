"""How a client secures its connections: the security protocol, TLS, and SASL."""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from moldau.model.ids import Address
from moldau.model.listeners import SecurityProtocol
from moldau.model.ports import Executor
from moldau.model.tls import TlsSettings

# Yields the requests to send and receives each response; yields `Derive` for slow work and receives its result.
# Returns once authenticated; raises KafkaError if rejected.
Authentication = Generator[Any, Any, None]


class SaslClient(Protocol):
    """The credentials of a client. Its repr must not show secrets."""

    @property
    def mechanism(self) -> str: ...

    def authenticate(self, address: Address) -> Authentication:
        """Start the SASL exchange of one connection to the broker at `address`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSecurity:
    """The security of every connection of a client."""

    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    tls: TlsSettings | None = None  # set if and only if the protocol is SSL or SASL_SSL
    sasl: SaslClient | None = field(default=None, repr=False)  # set if and only if it is SASL_…
    executor: Executor | None = field(default=None, repr=False)  # derives keys; without it, the event loop does

    def authentication(self, address: Address) -> Authentication | None:
        """Return the SASL exchange of a new connection, if there is one."""
        return None if self.sasl is None else self.sasl.authenticate(address)


PLAINTEXT: Final = ClientSecurity()
