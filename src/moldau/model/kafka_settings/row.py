"""One row of the tables in this folder: a setting that Kafka has and nothing here reads."""

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
    """A setting that is accepted, checked and listed, and has no effect."""
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


def one_of_in_any_case(*words: str) -> Callable[[str], str | None]:
    """A check for the settings whose words Kafka compares without regard to case."""

    def check(value: str) -> str | None:
        return None if value.lower() in words else f"it must be one of {', '.join(words)}"

    return check


def non_empty(value: str | tuple[str, ...]) -> str | None:
    """A check for texts and lists that must say something."""
    return None if value else "it must not be empty"
