"""Users of a new cluster, as Kafka's format tool takes them: `SCRAM-SHA-512=[name=admin,password=secret]`."""

from base64 import b64decode
from collections.abc import Callable, Iterable

from moldau.broker.drivers.bootstrap_file import Credentials
from moldau.machines.access.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    MECHANISMS,
    SALT_BYTES,
    ScramCredential,
    ScramUser,
    credential_of,
    derive_credential,
)
from moldau.model.errors import InvalidConfig
from moldau.model.settings import shorten

KEYS = ("name", "password", "salt", "iterations", "saltedpassword")


def parse_scram_users(arguments: Iterable[str], randbytes: Callable[[int], bytes]) -> Credentials:
    """Return the credentials of all arguments. Errors do not show passwords."""
    credentials: Credentials = {}
    for argument in arguments:
        user, credential = parse_scram_user(argument, randbytes)
        if user in credentials:
            raise InvalidConfig(f"--add-scram has user {shorten(user.name)} twice for the same mechanism.")
        credentials[user] = credential
    return credentials


def parse_scram_user(argument: str, randbytes: Callable[[int], bytes]) -> tuple[ScramUser, ScramCredential]:
    """Return one user and the credential, which is derived from `password` or given as `saltedpassword`."""
    name, equals, rest = argument.strip().partition("=")
    if not equals or name not in MECHANISMS:
        raise InvalidConfig(f"--add-scram must begin with {' or '.join(MECHANISMS)} and an equals sign.")
    if not (rest.startswith("[") and rest.endswith("]")):
        raise InvalidConfig(f"--add-scram {name} must have its options in brackets: {name}=[name=admin,password=…].")
    options = _options(rest[1:-1])
    mechanism, iterations = MECHANISMS[name], _iterations(options.get("iterations", str(ITERATIONS_MIN)))
    if not options.get("name"):
        raise InvalidConfig("--add-scram must have name=, the name of the user.")
    user = ScramUser(options["name"], mechanism)
    salt = _base64("salt", options["salt"]) if "salt" in options else randbytes(SALT_BYTES)
    if "password" in options:
        return user, derive_credential(mechanism, options["password"], salt, iterations)
    if "saltedpassword" not in options:
        raise InvalidConfig(f"--add-scram of user {shorten(user.name)} must have password= or saltedpassword=.")
    if "salt" not in options:
        raise InvalidConfig(f"--add-scram of user {shorten(user.name)} must have salt= beside saltedpassword=.")
    return user, credential_of(mechanism, _base64("saltedpassword", options["saltedpassword"]), salt, iterations)


def _options(text: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for number, part in enumerate(text.split(","), 1):
        key, equals, value = part.partition("=")
        if not equals or key.strip() not in KEYS:
            raise InvalidConfig(
                f"Option {number} of --add-scram is not one of {', '.join(KEYS)} with an equals sign and a value "
                "(a password cannot contain a comma)."
            )
        if len(value) >= 2 and value[0] == value[-1] == '"':
            value = value[1:-1]
        options[key.strip()] = value
    return options


def _iterations(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or not ITERATIONS_MIN <= int(text[:9]) <= ITERATIONS_MAX:
        raise InvalidConfig(
            f"iterations={shorten(text)} of --add-scram must be a number from {ITERATIONS_MIN} to {ITERATIONS_MAX}."
        )
    return int(text)


def _base64(name: str, text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise InvalidConfig(f"The {name} of --add-scram is not base64.") from None
