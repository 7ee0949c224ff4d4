"""What every type of schema offers."""

from collections.abc import Mapping
from typing import Protocol

Dependencies = Mapping[str, str]  # the texts of referenced schemas by the names of the references, dependencies first


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
