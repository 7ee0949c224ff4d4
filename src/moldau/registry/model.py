"""Schemas, references and qualified subject names.

A subject belongs to a context. The name of a subject outside the default context is `:.context:name`; the context alone
is `:.context:`. Ids are unique within a context.
"""

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from moldau.registry.errors import INVALID_SUBJECT, RegistryError
from moldau.schemas.types import AVRO

DEFAULT_CONTEXT: Final = "."
ALL_CONTEXTS: Final = ":*:"
NAME_CHARS_MAX: Final = 512


class Compatibility(StrEnum):
    """A compatibility level. Transitive levels compare with all earlier versions, the others with the latest."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def is_transitive(self) -> bool:
        return self.endswith("_TRANSITIVE")

    @property
    def needs_backward(self) -> bool:
        """New readers must read old data."""
        return self.startswith(("BACKWARD", "FULL"))

    @property
    def needs_forward(self) -> bool:
        """Old readers must read new data."""
        return self.startswith(("FORWARD", "FULL"))


class Mode(StrEnum):
    """The mode of a registry, a context or a subject: the requests that it accepts."""

    READWRITE = "READWRITE"
    READONLY = "READONLY"
    READONLY_OVERRIDE = "READONLY_OVERRIDE"
    IMPORT = "IMPORT"
    FORWARD = "FORWARD"

    @property
    def is_read_only(self) -> bool:
        return self in (Mode.READONLY, Mode.READONLY_OVERRIDE, Mode.FORWARD)


class Reference(NamedTuple):
    """A schema that another one uses: under which name, and where it is registered."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema as it is stored. Equal schemas of a context have one id."""

    kind: str
    text: str
    references: tuple[Reference, ...] = ()
    metadata: str | None = None  # of data contracts, as JSON: kept, not interpreted
    rules: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The fields of responses and records; Avro is the type that is left out."""
        shown: dict[str, Any] = {} if self.kind == AVRO else {"schemaType": self.kind}
        if self.references:
            shown["references"] = [each._asdict() for each in self.references]
        if self.metadata is not None:
            shown["metadata"] = json.loads(self.metadata)
        if self.rules is not None:
            shown["ruleSet"] = json.loads(self.rules)
        return shown


class Version(NamedTuple):
    """One version of a subject."""

    schema_id: int
    is_deleted: bool


def context_of(subject: str) -> str:
    """Return the context of a qualified subject, or of a context written as `:.context:`."""
    if subject.startswith(":."):
        return subject[1:].partition(":")[0]
    return DEFAULT_CONTEXT


def qualify(context: str, subject: str) -> str:
    """Return the qualified name of a subject that a request names within a context."""
    if subject.startswith(":."):
        context, subject = context_of(subject), subject[1:].partition(":")[2]
    return subject if context == DEFAULT_CONTEXT else f":{context}:{subject}"


def parse_context(text: str) -> str:
    """Parse a context in a path: `.context`, `:.context:` or `context`."""
    name = text.strip(":")
    name = name if name.startswith(".") else f".{name}"
    if len(name) > NAME_CHARS_MAX or ":" in name:
        raise RegistryError(INVALID_SUBJECT, f"The specified context '{text}' is not a valid context name.")
    return name


def check_subject(subject: str) -> None:
    """Reject names that cannot be registered."""
    name = subject.rpartition(":")[2] if subject.startswith(":.") else subject
    is_reserved = name in ("__GLOBAL", "__EMPTY")
    if not name or is_reserved or len(subject) > NAME_CHARS_MAX or any(not each.isprintable() for each in subject):
        raise RegistryError(INVALID_SUBJECT, f"The specified subject '{subject[:80]}' is not a valid.")
