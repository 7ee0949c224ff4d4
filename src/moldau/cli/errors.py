"""Errors that the user can fix, each printed as one line with an exit code."""

import errno
import os
import re
import socket
from typing import Final

from moldau.model.errors import ErrorCode, InvalidConfig, KafkaError
from moldau.model.ids import Address

DEBUG_VARIABLE: Final = "MOLDAU_DEBUG"
_DENIALS: Final = (
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
)


class CommandError(Exception):
    """An error that the user can fix: the message says what is wrong and what to do. Exit code 2 is wrong usage."""

    def __init__(self, message: str, *, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def is_debugging() -> bool:
    """Return whether --debug was given."""
    return bool(os.environ.get(DEBUG_VARIABLE))


def usage_error(message: str) -> CommandError:
    return CommandError(message, exit_code=2)


def as_command_error(error: Exception) -> CommandError | None:
    """Return the error to print, or None for a bug, which needs its traceback."""
    match error:
        case CommandError():
            return error
        case InvalidConfig():
            return usage_error(error.message)
        case KafkaError():
            return CommandError(error.message + _advice(error))
        case OSError():
            return CommandError(_describe(error))
        case UnicodeEncodeError():
            return usage_error(f"{error.object[:80]!r} cannot be encoded in {error.encoding}")
        case ValueError():
            return _encoding_error(error)
        case _:
            return None


def _advice(error: KafkaError) -> str:
    """The remedy for a rejected user."""
    from moldau.cli.client_options import user_name

    user = user_name()
    if error.code is ErrorCode.SASL_AUTHENTICATION_FAILED:
        return f" (user {user}: check name and password in the client settings)" if user else ""
    if error.code not in _DENIALS:
        return ""
    principal = f" --principal User:{user}" if user else ""
    return f" An administrator can allow it by an ACL: moldau acl allow{principal} …"


def _encoding_error(error: ValueError) -> CommandError | None:
    """A number or name that cannot be encoded in a message is a user error; any other ValueError is a bug."""
    from moldau.wire.primitives import Unencodable

    if not isinstance(error, Unencodable):
        return None
    return usage_error(f"a name or number does not fit into the protocol: {error}")


def _describe(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        where = re.search(r"\('?([^',]+)'?, (\d+)", str(error))
        address = str(Address(where[1], int(where[2]))) if where else "the address"
        return (
            f"{address} is in use; is a broker running already? choose another address with --listen HOST:PORT "
            "(`moldau up`: --port), or the setting listeners"
        )
    if error.errno == errno.EADDRNOTAVAIL and error.strerror:
        return f"{error.strerror}; an address that only clients use belongs into advertised.listeners"
    if isinstance(error, socket.gaierror) and error.strerror:
        return error.strerror
    if error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror.lower()}"
    return str(error) or type(error).__name__
