"""Finalized features: the levels at which the cluster operates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain
from typing import Final

from moldau.machines.decision import Decision, respond
from moldau.machines.metadata.cluster_view import ClusterView
from moldau.machines.metadata.image import ELR_FEATURE, MetadataImage, VersionRange
from moldau.machines.metadata.leader_configs import first_safety_records, switching_records
from moldau.machines.metadata.records import (
    METADATA_VERSION,
    METADATA_VERSION_FEATURE,
    METADATA_VERSION_HIGHEST,
    METADATA_VERSION_LOWEST,
    METADATA_VERSION_OF_ELR,
    Record,
)
from moldau.machines.metadata.settings import MetadataSettings
from moldau.model.errors import ErrorCode, InvalidRequest, InvalidUpdateVersion, KafkaError
from moldau.wire import messages

TRANSACTION_VERSION_FEATURE: Final = "transaction.version"
TRANSACTION_VERSION: Final = 2  # an epoch per transaction; clients follow the finalized level

GROUP_VERSION_FEATURE: Final = "group.version"
GROUP_VERSION: Final = 1  # the consumer protocol of KIP-848, which is served at every level

SHARE_VERSION_FEATURE: Final = "share.version"
SHARE_VERSION: Final = 1  # share groups (KIP-932)

UNSERVED_FEATURES: Final = frozenset({"streams.version"})
"""Features of Kafka 4.3 that this version does not serve. An upgrade to a release of Kafka names them, too."""

SUPPORTED_FEATURES: Final[Mapping[str, VersionRange]] = {
    METADATA_VERSION_FEATURE: VersionRange(METADATA_VERSION_LOWEST, METADATA_VERSION_HIGHEST),
    ELR_FEATURE: VersionRange(0, 1),
    GROUP_VERSION_FEATURE: VersionRange(0, GROUP_VERSION),
    SHARE_VERSION_FEATURE: VersionRange(0, SHARE_VERSION),
    TRANSACTION_VERSION_FEATURE: VersionRange(0, TRANSACTION_VERSION),
}
"""Features supported by this version; sent with registrations and in ApiVersions responses."""


class UpgradeType(IntEnum):
    """Upgrade types of UpdateFeatures, by number."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


@dataclass(frozen=True, slots=True)
class FeatureUpdate:
    """A requested feature level. The upgrade type number is unvalidated."""

    name: str
    level: int
    upgrade_type: int = UpgradeType.UPGRADE


@dataclass(frozen=True, slots=True)
class FeatureUpdated:
    """The result for a feature."""

    name: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


def bootstrap_records(settings: MetadataSettings) -> list[Record]:
    """Return the first records of a new cluster's log, after the quorum's control records."""
    return [
        messages.FeatureLevelRecord(name=METADATA_VERSION_FEATURE, feature_level=METADATA_VERSION),
        *first_safety_records(settings),
        messages.FeatureLevelRecord(name=ELR_FEATURE, feature_level=1),
        messages.FeatureLevelRecord(name=GROUP_VERSION_FEATURE, feature_level=GROUP_VERSION),
        messages.FeatureLevelRecord(name=SHARE_VERSION_FEATURE, feature_level=SHARE_VERSION),
        messages.FeatureLevelRecord(name=TRANSACTION_VERSION_FEATURE, feature_level=TRANSACTION_VERSION),
    ]


def decide_update_features(
    view: ClusterView,
    updates: Sequence[FeatureUpdate],
    *,
    supported: Mapping[str, VersionRange] = SUPPORTED_FEATURES,
    validate_only: bool = False,
) -> Decision[Record, list[FeatureUpdated]]:
    """Update features atomically: one invalid update rejects all, except for features that are not served here."""
    records: list[Record] = []
    outcomes: dict[str, FeatureUpdated] = {}
    for update in updates:
        try:
            if update.name in outcomes:
                raise InvalidRequest(f"Feature {update.name} appears more than once.")
            _check_update(view.image, update, supported)
            if update.name == ELR_FEATURE:
                records.extend(switching_records(view, update.level > 0))
            records.append(messages.FeatureLevelRecord(name=update.name, feature_level=update.level))
            outcomes[update.name] = FeatureUpdated(update.name)
        except KafkaError as error:
            outcomes[update.name] = FeatureUpdated(update.name, error.code, error.message)
    _check_dependency(view.image, updates, outcomes)
    is_refused = any(outcome.error for name, outcome in outcomes.items() if name not in UNSERVED_FEATURES)
    return respond(list(outcomes.values()), () if validate_only or is_refused else records)


def _check_dependency(
    image: MetadataImage, updates: Sequence[FeatureUpdate], outcomes: dict[str, FeatureUpdated]
) -> None:
    """The ELR record format requires a minimum metadata.version."""
    levels = {**image.features, **{update.name: update.level for update in updates}}
    if levels.get(ELR_FEATURE, 0) > 0 and levels.get(METADATA_VERSION_FEATURE, 0) < METADATA_VERSION_OF_ELR:
        message = (
            f"{ELR_FEATURE} could not be set to {levels[ELR_FEATURE]} because it depends on "
            f"{METADATA_VERSION_FEATURE} level {METADATA_VERSION_OF_ELR}"
        )
        for name, outcome in outcomes.items():
            if not outcome.error and name in (ELR_FEATURE, METADATA_VERSION_FEATURE):
                outcomes[name] = FeatureUpdated(name, ErrorCode.INVALID_UPDATE_VERSION, message)


def _check_update(image: MetadataImage, update: FeatureUpdate, supported: Mapping[str, VersionRange]) -> None:
    error = _update_error(image, update, supported)
    if error:
        raise InvalidUpdateVersion(f"Invalid update version {update.level} for feature {update.name}. {error}")


def _update_error(image: MetadataImage, update: FeatureUpdate, supported: Mapping[str, VersionRange]) -> str | None:
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
    # Level 0 disables a feature, which every node supports; only metadata.version is required.
    if update.level == 0 and update.name != METADATA_VERSION_FEATURE:
        return None
    if update.level not in mine:
        return f"Local controller only supports versions {mine.lowest}-{mine.highest}"
    # A node that reads an unsupported level from the log must stop, controllers as well as brokers.
    brokers = ((f"Broker {each.broker_id}", each.features) for each in image.brokers.values())
    controllers = ((f"Controller {each.controller_id}", each.features) for each in image.controllers.values())
    for node, features in chain(brokers, controllers):
        theirs = features.get(update.name, VersionRange(0, 0))
        if update.level not in theirs:
            return f"{node} only supports versions {theirs.lowest}-{theirs.highest}"
    return None
