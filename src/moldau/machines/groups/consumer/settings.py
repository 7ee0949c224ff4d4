"""What rules consumer groups, by Kafka's names, and what a single group may set for itself."""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Final, NamedTuple

from moldau.machines.groups.consumer.assignors import ASSIGNORS
from moldau.model.errors import InvalidConfig
from moldau.model.settings import INT_MAX, Kind, setting
from moldau.model.units import MINUTE_MS, SECOND_MS

REGEX_REFRESH_MIN_MS: Final = 10 * SECOND_MS
"""Topics that are created one after another cost one rebalance in this time, not one each."""

SESSION_TIMEOUT: Final = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL: Final = "consumer.heartbeat.interval.ms"
POLICIES: Final = ("bidirectional", "upgrade", "downgrade", "disabled")  # in any case, as Kafka takes them


def _assignors(names: tuple[str, ...]) -> str | None:
    if not names:
        return "at least one assignor is needed"
    return None if len(set(names)) == len(names) else "an assignor is named twice"


def _policy(word: str) -> str | None:
    return None if word.lower() in POLICIES else f"it must be one of {', '.join(POLICIES)}"


@dataclass(frozen=True, kw_only=True)
class ConsumerGroupSettings:
    """How long members may be silent, how often they are to be heard, and who may be one."""

    group_consumer_session_timeout_ms: int = setting(
        "group.consumer.session.timeout.ms",
        45 * SECOND_MS,
        kind=Kind.INT,
        at_least=1,
        doc="After this long without a heartbeat a member of a consumer group is removed.",
    )
    group_consumer_min_session_timeout_ms: int = setting(
        "group.consumer.min.session.timeout.ms",
        45 * SECOND_MS,
        kind=Kind.INT,
        at_least=1,
        doc="The shortest session timeout that a single consumer group may be given.",
    )
    group_consumer_max_session_timeout_ms: int = setting(
        "group.consumer.max.session.timeout.ms",
        MINUTE_MS,
        kind=Kind.INT,
        at_least=1,
        doc="The longest session timeout that a single consumer group may be given.",
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        "group.consumer.heartbeat.interval.ms",
        5 * SECOND_MS,
        kind=Kind.INT,
        at_least=1,
        doc="How often members of consumer groups are told to send heartbeats.",
    )
    group_consumer_min_heartbeat_interval_ms: int = setting(
        "group.consumer.min.heartbeat.interval.ms",
        5 * SECOND_MS,
        kind=Kind.INT,
        at_least=1,
        doc="The shortest heartbeat interval that a single consumer group may be given.",
    )
    group_consumer_max_heartbeat_interval_ms: int = setting(
        "group.consumer.max.heartbeat.interval.ms",
        15 * SECOND_MS,
        kind=Kind.INT,
        at_least=1,
        doc="The longest heartbeat interval that a single consumer group may be given.",
    )
    group_consumer_max_size: int = setting(
        "group.consumer.max.size",
        INT_MAX,
        kind=Kind.INT,
        at_least=1,
        doc="The most members of a consumer group; further ones are refused.",
    )
    group_consumer_assignors: tuple[str, ...] = setting(
        "group.consumer.assignors",
        tuple(ASSIGNORS),
        one_of=tuple(ASSIGNORS),
        check=_assignors,
        doc="The assignors that members may ask for; the first is for those who do not ask.",
    )
    group_consumer_migration_policy: str = setting(
        "group.consumer.migration.policy",
        "bidirectional",
        check=_policy,
        doc="Which way a group may change between the classic and the consumer protocol while it has members.",
    )
    group_consumer_regex_refresh_interval_ms: int = setting(
        "group.consumer.regex.refresh.interval.ms",
        10 * MINUTE_MS,
        kind=Kind.INT,
        at_least=REGEX_REFRESH_MIN_MS,
        is_internal=True,
        doc="How often regular expressions of consumer groups are matched anew, even if no topic was created.",
    )
    group_consumer_unsettled_heartbeat_interval_ms: int = setting(
        "moldau.group.consumer.unsettled.heartbeat.interval.ms",
        SECOND_MS,
        kind=Kind.INT,
        at_least=1,
        doc="How often members are told to send heartbeats while partitions change hands, if that is more often.",
    )

    @property
    def may_upgrade(self) -> bool:
        return self.group_consumer_migration_policy.lower() in ("bidirectional", "upgrade")

    @property
    def may_downgrade(self) -> bool:
        return self.group_consumer_migration_policy.lower() in ("bidirectional", "downgrade")


class Pace(NamedTuple):
    """How long the members of one group may be silent, and how often they are to be heard."""

    session_timeout_ms: int
    heartbeat_interval_ms: int


def pace(settings: ConsumerGroupSettings, configs: Mapping[str, str]) -> Pace:
    """What a group's own configs say, within what the broker allows."""
    return Pace(
        _bounded(
            configs.get(SESSION_TIMEOUT),
            settings.group_consumer_session_timeout_ms,
            settings.group_consumer_min_session_timeout_ms,
            settings.group_consumer_max_session_timeout_ms,
        ),
        _bounded(
            configs.get(HEARTBEAT_INTERVAL),
            settings.group_consumer_heartbeat_interval_ms,
            settings.group_consumer_min_heartbeat_interval_ms,
            settings.group_consumer_max_heartbeat_interval_ms,
        ),
    )


def check_pace(settings: ConsumerGroupSettings, configs: Mapping[str, str], changed: Set[str]) -> None:
    """Refuse a change of a group's own configs that the broker does not allow, rather than to bound it unheard."""
    bounds = {
        SESSION_TIMEOUT: (
            settings.group_consumer_min_session_timeout_ms,
            settings.group_consumer_max_session_timeout_ms,
        ),
        HEARTBEAT_INTERVAL: (
            settings.group_consumer_min_heartbeat_interval_ms,
            settings.group_consumer_max_heartbeat_interval_ms,
        ),
    }
    news = sorted(changed & configs.keys() & bounds.keys())
    for name in news:
        least, most = bounds[name]
        if not least <= int(configs[name]) <= most:
            kind = name.removeprefix("consumer.")
            raise InvalidConfig(
                f"Invalid value {configs[name]} for configuration {name}: it must be from {least} to {most} "
                f"(group.consumer.min.{kind}, group.consumer.max.{kind})."
            )
    found = pace(settings, configs)
    if news and found.session_timeout_ms <= found.heartbeat_interval_ms:
        raise InvalidConfig(f"{SESSION_TIMEOUT} must be greater than {HEARTBEAT_INTERVAL}.")


def _bounded(text: str | None, default: int, least: int, most: int) -> int:
    """Configs are checked when they are set; the bounds may have changed since."""
    return default if text is None else min(max(int(text), least), most)
