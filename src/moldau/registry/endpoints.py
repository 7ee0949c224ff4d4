"""The endpoints of Confluent's REST API: parameters in, results out."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from moldau import __version__
from moldau.client.async_client import AsyncClient
from moldau.registry import errors
from moldau.registry.access import Access
from moldau.registry.errors import RegistryError
from moldau.registry.model import (
    ALL_CONTEXTS,
    DEFAULT_CONTEXT,
    Compatibility,
    Mode,
    Reference,
    Schema,
    context_of,
    qualify,
)
from moldau.registry.records import compact_json, config_record, mode_record
from moldau.registry.registry import LATEST, VERSION_MAX, Found, Registry
from moldau.registry.schema_parser import TYPES
from moldau.schemas.protobuf import ProtobufSchema
from moldau.schemas.types import AVRO

SCHEMAS_LISTED_MAX: Final = 1_000
REFERENCES_MAX: Final = 200
COMPATIBILITY_LEVEL: Final = "compatibilityLevel"


class Raw(NamedTuple):
    """A body that is sent as it is."""

    text: str


class Call(NamedTuple):
    """A request to an endpoint."""

    registry: Registry
    client: AsyncClient
    context: str
    names: Mapping[str, str]
    query: Mapping[str, str]
    body: dict[str, Any]
    access: Access

    @property
    def subject(self) -> str:
        """The qualified subject in the path."""
        return qualify(self.context, self.names["subject"])

    @property
    def optional_subject(self) -> str | None:
        """The subject whose setting is meant; a context (`:.name:`) or None for all."""
        if "subject" not in self.names:
            return None if self.context == DEFAULT_CONTEXT else f":{self.context}:"
        return self.subject

    @property
    def version(self) -> int:
        text = self.names["version"]
        if text in ("latest", "-1"):
            return LATEST
        if not text.isdecimal() or not 1 <= int(text[:12]) <= VERSION_MAX:
            message = f"The specified version '{text[:40]}' is not a valid version id."
            raise RegistryError(
                errors.INVALID_VERSION,
                f'{message} Allowed values are between [1, 2^31-1] and the string "latest"',
            )
        return int(text)

    @property
    def schema_id(self) -> int:
        text = self.names["id"]
        if not text.isdecimal() or len(text) > 10:
            raise RegistryError(404, f"HTTP 404 Not Found: {text[:40]} is not an id")
        return int(text)

    @property
    def id_context(self) -> str:
        """The context of an id: of the parameter `subject`, or of the path."""
        subject = self.query.get("subject", "")
        return context_of(subject) if subject.startswith(":.") else self.context

    def flag(self, name: str) -> bool:
        return self.query.get(name, "").lower() == "true"

    def number(self, name: str, default: int) -> int:
        text = self.query.get(name, "")
        return int(text) if text.lstrip("-").isdecimal() and len(text) < 11 else default

    def schema(self) -> Schema:
        """Parse the schema in the body."""
        text, kind = self.body.get("schema"), self.body.get("schemaType") or AVRO
        if not isinstance(text, str) or not text.strip():
            raise RegistryError(errors.INVALID_SCHEMA, "Empty schema: the field schema is missing")
        if not isinstance(kind, str):
            raise RegistryError(errors.INVALID_SCHEMA, "schemaType is not a string")
        references = self.body.get("references") or []
        if not isinstance(references, list) or len(references) > REFERENCES_MAX:
            raise RegistryError(errors.INVALID_SCHEMA, f"references is not a list of at most {REFERENCES_MAX}")
        metadata, rules = (compact_json(self.body.get(name)) for name in ("metadata", "ruleSet"))
        return Schema(kind.upper(), text, tuple(map(_reference, references)), metadata, rules)


def _reference(fields: Any) -> Reference:
    try:
        name, subject, version = fields["name"], fields["subject"], fields["version"]
    except (KeyError, TypeError) as error:
        raise RegistryError(errors.INVALID_SCHEMA, "a reference has name, subject and version") from error
    if not (isinstance(name, str) and isinstance(subject, str) and type(version) is int):
        raise RegistryError(errors.INVALID_SCHEMA, "a reference has name, subject and version")
    return Reference(name, subject, version)


# Schemas by id


async def show_root(_: Call) -> Any:
    return {}


async def list_types(_: Call) -> Any:
    return list(TYPES)


async def list_contexts(call: Call) -> Any:
    return call.registry.state.contexts()


async def show_schema(call: Call) -> Any:
    schema = await _schema_of_id(call)
    shown = {**schema.as_json(), "schema": await _formatted(call, schema)}
    if call.flag("fetchMaxId"):
        shown["maxId"] = call.registry.state.next_id(call.id_context) - 1
    return shown


async def show_schema_text(call: Call) -> Any:
    return Raw(await _formatted(call, await _schema_of_id(call)))


async def _schema_of_id(call: Call) -> Schema:
    """Return a schema that a visible subject has, or had until it was deleted."""
    schema = await call.registry.schema(call.id_context, call.schema_id)
    uses = call.registry.state.uses(call.id_context, call.schema_id, with_deleted=True)
    if not await call.access.visible({subject for subject, _ in uses}):
        text = f"Schema {call.schema_id} belongs to subjects whose topics the user may not describe"
        raise RegistryError(errors.FORBIDDEN, text)
    return schema


async def list_subjects_of_id(call: Call) -> Any:
    return list(dict.fromkeys(subject for subject, _ in await _uses(call)))


async def list_versions_of_id(call: Call) -> Any:
    return [{"subject": subject, "version": version} for subject, version in await _uses(call)]


async def _uses(call: Call) -> list[tuple[str, int]]:
    await _schema_of_id(call)
    uses = call.registry.state.uses(call.id_context, call.schema_id, with_deleted=call.flag("deleted"))
    visible = await call.access.visible({subject for subject, _ in uses})
    return [each for each in uses if each[0] in visible]


async def _formatted(call: Call, schema: Schema, subject: str = "") -> str:
    """Return the text, or with `format=serialized` the descriptor of a Protobuf file in base64."""
    if call.query.get("format") == "serialized":
        parsed = await call.registry.parse(subject or qualify(call.id_context, "x"), schema)
        if isinstance(parsed, ProtobufSchema):
            return parsed.serialized
    return schema.text


async def list_schemas(call: Call) -> Any:
    registry, prefix = call.registry, call.query.get("subjectPrefix", ALL_CONTEXTS)
    found = []
    for subject in await _visible_subjects(call, prefix):
        versions = registry.state.versions(subject, with_deleted=call.flag("deleted"))
        numbers = [max(versions)] if call.flag("latestOnly") and versions else list(versions)
        found += [(subject, number) for number in numbers]
    offset = max(call.number("offset", 0), 0)
    limit = call.number("limit", -1)
    count = SCHEMAS_LISTED_MAX if limit < 1 else min(limit, SCHEMAS_LISTED_MAX)
    shown = [await registry.version(*each, with_deleted=True) for each in found[offset : offset + count]]
    return [_version_fields(each, each.schema.text) for each in shown]


# Subjects and versions


async def list_subjects(call: Call) -> Any:
    return _page(call, await _visible_subjects(call, call.query.get("subjectPrefix", ALL_CONTEXTS)))


async def _visible_subjects(call: Call, prefix: str) -> list[str]:
    found = _subjects(call, prefix)
    visible = await call.access.visible(found)
    return [each for each in found if each in visible]


def _page(call: Call, found: list[Any]) -> list[Any]:
    offset, limit = max(call.number("offset", 0), 0), call.number("limit", -1)
    return found[offset:] if limit < 1 else found[offset : offset + limit]


def _subjects(call: Call, prefix: str) -> list[str]:
    """Subjects that start with a prefix; `:*:` in front of it means: in every context."""
    state = call.registry.state
    is_everywhere = prefix.startswith(ALL_CONTEXTS) and call.context == DEFAULT_CONTEXT
    rest = prefix.removeprefix(ALL_CONTEXTS)
    found = []
    for subject in sorted(state.subjects):
        context = context_of(subject)
        name = subject if context == DEFAULT_CONTEXT else subject.removeprefix(f":{context}:")
        wanted = name.startswith(rest) if is_everywhere else subject.startswith(qualify(call.context, rest))
        if not is_everywhere and context != context_of(qualify(call.context, rest)):
            wanted = False
        live = state.versions(subject)
        is_shown = (not live) if call.flag("deletedOnly") else bool(live) or call.flag("deleted")
        if wanted and is_shown:
            found.append(subject)
    return found


async def list_versions(call: Call) -> Any:
    with_deleted = call.flag("deleted") or call.flag("deletedOnly")
    versions = await call.registry.versions(call.subject, with_deleted=with_deleted)
    wanted = [number for number, each in versions.items() if each.is_deleted or not call.flag("deletedOnly")]
    return _page(call, wanted)


async def show_version(call: Call) -> Any:
    found = await call.registry.version(call.subject, call.version, with_deleted=call.flag("deleted"))
    return _version_fields(found, await _formatted(call, found.schema, found.subject))


async def show_version_text(call: Call) -> Any:
    found = await call.registry.version(call.subject, call.version, with_deleted=call.flag("deleted"))
    return Raw(await _formatted(call, found.schema, found.subject))


async def list_referrers(call: Call) -> Any:
    found = await call.registry.version(call.subject, call.version)
    return call.registry.state.referrers(found.subject, found.version)


async def register(call: Call) -> Any:
    schema_id, version = (_optional_number(call.body, name) for name in ("id", "version"))
    found = await call.registry.register(
        call.subject, call.schema(), normalize=call.flag("normalize"), schema_id=schema_id, version=version
    )
    return {"id": found.schema_id}


def _optional_number(body: dict[str, Any], name: str) -> int:
    value = body.get(name)
    return value if type(value) is int else -1


async def look_up(call: Call) -> Any:
    found = await call.registry.look_up(
        call.subject, call.schema(), normalize=call.flag("normalize"), with_deleted=call.flag("deleted")
    )
    return _version_fields(found, await _formatted(call, found.schema, found.subject))


async def delete_subject(call: Call) -> Any:
    return await call.registry.delete_subject(call.subject, is_permanent=call.flag("permanent"))


async def delete_version(call: Call) -> Any:
    return await call.registry.delete_version(call.subject, call.version, is_permanent=call.flag("permanent"))


def _version_fields(found: Found, text: str) -> dict[str, Any]:
    shown = {"subject": found.subject, "version": found.version, "id": found.schema_id, **found.schema.as_json()}
    return {**shown, "schema": text, **({"deleted": True} if found.is_deleted else {})}


# Compatibility


async def check_all(call: Call) -> Any:
    return await _check(call, None)


async def check_version(call: Call) -> Any:
    return await _check(call, call.version)


async def _check(call: Call, version: int | None) -> Any:
    schema = call.schema()
    messages = await call.registry.check(call.subject, schema, version, normalize=call.flag("normalize"))
    return {"is_compatible": not messages, **({"messages": messages} if call.flag("verbose") else {})}


async def show_config(call: Call) -> Any:
    subject, state = call.optional_subject, call.registry.state
    config = state.configs.get(subject, {})
    if COMPATIBILITY_LEVEL in config:
        return config
    if subject is not None and not call.flag("defaultToGlobal"):
        text = f"Subject '{subject}' does not have subject-level compatibility configured"
        raise RegistryError(errors.NO_SUBJECT_COMPATIBILITY, text)
    return {**config, COMPATIBILITY_LEVEL: state.compatibility(subject or "").value}


async def set_config(call: Call) -> Any:
    subject, state = call.optional_subject, call.registry.state
    config: dict[str, Any] = dict(state.configs.get(subject, {}))
    level = call.body.get("compatibility")
    if level is not None:
        try:
            config[COMPATIBILITY_LEVEL] = Compatibility(str(level).upper()).value
        except ValueError as error:
            levels = ", ".join(Compatibility)
            text = f"Invalid compatibility level. Valid values are {levels}"
            raise RegistryError(errors.INVALID_COMPATIBILITY, text) from error
    if isinstance(call.body.get("normalize"), bool):
        config["normalize"] = call.body["normalize"]
    if not config:
        raise RegistryError(errors.INVALID_COMPATIBILITY, "Invalid compatibility level: none is given")
    _check_settable(call, subject)
    return await call.registry.write_record(config_record(subject, config), call.body)


async def delete_config(call: Call) -> Any:
    subject, state = call.optional_subject, call.registry.state
    config = state.configs.get(subject)
    if config is None and subject is not None:
        raise errors.subject_not_found(subject)
    _check_settable(call, subject)
    shown = config or {COMPATIBILITY_LEVEL: state.compatibility("").value}
    return await call.registry.write_record(config_record(subject, None), shown)


def _check_settable(call: Call, subject: str | None) -> None:
    if call.registry.state.mode(subject or "").is_read_only:
        raise RegistryError(errors.OPERATION_NOT_PERMITTED, f"Subject {subject or 'of all'} is in read-only mode")


# Modes


async def show_mode(call: Call) -> Any:
    subject, state = call.optional_subject, call.registry.state
    if subject is not None and subject not in state.modes and not call.flag("defaultToGlobal"):
        text = f"Subject '{subject}' does not have subject-level mode configured"
        raise RegistryError(errors.NO_SUBJECT_MODE, text)
    return {"mode": state.modes.get(subject, state.mode(subject or "")).value}


async def set_mode(call: Call) -> Any:
    subject, state = call.optional_subject, call.registry.state
    try:
        mode = Mode(str(call.body.get("mode", "")).upper())
    except ValueError as error:
        text = f"Invalid mode. Valid values are {', '.join(Mode)}"
        raise RegistryError(errors.INVALID_MODE, text) from error
    has_schemas = bool(state.versions(subject)) if subject else any(map(state.versions, state.subjects))
    if mode is Mode.IMPORT and has_schemas and not call.flag("force"):
        text = "Cannot import since found existing subjects; add force=true"
        raise RegistryError(errors.OPERATION_NOT_PERMITTED, text)
    return await call.registry.write_record(mode_record(subject, mode), {"mode": mode.value})


async def delete_mode(call: Call) -> Any:
    subject, state = call.optional_subject, call.registry.state
    if subject is not None and subject not in state.modes:
        raise errors.subject_not_found(subject)
    return await call.registry.write_record(mode_record(subject, None), {"mode": state.mode(subject or "").value})


# The registry itself


async def show_cluster_id(call: Call) -> Any:
    cluster = await call.client.describe_cluster()
    path = {"kafka-cluster": cluster.cluster_id, "schema-registry-cluster": "schema-registry"}
    return {"scope": {"path": [], "clusters": path}, "id": ""}


async def show_release(_: Call) -> Any:
    return {"version": __version__, "commitId": ""}
