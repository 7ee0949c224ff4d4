"""The interface of a type of schema, and the errors of schemas and values."""

from collections.abc import Mapping
from typing import Any, Final, Protocol

AVRO: Final = "AVRO"
JSON: Final = "JSON"
PROTOBUF: Final = "PROTOBUF"

Dependencies = Mapping[str, str]  # the texts of referenced schemas by the names of the references, dependencies first


class InvalidSchema(Exception):
    """A schema that its type does not accept; the message says why."""


class UndecodableValue(ValueError):
    """Bytes that are no value of their schema; the message says why."""


class UnencodableValue(ValueError):
    """A value that its schema does not accept; the message names the part."""


class ParsedSchema(Protocol):
    """A valid schema."""

    @property
    def canonical(self) -> str:
        """The text that is stored: the same for texts that differ only in layout."""

    @property
    def normalized(self) -> str:
        """The text that is stored if normalization is wanted: the same for more texts of one meaning."""

    def incompatibilities(self, earlier: "ParsedSchema") -> list[str]:
        """Say why data written with `earlier` cannot be read with this schema; empty if it can."""


class Codec(Protocol):
    """Converts values of one schema between bytes and JSON."""

    def decode(self, payload: bytes) -> Any:
        """Return a value as `json.dumps` takes it; UndecodableValue if the bytes are none."""

    def encode(self, value: Any) -> bytes:
        """Return the bytes of a value as `json.loads` returns it; UnencodableValue if the schema does not accept it."""
