"""The quotas of users and client ids that are in effect, and the rates of the clients that they limit."""

import math
from collections.abc import Callable, Iterator
from typing import Final

from moldau.broker.configs.quota_settings import QuotaSettings
from moldau.broker.quotas.quota_index import ClientLimit, QuotaIndex, QuotaKind
from moldau.machines.metadata.delta import MetadataDelta
from moldau.machines.metadata.image import MetadataImage
from moldau.machines.quotas.rates import TokenBucket, WindowedRate
from moldau.model.errors import ThrottlingQuotaExceeded
from moldau.model.ports import Clock
from moldau.model.settings import INT_MAX
from moldau.model.units import HOUR_MS, MINUTE_MS, SECOND_MS

ENTITIES_MAX: Final = 20_000  # with a rate; client ids come from clients
ENTITIES_DROPPED: Final = ENTITIES_MAX // 4  # the least recently used ones, when there are too many
ENTITY_IDLE_MS_MAX: Final = HOUR_MS
SWEEP_INTERVAL_MS: Final = MINUTE_MS
USER_PREFIX: Final = "User:"
ROOM_KNOWN_MS: Final = 50.0


def whole_ms(pause_ms: float) -> int:
    """Round up, except for the error of floating-point numbers."""
    return min(math.ceil(pause_ms - 1e-6), INT_MAX)


class EntityQuota:
    """The limit and the rate of one entity, shared by all of its connections.

    What a client may use before it exceeds the limit is computed at most every `ROOM_KNOWN_MS` while it is enough:
    meanwhile a request only subtracts its amount, and the amounts enter the rate together.
    """

    __slots__ = (
        "_known_room",
        "_known_until_ms",
        "_unrecorded",
        "bucket",
        "client_id",
        "kind",
        "last_used_ms",
        "limit",
        "rate",
        "throttle_count",
        "throttle_ms",
        "user",
    )

    def __init__(self, kind: QuotaKind, limit: ClientLimit, settings: QuotaSettings) -> None:
        self.kind = kind
        self.user, self.client_id, self.limit = limit
        windows, window_ms = settings.quota_window_num, settings.quota_window_size_seconds * SECOND_MS
        self.rate = WindowedRate(windows, window_ms)
        self.throttle_ms = WindowedRate(windows, window_ms)  # sum and number of throttle times, for their average
        self.throttle_count = WindowedRate(windows, window_ms)
        self.bucket = TokenBucket(
            settings.controller_quota_window_num, settings.controller_quota_window_size_seconds * SECOND_MS
        )
        self.last_used_ms = 0.0
        self._known_room = 0.0
        self._known_until_ms = -math.inf
        self._unrecorded = 0.0  # in the known room already, but not in the rate

    def room(self, now_ms: float) -> float:
        """The amount that is left below the limit now; negative if it is exceeded."""
        if now_ms >= self._known_until_ms:
            self._compute_room(0.0, now_ms)
        return self._known_room

    def record(self, amount: float, now_ms: float) -> int:
        """Charge, and return the throttle time in milliseconds."""
        if amount <= self._known_room and now_ms < self._known_until_ms:
            self._known_room -= amount
            self._unrecorded += amount
            return 0
        self._compute_room(amount, now_ms)
        return whole_ms(max(0.0, -self._known_room / self.limit * SECOND_MS))

    def use_limit(self, limit: float) -> None:
        """The limit may be another one than before."""
        if limit != self.limit:
            self.limit = limit
            self._known_until_ms = -math.inf

    def per_second(self, now_ms: float) -> float:
        self._compute_room(0.0, now_ms)
        return self.rate.per_second(now_ms)

    def _compute_room(self, amount: float, now_ms: float) -> None:
        """Charge the amount and what is not recorded yet, and compute the room."""
        if amount or self._unrecorded:
            self.last_used_ms = now_ms
            self.rate.record(amount + self._unrecorded, now_ms)
            self._unrecorded = 0.0
        self._known_room = self.rate.room(self.limit, now_ms)
        self._known_until_ms = now_ms + ROOM_KNOWN_MS

    def throttled(self, throttle_ms: float, now_ms: float) -> None:
        self.throttle_ms.record(throttle_ms, now_ms)
        self.throttle_count.record(1, now_ms)

    def average_throttle_ms(self, now_ms: float) -> float:
        """Of the throttled requests in the windows; 0 if there was none."""
        self.throttle_ms.elapsed_ms(now_ms)
        self.throttle_count.elapsed_ms(now_ms)
        count = self.throttle_count.total
        return self.throttle_ms.total / count if count else 0.0


