"""Operations on subjects and versions: register, look up, delete, compare."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from moldau.registry import errors
from moldau.registry.errors import RegistryError
from moldau.registry.model import Compatibility, Mode, Reference, Schema, Version, check_subject, context_of
from moldau.registry.records import (
    SchemaVersion,
    StoredRecord,
    delete_subject_record,
    schema_record,
    schema_tombstone,
)
from moldau.registry.schema_log import SchemaLog
from moldau.registry.schema_parser import SchemaParser
from moldau.registry.state import RegistryState, reference_subject
from moldau.schemas.types import ParsedSchema

LATEST: Final = -1
DEPENDENCIES_MAX: Final = 1_000
VERSION_MAX: Final = (1 << 31) - 1
ID_MAX: Final = (1 << 31) - 1


class Found(NamedTuple):
    """A version of a subject with its schema."""

    subject: str
    version: int
    schema_id: int
    schema: Schema
    is_deleted: bool


class Registry:
    """The operations on top of the log."""

    def __init__(self, log: SchemaLog) -> None:
        self.log = log
        self.parser = SchemaParser()

    @property
    def state(self) -> RegistryState:
        return self.log.state

    # Lookups

    async def schema(self, context: str, schema_id: int) -> Schema:
        """Return a schema by id. Before it is called missing, what other registries have written is read."""
        if self.state.schema(context, schema_id) is None:
            await self.log.catch_up()
        found = self.state.schema(context, schema_id)
        if found is None:
            raise errors.schema_not_found(schema_id)
        return found

    async def versions(self, subject: str, *, with_deleted: bool = False) -> dict[int, Version]:
        found = self.state.versions(subject, with_deleted=with_deleted)
        if not found:
            await self.log.catch_up()
            found = self.state.versions(subject, with_deleted=with_deleted)
        if not found:
            raise errors.subject_not_found(subject)
        return found

    async def version(self, subject: str, number: int, *, with_deleted: bool = False) -> Found:
        """Return one version; -1 is the latest."""
        found = await self.versions(subject, with_deleted=with_deleted)
        if number != LATEST and number not in found:
            await self.log.catch_up()
            found = await self.versions(subject, with_deleted=with_deleted)
        number = max(found) if number == LATEST else number
        if number not in found:
            raise errors.version_not_found(number)
        return self._found(subject, number, found[number])

    def _found(self, subject: str, number: int, version: Version) -> Found:
        schema = self.state.schema_of(subject, number)
        assert schema is not None
        return Found(subject, number, version.schema_id, schema, version.is_deleted)

    async def look_up(self, subject: str, schema: Schema, *, normalize: bool, with_deleted: bool) -> Found:
        """Find the version of a subject that has this schema."""
        await self.versions(subject, with_deleted=with_deleted)
        _, schema = await self._canonical(subject, schema, normalize=normalize)
        found = await self._find(subject, schema, with_deleted=with_deleted)
        if found is None:
            await self.log.catch_up()
            found = await self._find(subject, schema, with_deleted=with_deleted)
        if found is None:
            raise errors.schema_not_found()
        return found

    async def _find(self, subject: str, schema: Schema, *, with_deleted: bool = False) -> Found | None:
        versions = self.state.versions(subject, with_deleted=with_deleted)
        schema_id = self.state.id_of(context_of(subject), schema)
        for number, version in reversed(versions.items()):
            if version.schema_id == schema_id:
                return self._found(subject, number, version)
        for number, version in reversed(versions.items()):  # texts that another registry wrote in another layout
            found = self._found(subject, number, version)
            if await self._is_same(subject, found.schema, schema):
                return found
        return None

    async def _is_same(self, subject: str, stored: Schema, schema: Schema) -> bool:
        if replace(stored, text=schema.text) != schema:
            return False
        try:
            _, canonical = await self._canonical(subject, stored, normalize=False)
        except RegistryError:
            return False
        return canonical == schema

    # Parsing

    async def parse(self, subject: str, schema: Schema) -> ParsedSchema:
        return await self.parser.parse(schema.kind, schema.text, self.dependencies(subject, schema))

    async def _canonical(self, subject: str, schema: Schema, *, normalize: bool) -> tuple[ParsedSchema, Schema]:
        """Return the parsed schema, and the schema in the form that is stored."""
        references = tuple(self._pinned(subject, each) for each in schema.references)
        schema = replace(schema, references=references)
        parsed = await self.parse(subject, schema)
        wants_normalized = normalize or self.state.normalizes(subject)
        text = parsed.normalized if wants_normalized else parsed.canonical
        if wants_normalized:
            references = tuple(sorted(references))
        return parsed, replace(schema, text=text, references=references)

    def _pinned(self, subject: str, reference: Reference) -> Reference:
        """Replace the latest version by its number."""
        if reference.version != LATEST:
            return reference
        versions = self.state.versions(reference_subject(subject, reference))
        return reference._replace(version=max(versions)) if versions else reference

    def dependencies(self, subject: str, schema: Schema) -> dict[str, str]:
        """Collect the texts of all referenced schemas, those that others need first."""
        found: dict[str, str] = {}
        open_names: set[str] = set()

        def collect(owner: str, references: Sequence[Reference]) -> None:
            for reference in references:
                if reference.name in found or reference.name in open_names:
                    continue
                target = reference_subject(owner, reference)
                schema = self.state.schema_of(target, reference.version)
                if schema is None:
                    text = f"no schema for the reference {reference.name}: {target} version {reference.version}"
                    raise errors.invalid_schema(text)
                if len(found) + len(open_names) >= DEPENDENCIES_MAX:
                    raise errors.invalid_schema(f"more than {DEPENDENCIES_MAX} references")
                open_names.add(reference.name)
                collect(target, schema.references)
                found[reference.name] = schema.text

        try:
            collect(subject, schema.references)
        except RecursionError as error:
            raise errors.invalid_schema("the references are nested too deeply") from error
        return found

    # Registration

    async def register(
        self, subject: str, schema: Schema, *, normalize: bool = False, schema_id: int = -1, version: int = -1
    ) -> Found:
        """Return the version that has this schema; register it if there is none."""
        check_subject(subject)
        _, stored = await self._canonical(subject, schema, normalize=normalize)
        if schema_id < 0 and (found := await self._find(subject, stored)) is not None:
            return found

        async def decide() -> tuple[list[StoredRecord], Found]:
            self._check_mode(subject, is_import=schema_id >= 0)
            parsed, stored = await self._canonical(subject, schema, normalize=normalize)
            if schema_id < 0 and (found := await self._find(subject, stored)) is not None:
                return [], found
            if schema_id < 0:
                await self._check_compatible(subject, parsed)
            new = self._new_version(subject, stored, schema_id, version)
            record = schema_record(SchemaVersion(subject, new.version, new.schema_id, stored, False))
            return [record], new

        return await self.log.write(decide, is_repeatable=True)

    def _new_version(self, subject: str, stored: Schema, schema_id: int, version: int) -> Found:
        """Choose the version and the id; an import brings its own."""
        context = context_of(subject)
        known = self.state.versions(subject, with_deleted=True)
        if schema_id >= 0:
            existing = self.state.schema(context, schema_id)
            if schema_id > ID_MAX or (existing is not None and existing != stored):
                raise RegistryError(errors.ID_MISMATCH, f"Overwrite new schema with id {schema_id} is not permitted.")
        else:
            schema_id = self.state.id_of(context, stored) or self.state.next_id(context)
        if version < 1:
            version = max(known, default=0) + 1
        elif version > VERSION_MAX or (version in known and known[version].schema_id != schema_id):
            raise RegistryError(errors.INVALID_VERSION, f"Version {version} is taken or not valid.")
        return Found(subject, version, schema_id, stored, False)

    async def _check_compatible(self, subject: str, parsed: ParsedSchema) -> None:
        level = self.state.compatibility(subject)
        messages = await self._compare(subject, parsed, level, list(self.state.versions(subject)))
        if messages:
            text = "Schema being registered is incompatible with an earlier schema for subject "
            raise RegistryError(errors.INCOMPATIBLE, f'{text}"{subject}", details: {messages}')

    async def _compare(
        self, subject: str, parsed: ParsedSchema, level: Compatibility, numbers: Sequence[int]
    ) -> list[str]:
        """Compare with versions in ascending order: with the last one, or with all if the level is transitive."""
        if level is Compatibility.NONE:
            return []
        for number in reversed(numbers if level.is_transitive else numbers[-1:]):
            schema = self.state.schema_of(subject, number)
            assert schema is not None
            earlier = await self.parse(subject, schema)
            found: list[str] = []
            if level.needs_backward:
                found += await self.parser.incompatibilities(parsed, earlier)
            if level.needs_forward:
                found += await self.parser.incompatibilities(earlier, parsed)
            if found:
                return [*found, f"{{oldSchemaVersion: {number}}}", f"{{compatibility: '{level}'}}"]
        return []

    async def check(self, subject: str, schema: Schema, number: int | None, *, normalize: bool) -> list[str]:
        """Say why a schema is not compatible with one version, or (None) with those that its level compares."""
        if number is None:
            numbers = list(self.state.versions(subject))
        else:
            numbers = [(await self.version(subject, number)).version]
        parsed, _ = await self._canonical(subject, schema, normalize=normalize)
        return await self._compare(subject, parsed, self.state.compatibility(subject), numbers)

    def _check_mode(self, subject: str, *, is_import: bool = False) -> None:
        mode = self.state.mode(subject)
        if mode.is_read_only:
            raise RegistryError(errors.OPERATION_NOT_PERMITTED, f"Subject {subject} is in read-only mode")
        if is_import != (mode is Mode.IMPORT):
            text = "is not in import mode" if is_import else "is in import mode: give the id of the schema"
            raise RegistryError(errors.OPERATION_NOT_PERMITTED, f"Subject {subject} {text}")

    # Deletion

    async def delete_subject(self, subject: str, *, is_permanent: bool) -> list[int]:
        """Delete all versions: first softly, then for good."""

        async def decide() -> tuple[list[StoredRecord], list[int]]:
            known = self.state.versions(subject, with_deleted=True)
            live = [number for number, version in known.items() if not version.is_deleted]
            if not known:
                raise errors.subject_not_found(subject)
            self._check_writable(subject)
            if is_permanent and live:
                text = f"Subject '{subject}' was not deleted first before being permanently deleted"
                raise RegistryError(errors.SUBJECT_NOT_SOFT_DELETED, text)
            if is_permanent:
                return [schema_tombstone(subject, number) for number in known], list(known)
            if not live:
                text = f"Subject '{subject}' was soft deleted. Set permanent=true to delete permanently"
                raise RegistryError(errors.SUBJECT_SOFT_DELETED, text)
            self._check_unreferenced(subject, live)
            return [delete_subject_record(subject, max(known))], live

        return await self.log.write(decide, is_repeatable=False)

    async def delete_version(self, subject: str, number: int, *, is_permanent: bool) -> int:
        async def decide() -> tuple[list[StoredRecord], int]:
            found = await self.version(subject, number, with_deleted=number != LATEST)
            self._check_writable(subject)
            if is_permanent:
                if not found.is_deleted:
                    text = f"Subject '{subject}' Version {found.version} was not deleted first before being"
                    raise RegistryError(errors.VERSION_NOT_SOFT_DELETED, f"{text} permanently deleted")
                return [schema_tombstone(subject, found.version)], found.version
            if found.is_deleted:
                text = f"Subject '{subject}' Version {found.version} was soft deleted."
                raise RegistryError(errors.VERSION_SOFT_DELETED, f"{text} Set permanent=true to delete permanently")
            self._check_unreferenced(subject, [found.version])
            stored = SchemaVersion(subject, found.version, found.schema_id, found.schema, True)
            return [schema_record(stored)], found.version

        return await self.log.write(decide, is_repeatable=False)

    def _check_writable(self, subject: str) -> None:
        if self.state.mode(subject).is_read_only:
            raise RegistryError(errors.OPERATION_NOT_PERMITTED, f"Subject {subject} is in read-only mode")

    def _check_unreferenced(self, subject: str, numbers: Sequence[int]) -> None:
        for number in numbers:
            if self.state.referrers(subject, number):
                text = f"One or more references exist to the schema {subject} version {number}."
                raise RegistryError(errors.REFERENCE_EXISTS, text)

    # Settings

    async def write_record(self, record: StoredRecord, result: Any) -> Any:
        """Write a setting."""

        async def decide() -> tuple[list[StoredRecord], Any]:
            return [record], result

        return await self.log.write(decide, is_repeatable=True)
