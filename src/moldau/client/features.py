"""Features of a cluster: the finalized levels, the levels that its brokers support, and upgrades."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from moldau import __version__
from moldau.client.async_client import AsyncClient
from moldau.client.brokers import REQUEST_FAILURES
from moldau.client.errors import check
from moldau.wire import messages

UPGRADE: Final = 1
WITH_DRY_RUN: Final = 1  # the first version of UpdateFeatures with `validate_only` and an upgrade type
METADATA_VERSION: Final = "metadata.version"

METADATA_LEVELS: Final[Mapping[str, int]] = {
    "3.7": 19,
    "3.8": 20,
    "3.9": 21,
    "4.0": 25,
    "4.1": 27,
    "4.2": 29,
    "4.3": 30,
}
"""The last level of metadata.version by release of Kafka, oldest first."""

FIRST_RELEASES: Final[Mapping[tuple[str, int], str]] = {
    ("kraft.version", 1): "3.9",
    ("group.version", 1): "4.0",
    ("transaction.version", 2): "4.0",
    ("eligible.leader.replicas.version", 1): "4.1",
    ("share.version", 1): "4.2",
    ("streams.version", 1): "4.2",
}
"""Levels of the other features, with the first release of Kafka whose new clusters have them."""


@dataclass(frozen=True, slots=True)
class Levels:
    """A range of levels of a feature."""

    lowest: int
    highest: int


@dataclass(frozen=True, slots=True)
class Features:
    """Features as the brokers report them."""

    finalized: Mapping[str, int]
    supported: Mapping[int, Mapping[str, Levels]]  # by broker, then by name
    unreachable: tuple[int, ...]

    @property
    def names(self) -> list[str]:
        return sorted({*self.finalized, *(name for each in self.supported.values() for name in each)})

    def supported_by_all(self, name: str) -> Levels | None:
        """Return the levels that every broker supports; None if there are none."""
        ranges = [each.get(name) for each in self.supported.values()]
        known = [each for each in ranges if each is not None]
        if not known or len(known) < len(ranges):
            return None
        common = Levels(max(each.lowest for each in known), min(each.highest for each in known))
        return common if common.lowest <= common.highest else None


def release_of(level: int) -> str | None:
    """Return the oldest release of Kafka that has this level of metadata.version; None if unknown."""
    if level < min(METADATA_LEVELS.values()):
        return None
    return next((release for release, last in METADATA_LEVELS.items() if level <= last), None)


def levels_of_release(release: str) -> dict[str, int]:
    """Return the levels of a new cluster of a release, which must be in METADATA_LEVELS."""
    releases = list(METADATA_LEVELS)
    others = {
        name: level
        for (name, level), first in FIRST_RELEASES.items()
        if releases.index(first) <= releases.index(release)
    }
    return {METADATA_VERSION: METADATA_LEVELS[release], **others}


async def describe_features(client: AsyncClient) -> Features:
    """Ask every broker that is not fenced. The finalized levels are those of the latest epoch."""
    nodes = [int(each.node_id) for each in await client.brokers()]
    responses = dict(zip(nodes, await asyncio.gather(*(_ask(client, each) for each in nodes)), strict=True))
    known = {node: each for node, each in responses.items() if each is not None}
    latest = max(known.values(), key=lambda each: each.finalized_features_epoch, default=None)
    return Features(
        {each.name: each.max_version_level for each in (latest.finalized_features if latest else ())},
        {
            node: {each.name: Levels(each.min_version, each.max_version) for each in response.supported_features}
            for node, response in known.items()
        },
        tuple(node for node in nodes if node not in known),
    )


async def _ask(client: AsyncClient, node: int) -> messages.ApiVersionsResponse | None:
    request = messages.ApiVersionsRequest(client_software_name="moldau", client_software_version=__version__)
    try:
        response = await client.send(request, node=node)
        check(response.error_code)
    except REQUEST_FAILURES:
        return None
    return response


async def upgrade_features(client: AsyncClient, levels: Mapping[str, int], *, validate_only: bool) -> None:
    """Raise features to these levels, all or none; the error of the first that cannot be raised."""
    updates = [
        messages.UpdateFeaturesRequest.FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=UPGRADE)
        for name, level in levels.items()
    ]
    timeout_ms = client.settings.request_timeout_ms
    request = messages.UpdateFeaturesRequest(
        timeout_ms=timeout_ms, feature_updates=updates, validate_only=validate_only
    )

    async def attempt() -> None:
        response = await client.send(request, version_at_least=WITH_DRY_RUN)
        _check_results(response.results)
        check(response.error_code, response.error_message)

    await client.retry(attempt, is_idempotent=False)


def _check_results(results: Iterable[messages.UpdateFeaturesResponse.UpdatableFeatureResult]) -> None:
    for each in results:
        check(each.error_code, f"{each.feature}: {each.error_message}" if each.error_message else None)
