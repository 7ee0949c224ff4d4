"""ApiVersions: the supported APIs and their versions, and the finalized features."""

import re
from collections.abc import Sequence
from typing import Final

from moldau.broker.handlers.contexts import ClusterContext
from moldau.broker.requests.router import Api, ServedOn
from moldau.machines.metadata.image import VersionRange
from moldau.machines.raft import KRAFT_VERSION, KRAFT_VERSION_FEATURE
from moldau.model.errors import ErrorCode, InvalidRequest
from moldau.wire.messages import ApiVersionsRequest, ApiVersionsResponse

NAMED_FROM: Final = 3  # clients name their software from this version on
ZERO_MINIMUM_FROM: Final = 4  # older clients fail on a feature whose minimum is 0 (KIP-584, KAFKA-17011)
_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
API_VERSIONS_KEY: Final = 18
SERVED: Final = (0, 4)

Entry = ApiVersionsResponse.ApiVersion


async def handle(request: ApiVersionsRequest, context: ClusterContext, apis: Sequence[Api]) -> ApiVersionsResponse:
    """Compute the response from the handler table, so that only implemented APIs are advertised."""
    version = context.api_version
    if version >= NAMED_FROM and not (
        _SOFTWARE.fullmatch(request.client_software_name) and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        raise InvalidRequest("The name and version of the client software may contain letters, digits, dots, hyphens.")
    if context.connection is not None:
        context.connection.client_software = request.client_software_name, request.client_software_version
    broker = context.broker
    kind = ServedOn.CONTROLLER if context.is_from_controllers else ServedOn.BROKER
    entries = [
        Entry(api_key=api.key, min_version=api.advertised[0], max_version=api.advertised[1])
        for api in apis
        if kind in api.served_on and (api.feature is None or broker.image.features.get(api.feature, 0))
    ]
    # The kraft.version is finalized in the quorum's log, not in the metadata image.
    supported = {**broker.supported_features, KRAFT_VERSION_FEATURE: VersionRange(0, KRAFT_VERSION)}
    finalized = {**broker.image.features, KRAFT_VERSION_FEATURE: broker.metadata.quorum.machine.kraft_version}
    return ApiVersionsResponse(
        api_keys=entries,
        supported_features=[
            ApiVersionsResponse.SupportedFeatureKey(name=name, min_version=levels.lowest, max_version=levels.highest)
            for name, levels in supported.items()
            if levels.lowest > 0 or version >= ZERO_MINIMUM_FROM
        ],
        finalized_features_epoch=broker.image.offset,
        finalized_features=[
            ApiVersionsResponse.FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
            for name, level in finalized.items()
            if level > 0
        ],
    )


def unsupported_version_response() -> ApiVersionsResponse:
    """For an unsupported version: a version 0 response that lists the supported versions of ApiVersions."""
    entry = Entry(api_key=API_VERSIONS_KEY, min_version=SERVED[0], max_version=SERVED[1])
    return ApiVersionsResponse(error_code=int(ErrorCode.UNSUPPORTED_VERSION), api_keys=[entry])
