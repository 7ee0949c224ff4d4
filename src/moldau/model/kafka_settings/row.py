"""One row of the tables in this package: a Kafka setting without effect."""

from collections.abc import Callable
from typing import Any, Final

from moldau.model.settings import Kind, Scope, Setting

BOOLEAN: Final = Kind.BOOLEAN
STRING: Final = Kind.STRING
INT: Final = Kind.INT
SHORT: Final = Kind.SHORT
LONG: Final = Kind.LONG
DOUBLE: Final = Kind.DOUBLE
LIST: Final = Kind.LIST
CLASS: Final = Kind.CLASS
PASSWORD: Final = Kind.PASSWORD

STATIC: Final = Scope.STATIC
PER_BROKER: Final = Scope.PER_BROKER
CLUSTER: Final = Scope.CLUSTER


def row(
    name: str,
    kind: Kind,
    default: Any,
    doc: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    one_of: tuple[str, ...] = (),
    check: Callable[[Any], str | None] | None = None,
    scope: Scope = STATIC,
    is_internal: bool = False,
) -> Setting:
    """Declare a setting that is accepted, validated and listed, but has no effect."""
    return Setting(
        name=name,
        default=default,
        kind=kind,
        doc=doc,
        at_least=at_least,
        at_most=at_most,
        one_of=one_of,
        check=check,
        scope=scope,
        has_effect=False,
        is_internal=is_internal,
    )


def one_of_in_any_case(*values: str) -> Callable[[str], str | None]:
    """Return a check for settings whose values Kafka compares case-insensitively."""

    def check(value: str) -> str | None:
        return None if value.lower() in values else f"it must be one of {', '.join(values)}"

    return check


def non_empty(value: str | tuple[str, ...]) -> str | None:
    """Check that a string or list is not empty."""
    return None if value else "it must not be empty"
