"""Brokers that do not answer: what the others tell is shown, and who is missing is said."""

from collections.abc import Collection
from typing import Final

from moldau.cli.errors import Complaint

# The cluster takes nine seconds to find a broker dead, and then others have what it had. Who waits longer waits for one
# that is not replaced: in an outage, one wants to see what there is.
ANSWERS_WAIT_MS: Final = 15_000


def complain_of_silent(brokers: Collection[int], what: str) -> None:
    """If there are any."""
    if brokers:
        nodes = ", ".join(str(each) for each in sorted(brokers))
        who, it = ("broker", "it knows") if len(brokers) == 1 else ("brokers", "they know")
        raise Complaint(
            f"no answer from {who} {nodes}: {what} that only {it} of are not shown; see: moldau cluster health"
        )
