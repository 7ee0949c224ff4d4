"""UpdateFeatures: change the finalized feature levels of the cluster."""

from collections.abc import Sequence
from typing import Final

from moldau.broker.access import CLUSTER, Operation
from moldau.broker.handlers.contexts import QuorumContext
from moldau.machines.metadata.features import FeatureUpdate, FeatureUpdated, UpgradeType
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
    """Apply all updates or none; from version 2 on the response has one error for all."""
    context.authorize(Operation.ALTER, CLUSTER)
    updates = [_update(each, context.api_version) for each in request.feature_updates]
    if any(each.name == KRAFT_VERSION_FEATURE for each in updates):
        outcomes = [await _upgrade_kraft_version(updates, request, context)]
    else:
        outcomes = await context.broker.metadata.write(
            lambda machine: machine.decide_update_features(updates, validate_only=request.validate_only)
        )
    if context.api_version < ONE_ERROR_FROM:
        return UpdateFeaturesResponse(results=[_result(each) for each in outcomes])
    rejected = next((each for each in outcomes if each.error), None)
    if rejected is None:
        return UpdateFeaturesResponse()
    return UpdateFeaturesResponse(error_code=int(rejected.error), error_message=rejected.message)


async def _upgrade_kraft_version(
    updates: Sequence[FeatureUpdate], request: UpdateFeaturesRequest, context: QuorumContext
) -> FeatureUpdated:
    """Raise kraft.version, which is a record of the quorum's own log and cannot be lowered."""
    update, *others = updates
    if others:
        raise InvalidRequest(f"{KRAFT_VERSION_FEATURE} must be updated in a request of its own.")
    quorum = context.broker.metadata.quorum
    if update.level != KRAFT_VERSION and update.level != quorum.machine.kraft_version:
        raise InvalidUpdateVersion(
            f"Invalid update version {update.level} for feature {update.name}. Its level is "
            f"{quorum.machine.kraft_version}, and {KRAFT_VERSION} is the only one that it can be raised to."
        )
    if update.level == quorum.machine.kraft_version:
        return FeatureUpdated(update.name)

    def event(ticket: Ticket) -> KRaftUpgradeRequested:
        return KRaftUpgradeRequested(
            ticket=ticket, timeout_ms=request.timeout_ms, is_validate_only=request.validate_only
        )

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
