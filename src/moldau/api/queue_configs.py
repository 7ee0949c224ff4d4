"""The configs of a queue's group that its clients must know."""

from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource

from moldau.api.types import Failed

DELAY_ENABLE: Final = "share.delay.enable"
DELIVERY_COUNT_LIMIT: Final = "share.delivery.count.limit"
LOOKUP_S: Final = 30.0


class GroupConfigs:
    """Read once, on first use."""

    def __init__(self, admin: AdminClient, group: str) -> None:
        self._admin = admin
        self._group = group
        self._configs: dict[str, str] | None = None

    def require_delays(self) -> None:
        """Raise `Failed` if records would be delivered at once whatever their headers say."""
        if self._all().get(DELAY_ENABLE) != "true":
            self._configs = None  # someone may enable them
            raise Failed(
                f"The group {self._group} has no delays ({DELAY_ENABLE}): create the queue with "
                f"moldau queue create … --delay, or set it with moldau config set group {self._group} "
                f"{DELAY_ENABLE}=true. Apache Kafka has no such config."
            )

    def attempts_max(self) -> int:
        return int(self._all()[DELIVERY_COUNT_LIMIT])

    def _all(self) -> dict[str, str]:
        if self._configs is None:
            self._configs = self._look_up()
        return self._configs

    def _look_up(self) -> dict[str, str]:
        (found,) = self._admin.describe_configs([ConfigResource(ConfigResource.Type.GROUP, self._group)]).values()
        try:
            entries: dict[str, Any] = found.result(LOOKUP_S)
        except KafkaException as error:
            raise Failed(f"The configs of group {self._group} could not be read: {error.args[0].str()}") from error
        except TimeoutError as error:
            raise Failed(f"The configs of group {self._group} could not be read in {LOOKUP_S:g} s.") from error
        return {name: entry.value for name, entry in entries.items()}
