"""The quotas of the metadata image by kind, and the precedence of their entities."""

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from moldau.machines.metadata.client_quotas import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
)
from moldau.machines.metadata.image import QuotaEntity


class QuotaKind(Enum):
    """The quantity that a quota of users and client ids limits."""

    PRODUCE = PRODUCER_BYTE_RATE
    FETCH = CONSUMER_BYTE_RATE
    REQUEST = REQUEST_PERCENTAGE
    MUTATION = CONTROLLER_MUTATION_RATE


class ClientLimit(NamedTuple):
    """The limit of a client, and the entity that shares it: '' stands for any user or any client id."""

    user: str
    client_id: str
    limit: float


_ABSENT: Final = object()

# (user, client id) of the quota's entity, most specific first: True is the client's own name, None the default entity.
_PRECEDENCE: Final = (
    (True, True),
    (True, None),
    (True, _ABSENT),
    (None, True),
    (None, None),
    (None, _ABSENT),
    (_ABSENT, True),
    (_ABSENT, None),
)


class QuotaIndex:
    """Quotas of one image."""

    def __init__(self, client_quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        self._limits: dict[QuotaKind, dict[tuple[object, object], float]] = {}
        self._by_ip: dict[str | None, float] = {}
        kinds = {kind.value: kind for kind in QuotaKind}
        for entity, values in client_quotas.items():
            names: dict[str, object] = dict(entity)
            if IP in names:
                if CONNECTION_CREATION_RATE in values:
                    self._by_ip[dict(entity)[IP]] = values[CONNECTION_CREATION_RATE]
                continue
            owner = names.get(USER, _ABSENT), names.get(CLIENT_ID, _ABSENT)
            for key, value in values.items():
                if key in kinds:
                    self._limits.setdefault(kinds[key], {})[owner] = value

    @property
    def limits_clients(self) -> bool:
        """Whether there is any quota of users or client ids."""
        return bool(self._limits)

    @property
    def limits_connections(self) -> bool:
        return bool(self._by_ip)

    def limit_of(self, kind: QuotaKind, user: str, client_id: str) -> ClientLimit | None:
        """The most specific quota that matches a client, or None."""
        limits = self._limits.get(kind)
        if not limits:
            return None
        for user_level, client_level in _PRECEDENCE:
            owner = (user if user_level is True else user_level, client_id if client_level is True else client_level)
            limit = limits.get(owner)
            if limit is not None:
                return ClientLimit(
                    "" if user_level is _ABSENT else user, "" if client_level is _ABSENT else client_id, limit
                )
        return None

    def connection_rate_of(self, host: str) -> float | None:
        """New connections per second that an IP address may open."""
        limit = self._by_ip.get(host)
        return self._by_ip.get(None) if limit is None else limit
