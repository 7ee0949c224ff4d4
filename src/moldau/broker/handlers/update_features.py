"""UpdateFeatures: change the finalized feature levels of the cluster; features that are not served are reported."""

from collections.abc import Sequence
from typing import Final

from moldau.broker.access import CLUSTER, Operation
from moldau.broker.handlers.contexts import QuorumContext
from moldau.machines.metadata.features import UNSERVED_FEATURES, FeatureUpdate, FeatureUpdated, UpgradeType
from moldau.machines.raft import (
    KRAFT_VERSION,
    KRAFT_VERSION_FEATURE,
    KRaftUpgradeRequested,
    RespondToVoterChange,
    Ticket,
)
from moldau.model.errors import ErrorCode, InvalidRequest, InvalidUpdateVersion, KafkaError, NotController
from moldau.wire.messages import UpdateFeaturesRequest, UpdateFeaturesResponse

UPGRADE_TYPE_FROM: Final = 1
ONE_ERROR_FROM: Final = 2

Result = UpdateFeaturesResponse.UpdatableFeatureResult


async def handle(request: UpdateFeaturesRequest, context: QuorumContext) -> UpdateFeaturesResponse:
    """Apply all updates or none, except for features of Kafka that are not served here: they are reported."""
    context.authorize(Operation.ALTER, CLUSTER)
    updates = [_update(each, context.api_version) for each in request.feature_updates]
    kraft_updates = [each for each in updates if each.name == KRAFT_VERSION_FEATURE]
    others = [each for each in updates if each.name != KRAFT_VERSION_FEATURE]
    if len(kraft_updates) > 1:
        raise InvalidRequest(f"Feature {KRAFT_VERSION_FEATURE} appears more than once.")
    outcomes = [await _upgrade_kraft_version(each, request, context, validate_only=True) for each in kraft_updates]
    is_rejected = any(each.error for each in outcomes)
    if others:
        changed = await context.broker.metadata.write(
            lambda machine: machine.decide_update_features(
                others,
                validate_only=request.validate_only or is_rejected,
                supported=context.broker.supported_features,
            )
        )
        outcomes.extend(changed)
    if kraft_updates and not request.validate_only and not _blocking(outcomes):
        outcomes[0] = await _upgrade_kraft_version(kraft_updates[0], request, context, validate_only=False)
    return _response(outcomes, context.api_version)


def _blocking(outcomes: Sequence[FeatureUpdated]) -> list[FeatureUpdated]:
    """The errors that reject the whole request."""
    return [each for each in outcomes if each.error and each.name not in UNSERVED_FEATURES]


def _response(outcomes: Sequence[FeatureUpdated], version: int) -> UpdateFeaturesResponse:
    """An error of one feature is the error of the response, too."""
    response = UpdateFeaturesResponse()
    if version < ONE_ERROR_FROM:
        response.results = [_result(each) for each in outcomes]
    blocking = _blocking(outcomes)
    unserved = [each for each in outcomes if each.error and each.name in UNSERVED_FEATURES]
    rejected = next(iter(blocking or unserved), None)
    if rejected is not None:
        response.error_code, response.error_message = int(rejected.error), rejected.message
    if unserved and not blocking:
        updated = ", ".join(each.name for each in outcomes if not each.error) or "none"
        names = ", ".join(each.name for each in unserved)
        response.error_message = f"Not supported by this version: {names}. Updated features: {updated}."
    return response


async def _upgrade_kraft_version(
    update: FeatureUpdate, request: UpdateFeaturesRequest, context: QuorumContext, *, validate_only: bool
) -> FeatureUpdated:
    """Raise kraft.version, which is a record of the quorum's own log and cannot be lowered."""
    quorum = context.broker.metadata.quorum
    if update.level != KRAFT_VERSION and update.level != quorum.machine.kraft_version:
        raise InvalidUpdateVersion(
            f"Invalid update version {update.level} for feature {update.name}. Its level is "
            f"{quorum.machine.kraft_version}, and {KRAFT_VERSION} is the only one that it can be raised to."
        )
    if update.level == quorum.machine.kraft_version:
        return FeatureUpdated(update.name)

    def event(ticket: Ticket) -> KRaftUpgradeRequested:
        return KRaftUpgradeRequested(ticket=ticket, timeout_ms=request.timeout_ms, is_validate_only=validate_only)

    response: RespondToVoterChange = await quorum.ask(event)
    if response.error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
        raise NotController(response.message)
    return FeatureUpdated(update.name, response.error, response.message or None)


def _update(requested: UpdateFeaturesRequest.FeatureUpdateKey, version: int) -> FeatureUpdate:
    upgrade_type = requested.upgrade_type
    if version < UPGRADE_TYPE_FROM:
        upgrade_type = UpgradeType.SAFE_DOWNGRADE if requested.allow_downgrade else UpgradeType.UPGRADE
    return FeatureUpdate(requested.feature, requested.max_version_level, upgrade_type)


def _result(outcome: FeatureUpdated) -> Result:
    return Result(feature=outcome.name, error_code=int(outcome.error), error_message=outcome.message)


def error_response(request: UpdateFeaturesRequest, error: KafkaError, version: int) -> UpdateFeaturesResponse:
    """Return the same error for every feature, in versions where features have errors of their own."""
    response = UpdateFeaturesResponse(error_code=int(error.code), error_message=error.message)
    if version < ONE_ERROR_FROM and error.code is not ErrorCode.NONE:
        response.results = [
            Result(feature=each.feature, error_code=int(error.code), error_message=error.message)
            for each in request.feature_updates
        ]
    return response
