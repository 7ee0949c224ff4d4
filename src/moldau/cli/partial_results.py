"""Results of a cluster of which some brokers do not respond: show the rest, and name the missing ones."""

import asyncio
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

from moldau.cli.errors import CommandError
from moldau.cli.output import note

if TYPE_CHECKING:
    from moldau.client.async_client import AsyncClient
    from moldau.model.ids import TopicPartition

# A dead broker is fenced and replaced within nine seconds. Waiting longer does not help: in an outage, a partial result
# is better than none.
RESPONSES_WAIT_MS: Final = 15_000
OFFSETS_WAIT_S: Final = 10.0
PARTITIONS_NAMED_MAX: Final = 5
UNREACHABLE: Final = (ConnectionError, TimeoutError, asyncio.CancelledError)


def fail_if_unresponsive(brokers: Collection[int], what: str) -> None:
    """Raise an error that names the brokers, if there are any."""
    if brokers:
        nodes = ", ".join(str(each) for each in sorted(brokers))
        noun = "broker" if len(brokers) == 1 else "brokers"
        raise CommandError(f"no response from {noun} {nodes}: their {what} are not shown; see: moldau cluster health")


async def available_offsets(
    client: "AsyncClient", wanted: "Sequence[tuple[TopicPartition, int]]"
) -> "dict[tuple[TopicPartition, int], int]":
    """Return the offsets of partitions at times, of those leaders that respond within OFFSETS_WAIT_S."""
    if not wanted:
        return {}
    requests = {each: asyncio.ensure_future(client.list_offsets(dict([each]))) for each in wanted}
    _, late = await asyncio.wait(requests.values(), timeout=OFFSETS_WAIT_S)
    for task in late:
        task.cancel()
    results = dict(zip(requests, await asyncio.gather(*requests.values(), return_exceptions=True), strict=True))
    _note_missing(sorted({place for (place, _), result in results.items() if isinstance(result, UNREACHABLE)}))
    found = {}
    for each, result in results.items():
        if isinstance(result, UNREACHABLE):
            continue
        if isinstance(result, BaseException):
            raise result
        (offset,) = result.values()
        if not offset.error:
            found[each] = offset.offset
    return found


def _note_missing(places: "Sequence[TopicPartition]") -> None:
    if places:
        more = f" and {len(places) - PARTITIONS_NAMED_MAX} more" if len(places) > PARTITIONS_NAMED_MAX else ""
        named = ", ".join(str(each) for each in places[:PARTITIONS_NAMED_MAX])
        note(f"no response from the leaders of {named}{more}: their offsets are not shown")
