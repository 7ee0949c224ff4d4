"""Client errors: their messages, and which of them are retriable."""

from collections.abc import Sequence
from typing import Final, Protocol, TypeVar

from moldau.model.errors import ErrorCode, KafkaError
from moldau.model.ids import Address


class HasErrorCode(Protocol):
    """A response, or a part of one, with an error code."""

    @property
    def error_code(self) -> int: ...


class HasErrorMessage(HasErrorCode, Protocol):
    """One with the broker's message, too."""

    @property
    def error_message(self) -> str | None: ...


Checked = TypeVar("Checked", bound=HasErrorCode)  # a response whose error code is checked


class Unreachable(ConnectionError):
    """A broker could not be connected to."""


class ConnectionLost(ConnectionError):
    """The connection was lost during a request. `was_sent`: the broker may have executed it."""

    def __init__(self, message: str, *, was_sent: bool) -> None:
        super().__init__(message)
        self.was_sent = was_sent


class ResponseTimeout(TimeoutError):
    """No response in time. `was_sent`: the broker may have executed the request."""

    def __init__(self, message: str, *, was_sent: bool) -> None:
        super().__init__(message)
        self.was_sent = was_sent


class TooManyPendingRequests(OSError):
    """Too many requests are queued for a broker."""


# The cached leader or topic id is stale: refresh the metadata before the next attempt.
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

# The same request may succeed later, unchanged.
RETRIABLE: Final = STALE_METADATA | {
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

# The broker has already waited 20 s for an active controller: report its message instead of retrying.
NO_ACTIVE_CONTROLLER: Final = frozenset({ErrorCode.REQUEST_TIMED_OUT})

_classes: dict[int, type[KafkaError]] = {}


def error_of(code: int, message: str | None = None) -> KafkaError:
    """Return the exception of an error code, with the broker's message if there is one."""
    if not _classes:
        _classes.update(_known_classes(KafkaError))
    if code not in _classes:
        _classes[code] = _class_for(code)
    kind = _classes[code]
    return kind(message or kind.code.name.lower().replace("_", " "))


def _known_classes(kind: type[KafkaError]) -> dict[int, type[KafkaError]]:
    """Return the classes below this one by their codes; subclasses without a code of their own are left out."""
    found: dict[int, type[KafkaError]] = {}
    for each in kind.__subclasses__():
        found |= _known_classes(each)
        if "code" in vars(each):
            found[each.code] = each
    return found


def _class_for(code: int) -> type[KafkaError]:
    try:
        known = ErrorCode(code)
    except ValueError:  # a code of a newer broker
        known = ErrorCode.UNKNOWN_SERVER_ERROR
    name = "".join(part.capitalize() for part in known.name.split("_"))
    return type(name, (KafkaError,), {"code": known, "__doc__": f"Error code {code}."})


def check(code: int, message: str | None = None) -> None:
    """Raise the error of a code other than NONE."""
    if code != ErrorCode.NONE:
        raise error_of(code, message)


def cannot_reach(failures: Sequence[tuple[Address, BaseException]]) -> Unreachable:
    """Build a one-line error: the addresses by cause, and a hint if brokers may not be running."""
    by_cause: dict[str, list[str]] = {}
    for address, error in failures:
        cause = _why(error).removeprefix(f"lost the connection to {address}: ")
        by_cause.setdefault(cause, []).append(str(address))
    text = "; ".join(f"cannot reach {', '.join(addresses)}: {cause}" for cause, addresses in by_cause.items())
    if not any(_may_be_down(error) for _, error in failures):
        return Unreachable(text)
    is_local = all(address.host in ("localhost", "127.0.0.1", "::1") for address, _ in failures)
    hint = (
        "; is the broker running? try: moldau start" if is_local else "; is the address right and the broker running?"
    )
    return Unreachable(text + hint)


def _may_be_down(error: BaseException) -> bool:
    """Whether no broker may be there: errors of TLS and of the settings have no number."""
    return isinstance(error, TimeoutError) or (isinstance(error, OSError) and error.errno is not None)


def cannot_reach_broker(node: int, address: Address, error: BaseException) -> Unreachable:
    """For an address from the metadata, which may be reachable only on the broker's machine."""
    return Unreachable(
        f"cannot reach {address}: {_why(error)}; this is the advertised address of broker {node}: is the broker "
        "running, and are its advertised.listeners reachable from here?"
    )


def _why(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return str(error) or "timed out"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__
