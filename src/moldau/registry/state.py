"""The content of the registry: what the records of `_schemas` amount to. Only `apply` changes it."""

from collections.abc import Iterator
from typing import Any, Final

from moldau.registry import records
from moldau.registry.model import (
    DEFAULT_CONTEXT,
    Compatibility,
    Mode,
    Reference,
    Schema,
    Version,
    context_of,
)

FIRST_ID: Final = 1


class RegistryState:
    """Subjects, their versions, the schemas by id, and settings."""

    def __init__(self) -> None:
        self.subjects: dict[str, dict[int, Version]] = {}
        self.configs: dict[str | None, dict[str, Any]] = {}
        self.modes: dict[str | None, Mode] = {}
        self._schemas: dict[tuple[str, int], Schema] = {}  # by context and id
        self._ids: dict[tuple[str, Schema], int] = {}
        self._uses: dict[tuple[str, int], set[tuple[str, int]]] = {}  # versions that have the id
        self._next_ids: dict[str, int] = {}
        self._referrers: dict[tuple[str, int], set[tuple[str, int]]] = {}  # versions that refer to the version

    # Lookups

    def schema(self, context: str, schema_id: int) -> Schema | None:
        return self._schemas.get((context, schema_id))

    def id_of(self, context: str, schema: Schema) -> int | None:
        return self._ids.get((context, schema))

    def next_id(self, context: str) -> int:
        return self._next_ids.get(context, FIRST_ID)

    def schema_of(self, subject: str, version: int) -> Schema | None:
        """Return the schema of a version, deleted or not."""
        found = self.subjects.get(subject, {}).get(version)
        return None if found is None else self._schemas.get((context_of(subject), found.schema_id))

    def versions(self, subject: str, *, with_deleted: bool = False) -> dict[int, Version]:
        """Return the versions of a subject in ascending order; empty if there are none."""
        found = self.subjects.get(subject, {})
        return {number: found[number] for number in sorted(found) if with_deleted or not found[number].is_deleted}

    def uses(self, context: str, schema_id: int, *, with_deleted: bool = False) -> list[tuple[str, int]]:
        """Return the subjects and versions that have this id."""
        found = sorted(self._uses.get((context, schema_id), ()))
        return [each for each in found if with_deleted or not self.subjects[each[0]][each[1]].is_deleted]

    def referrers(self, subject: str, version: int) -> list[int]:
        """Return the ids of the schemas, not deleted, that refer to a version."""
        found = self._referrers.get((subject, version), ())
        live = {self.subjects[name][number] for name, number in found}
        return sorted({each.schema_id for each in live if not each.is_deleted})

    def contexts(self) -> list[str]:
        return sorted({DEFAULT_CONTEXT, *(context for context, _ in self._schemas)})

    def compatibility(self, subject: str) -> Compatibility:
        """Return the level in effect: of the subject, its context, or all."""
        for place in _places(subject):
            level = self.configs.get(place, {}).get("compatibilityLevel")
            if level is not None:
                return Compatibility(level)
        return Compatibility.BACKWARD

    def normalizes(self, subject: str) -> bool:
        for place in _places(subject):
            if (wanted := self.configs.get(place, {}).get("normalize")) is not None:
                return bool(wanted)
        return False

    def mode(self, subject: str) -> Mode:
        if self.modes.get(None) is Mode.READONLY_OVERRIDE:
            return Mode.READONLY_OVERRIDE
        return next((self.modes[place] for place in _places(subject) if place in self.modes), Mode.READWRITE)

    # Changes

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        """Apply one record. Raises InvalidRecord, and then has changed nothing."""
        fields = records.read_key(key)
        kind, subject = fields["keytype"], fields.get("subject")
        if kind == records.SCHEMA:
            self._apply_schema(fields, value)
        elif kind == records.CONFIG:
            self._apply_config(subject, value)
        elif kind == records.MODE:
            if value is None:
                self.modes.pop(subject, None)
            else:
                self.modes[subject] = records.read_mode(value)
        elif kind in (records.DELETE_SUBJECT, records.CLEAR_SUBJECT) and value is not None:
            self._delete_subject(str(subject), records.read_object(value), kind)

    def _apply_schema(self, key: dict[str, Any], value: bytes | None) -> None:
        if value is None:
            self._forget(str(key.get("subject")), int(key.get("version") or 0))
            return
        stored = records.read_schema(value)
        place = (stored.subject, stored.version)
        context = context_of(stored.subject)
        identity = (context, stored.schema_id)
        earlier = self.subjects.get(stored.subject, {}).get(stored.version)
        if earlier is not None and earlier.schema_id != stored.schema_id:
            self._forget(*place)
        self._schemas[identity] = stored.schema
        self._ids.setdefault((context, stored.schema), stored.schema_id)
        self._uses.setdefault(identity, set()).add(place)
        self._next_ids[context] = max(self.next_id(context), stored.schema_id + 1)
        self.subjects.setdefault(stored.subject, {})[stored.version] = Version(stored.schema_id, stored.is_deleted)
        for reference in stored.schema.references:
            self._referrers.setdefault(_target(stored.subject, reference), set()).add(place)

    def _forget(self, subject: str, version: int) -> None:
        """Remove a version, and its schema if no other version has it. Its id is not given again."""
        gone = self.subjects.get(subject, {}).pop(version, None)
        if gone is None:
            return
        if not self.subjects[subject]:
            del self.subjects[subject]
        context, place = context_of(subject), (subject, version)
        identity = (context, gone.schema_id)
        schema = self._schemas[identity]
        for reference in schema.references:
            self._referrers.get(_target(subject, reference), set()).discard(place)
        self._uses[identity].discard(place)
        if not self._uses[identity]:
            del self._uses[identity], self._schemas[identity]
            if self._ids.get((context, schema)) == gone.schema_id:
                del self._ids[context, schema]

    def _delete_subject(self, subject: str, value: dict[str, Any], kind: str) -> None:
        last = int(value.get("version") or 0)
        for number, version in list(self.subjects.get(subject, {}).items()):
            if kind == records.CLEAR_SUBJECT and version.is_deleted:
                self._forget(subject, number)
            elif kind == records.DELETE_SUBJECT and number <= last:
                self.subjects[subject][number] = version._replace(is_deleted=True)

    def _apply_config(self, subject: str | None, value: bytes | None) -> None:
        if value is None:
            self.configs.pop(subject, None)
            return
        records.read_compatibility(value)
        self.configs[subject] = records.read_object(value)


def _places(subject: str) -> Iterator[str | None]:
    """Where a setting of a subject may be: the subject, its context, and all subjects."""
    yield subject
    context = context_of(subject)
    if context != DEFAULT_CONTEXT:
        yield f":{context}:"
    yield None


def _target(subject: str, reference: Reference) -> tuple[str, int]:
    """A reference names a subject of the same context, unless it is qualified."""
    return reference_subject(subject, reference), reference.version


def reference_subject(subject: str, reference: Reference) -> str:
    """Return the qualified subject that a reference in a schema of `subject` names."""
    if reference.subject.startswith(":."):
        return reference.subject
    context = context_of(subject)
    return reference.subject if context == DEFAULT_CONTEXT else f":{context}:{reference.subject}"
