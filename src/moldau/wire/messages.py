"""Every message of the protocol as a class, generated on first access. `messages.pyi` has the types."""

from typing import Any, TypeVar

from moldau.wire.catalogue import ENTRIES, schema_of
from moldau.wire.message_classes import Message, Request, make_class

__all__ = ["Message", "Request", "Response"]

Response = TypeVar("Response")  # of a `Request[Response]`


def __getattr__(name: str) -> Any:
    if name not in ENTRIES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = make_class(schema_of(name))
    # Keep the first class if another thread has generated it meanwhile.
    return globals().setdefault(name, made)


def __dir__() -> list[str]:
    return sorted([*globals(), *ENTRIES])
