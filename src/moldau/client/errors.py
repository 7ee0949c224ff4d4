"""What can go wrong when talking to a cluster, in words, and which of it passes by itself."""

from collections.abc import Iterable
from typing import Final

from moldau.model.errors import ErrorCode, KafkaError
from moldau.model.ids import Address


class Unreachable(ConnectionError):
    """Nobody answered where a broker should be."""


class ConnectionLost(ConnectionError):
    """The connection ended under a request. `was_sent` says whether the broker may have acted on it."""

    def __init__(self, message: str, *, was_sent: bool) -> None:
        super().__init__(message)
        self.was_sent = was_sent


class NoAnswer(TimeoutError):
    """A request was not answered in time. `was_sent` says whether the broker may have acted on it."""

    def __init__(self, message: str, *, was_sent: bool) -> None:
        super().__init__(message)
        self.was_sent = was_sent


class TooManyWaiting(OSError):
    """The caller asks faster than the broker answers, and the queue for it is full."""


# The partition has another leader, or another life, than we thought: look again before the next try.
STALE_METADATA: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.NOT_CONTROLLER,
    }
)

# The same request may succeed a little later, unchanged.
PASSING: Final = STALE_METADATA | {
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.BROKER_NOT_AVAILABLE,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}

# A broker has looked for the active controller for 20 s, in vain: hear its words rather than ask again.
NOBODY_CONTROLS: Final = frozenset({ErrorCode.REQUEST_TIMED_OUT})

_classes: dict[int, type[KafkaError]] = {}


def error_of(code: int, message: str | None = None) -> KafkaError:
    """The exception for a code that a broker answered, with the broker's own words where it gave some."""
    if not _classes:
        _classes.update({each.code: each for each in KafkaError.__subclasses__()})
    if code not in _classes:
        _classes[code] = _class_for(code)
    kind = _classes[code]
    return kind(message or kind.code.name.lower().replace("_", " "))


def _class_for(code: int) -> type[KafkaError]:
    try:
        known = ErrorCode(code)
    except ValueError:  # a newer broker's code
        known = ErrorCode.UNKNOWN_SERVER_ERROR
    name = "".join(part.capitalize() for part in known.name.split("_"))
    return type(name, (KafkaError,), {"code": known, "__doc__": f"Error code {code}."})


def check(code: int, message: str | None = None) -> None:
    """Raise what a code other than NONE stands for."""
    if code != ErrorCode.NONE:
        raise error_of(code, message)


def cannot_reach(failures: Iterable[tuple[Address, BaseException]]) -> Unreachable:
    """One line for the user: where we knocked, what happened, what to try."""
    told = [f"cannot reach {address}: {_why(error)}" for address, error in failures]
    is_local = all("localhost" in each or "127.0.0.1" in each or "[::1]" in each for each in told)
    hint = (
        "; is the broker running? try: moldau start" if is_local else "; is the address right and the broker running?"
    )
    return Unreachable("; ".join(told) + hint)


def cannot_reach_broker(node: int, address: Address, error: BaseException) -> Unreachable:
    """For an address that nobody typed: others answered, and told it. Often it is of use on their machine alone."""
    return Unreachable(
        f"cannot reach {address}: {_why(error)}; there is broker {node}, says the cluster: does it run, and is that "
        "where you reach it? (its advertised.listeners)"
    )


def _why(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return str(error) or "no answer in time"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__