class MutationQuota:
    """The quota of metadata changes of one request: partitions created and deleted (KIP-599).

    A strict quota rejects changes while there is a debt. Requests of old versions are only throttled.
    """

    def __init__(self, entity: EntityQuota | None, now_ms: float, *, is_strict: bool) -> None:
        """Without an entity, the changes are unlimited."""
        self._entity = entity
        self._now_ms = now_ms
        self._is_strict = is_strict
        self.throttle_ms = 0

    def record(self, partitions: int) -> None:
        """Charge a change that passed all other checks, or raise."""
        entity, now_ms = self._entity, self._now_ms
        if entity is None:
            return
        entity.last_used_ms = now_ms
        if not self._is_strict or entity.bucket.refill(entity.limit, now_ms) >= 0:
            entity.bucket.take(partitions, entity.limit, now_ms)
            entity.rate.record(partitions, now_ms)
            if self._is_strict:
                return
        throttle_ms = whole_ms(entity.bucket.pause_ms(entity.limit, now_ms))
        if throttle_ms:
            entity.throttled(throttle_ms, now_ms)
            self.throttle_ms = max(self.throttle_ms, throttle_ms)
        if self._is_strict:
            raise ThrottlingQuotaExceeded(
                f"The controller_mutation_rate quota is exceeded; retry in {self.throttle_ms} ms."
            )


class ClientQuotas:
    """Finds the quotas of clients. `generation` changes whenever what it found may be outdated."""

    def __init__(self, clock: Clock, settings: Callable[[], QuotaSettings]) -> None:
        self.clock = clock
        self.settings = settings
        self.index = QuotaIndex({})
        self.generation = 0
        self.on_toggled: list[Callable[[], None]] = []  # called when the first quota appears or the last one is removed
        self._entities: dict[tuple[QuotaKind, str, str], EntityQuota] = {}
        self._swept_ms = 0.0

    @property
    def is_active(self) -> bool:
        """Whether there is any quota of users or client ids."""
        return self.index.limits_clients

    def follow(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Apply the quotas of a new image; rates and debts stay."""
        if not delta.client_quotas:
            return
        was_active = self.is_active
        self.index = QuotaIndex(image.client_quotas)
        self.generation += 1
        if was_active is not self.is_active:
            for toggled in self.on_toggled:
                toggled()
        if not self.is_active:
            self._entities.clear()

    def find(self, kind: QuotaKind, principal: str, client_id: str | None) -> EntityQuota | None:
        """The quota of a client, or None if it is unlimited."""
        found = self.index.limit_of(kind, principal.removeprefix(USER_PREFIX), client_id or "")
        if found is None:
            return None
        key = kind, found.user, found.client_id
        entity = self._entities.get(key)
        now_ms = self.clock.monotonic_ms()
        if entity is None:
            self._drop_idle(now_ms)
            entity = self._entities[key] = EntityQuota(kind, found, self.settings())
        entity.use_limit(found.limit)
        entity.last_used_ms = now_ms
        return entity

    def mutations_of(self, principal: str, client_id: str | None, *, is_strict: bool) -> "MutationQuota":
        """The quota of metadata changes for one request."""
        entity = self.find(QuotaKind.MUTATION, principal, client_id) if self.is_active else None
        return MutationQuota(entity, self.clock.monotonic_ms(), is_strict=is_strict)

    def entities(self, kind: QuotaKind, at_most: int) -> Iterator[EntityQuota]:
        """The entities of a kind whose rate is known, the most recently used ones first."""
        known = [entity for entity in self._entities.values() if entity.kind is kind]
        known.sort(key=lambda entity: -entity.last_used_ms)
        return iter(known[:at_most])

    def _drop_idle(self, now_ms: float) -> None:
        """Drop entities that have been idle for long; at the limit, also the least recently used ones."""
        is_full = len(self._entities) >= ENTITIES_MAX
        if not is_full and now_ms - self._swept_ms < SWEEP_INTERVAL_MS:
            return
        self._swept_ms = now_ms
        if is_full:
            dropped = sorted(self._entities, key=lambda key: self._entities[key].last_used_ms)[:ENTITIES_DROPPED]
        else:
            dropped = [key for key, each in self._entities.items() if now_ms - each.last_used_ms > ENTITY_IDLE_MS_MAX]
        for key in dropped:
            del self._entities[key]
        if dropped:
            self.generation += 1
