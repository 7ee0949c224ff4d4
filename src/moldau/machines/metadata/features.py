"""Finalized features: at which level the whole cluster works."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from moldau.machines.decision import Decision, answered
from moldau.machines.metadata.image import MetadataImage, VersionRange
from moldau.machines.metadata.records import METADATA_VERSION, METADATA_VERSION_LOWEST, Record
from moldau.model.errors import ErrorCode, InvalidRequest, InvalidUpdateVersion, KafkaError
from moldau.wire import messages

METADATA_VERSION_FEATURE: Final = "metadata.version"

SUPPORTED_FEATURES: Final[Mapping[str, VersionRange]] = {
    METADATA_VERSION_FEATURE: VersionRange(METADATA_VERSION_LOWEST, METADATA_VERSION),
}
"""What this software can do; a broker registers with it, and ApiVersions tells clients."""


class UpgradeType(IntEnum):
    """Which way a feature may move, by UpdateFeatures' number."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


@dataclass(frozen=True, slots=True)
class FeatureUpdate:
    """A feature that somebody wants at a level. The upgrade type is a number from outside."""

    name: str
    level: int
    upgrade_type: int = UpgradeType.UPGRADE


@dataclass(frozen=True, slots=True)
class FeatureUpdated:
    """The answer about one feature."""

    name: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


def bootstrap_records() -> list[Record]:
    """What the log of a new cluster begins with, after the control records of its quorum."""
    return [messages.FeatureLevelRecord(name=METADATA_VERSION_FEATURE, feature_level=METADATA_VERSION)]


def decide_update_features(
    image: MetadataImage,
    updates: Sequence[FeatureUpdate],
    *,
    supported: Mapping[str, VersionRange] = SUPPORTED_FEATURES,
    validate_only: bool = False,
) -> Decision[Record, list[FeatureUpdated]]:
    """All of them or none: one refused update keeps the others from taking place."""
    records: list[Record] = []
    outcomes: dict[str, FeatureUpdated] = {}
    for update in updates:
        try:
            if update.name in outcomes:
                raise InvalidRequest(f"The feature {update.name} is named twice.")
            _check_update(image, update, supported)
            records.append(messages.FeatureLevelRecord(name=update.name, feature_level=update.level))
            outcomes[update.name] = FeatureUpdated(update.name)
        except KafkaError as refusal:
            outcomes[update.name] = FeatureUpdated(update.name, refusal.code, refusal.message)
    is_refused = any(outcome.error for outcome in outcomes.values())
    return answered(list(outcomes.values()), () if validate_only or is_refused else records)


def _check_update(image: MetadataImage, update: FeatureUpdate, supported: Mapping[str, VersionRange]) -> None:
    complaint = _complaint(image, update, supported)
    if complaint:
        raise InvalidUpdateVersion(f"Invalid update version {update.level} for feature {update.name}. {complaint}")


def _complaint(image: MetadataImage, update: FeatureUpdate, supported: Mapping[str, VersionRange]) -> str | None:
    if update.upgrade_type not in (UpgradeType.UPGRADE, UpgradeType.SAFE_DOWNGRADE, UpgradeType.UNSAFE_DOWNGRADE):
        return "The controller does not support the given upgrade type."
    if update.level < 0:
        return "A feature version cannot be less than 0."
    unsupported = _unsupported(image, update, supported)
    if unsupported:
        return unsupported
    level = image.features.get(update.name, 0)
    if update.level < level and update.upgrade_type == UpgradeType.UPGRADE:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
            "downgrade."
        )
    if update.level > level and update.upgrade_type != UpgradeType.UPGRADE:
        return "Can't downgrade to a newer version."
    return None


def _unsupported(image: MetadataImage, update: FeatureUpdate, supported: Mapping[str, VersionRange]) -> str | None:
    mine = supported.get(update.name)
    if mine is None:
        return "Local controller does not support this feature."
    # Level 0 switches a feature off, which everybody can do; only the version of the metadata itself has to be there.
    if update.level == 0 and update.name != METADATA_VERSION_FEATURE:
        return None
    if update.level not in mine:
        return f"Local controller only supports versions {mine.lowest}-{mine.highest}"
    for broker in image.brokers.values():
        theirs = broker.features.get(update.name, VersionRange(0, 0))
        if update.level not in theirs:
            return f"Broker {broker.broker_id} only supports versions {theirs.lowest}-{theirs.highest}"
    return None
