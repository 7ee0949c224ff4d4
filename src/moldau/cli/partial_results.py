"""Brokers that do not answer: what the others tell is shown, and who is missing is said."""

import asyncio
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

from moldau.cli.errors import CommandError
from moldau.cli.output import note

if TYPE_CHECKING:
    from moldau.client.async_client import AsyncClient
    from moldau.model.ids import TopicPartition

# The cluster takes nine seconds to find a broker dead, and then others have what it had. Who waits longer waits for one
# that is not replaced: in an outage, one wants to see what there is.
ANSWERS_WAIT_MS: Final = 15_000
OFFSETS_WAIT_S: Final = 10.0
PLACES_NAMED_MAX: Final = 5
SILENCE: Final = (ConnectionError, TimeoutError, asyncio.CancelledError)


def fail_if_unresponsive(brokers: Collection[int], what: str) -> None:
    """If there are any."""
    if brokers:
        nodes = ", ".join(str(each) for each in sorted(brokers))
        who, it = ("broker", "it knows") if len(brokers) == 1 else ("brokers", "they know")
        raise CommandError(
            f"no answer from {who} {nodes}: {what} that only {it} of are not shown; see: moldau cluster health"
        )


async def available_offsets(
    client: "AsyncClient", wanted: "Sequence[tuple[TopicPartition, int]]"
) -> "dict[tuple[TopicPartition, int], int]":
    """The offsets of partitions at times, where they are told in time. In an outage one wants to see who leads, who is
    in sync and how far a group is, and not to wait for those who do not answer."""
    if not wanted:
        return {}
    asked = {each: asyncio.ensure_future(client.list_offsets(dict([each]))) for each in wanted}
    _, late = await asyncio.wait(asked.values(), timeout=OFFSETS_WAIT_S)
    for task in late:
        task.cancel()
    told = dict(zip(asked, await asyncio.gather(*asked.values(), return_exceptions=True), strict=True))
    _note_silent(sorted({place for (place, _), answer in told.items() if isinstance(answer, SILENCE)}))
    found = {}
    for each, answer in told.items():
        if isinstance(answer, SILENCE):
            continue
        if isinstance(answer, BaseException):
            raise answer
        (offset,) = answer.values()
        if not offset.error:
            found[each] = offset.offset
    return found


def _note_silent(places: "Sequence[TopicPartition]") -> None:
    if places:
        more = f" and {len(places) - PLACES_NAMED_MAX} more" if len(places) > PLACES_NAMED_MAX else ""
        named = ", ".join(str(each) for each in places[:PLACES_NAMED_MAX])
        note(f"no answer from the leaders of {named}{more}: offsets are not shown there")
