"""Keys and values in the format of a schema registry, for `moldau consume` and `moldau produce`."""

import json
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from moldau.cli.client_options import client_settings
from moldau.cli.errors import CommandError, usage_error
from moldau.cli.files import read_text
from moldau.cli.record_format import Formatter, compile_template, to_json
from moldau.records.record import Record

if TYPE_CHECKING:
    from moldau.schemas.codecs import RegisteredSchema
    from moldau.schemas.registry_client import RegistryClient

REGISTRY_VARIABLE: Final = "MOLDAU_REGISTRY_URL"
REGISTRY_DEFAULT: Final = "http://127.0.0.1:8081"
REGISTRY_SETTING: Final = "schema.registry.url"
LATEST: Final = "latest"
PARTS: Final = ("key", "value")


class Form(StrEnum):
    """How a key or value is encoded."""

    BYTES = "bytes"
    AVRO = "avro"
    PROTOBUF = "protobuf"
    JSON_SCHEMA = "jsonschema"

    @property
    def kind(self) -> str:
        """The registry's name of the type."""
        return {Form.JSON_SCHEMA: "JSON"}.get(self, self.upper())


KeyForm = Annotated[
    Form, typer.Option("--key-format", help="bytes, or the type of the key's schema in the registry; shown as JSON.")
]
ValueForm = Annotated[
    Form,
    typer.Option("--value-format", help="bytes, or the type of the value's schema in the registry; shown as JSON."),
]
RegistryUrl = Annotated[
    str | None,
    typer.Option(
        "--registry",
        envvar=REGISTRY_VARIABLE,
        metavar="URL",
        show_default=REGISTRY_DEFAULT,
        help="The schema registry; -X basic.auth.user.info=USER:PASSWORD for its login.",
    ),
]
SchemaChoice = Annotated[
    str, typer.Option("--value-schema", metavar="WHICH", help="latest of the subject, an id, or a file to register.")
]
KeySchemaChoice = Annotated[str, typer.Option("--key-schema", metavar="WHICH", help="Likewise, of the key.")]
MessageName = Annotated[
    str | None,
    typer.Option("--value-message", metavar="NAME", help="Protobuf: another message than the first of the schema."),
]


def connect_registry(url: str | None) -> "RegistryClient":
    """Return a client of the registry, with the settings of the command."""
    try:
        from moldau.schemas.registry_client import RegistryClient
    except ModuleNotFoundError as missing:
        raise _not_installed(missing) from missing
    settings = client_settings()
    try:
        return RegistryClient(url or settings.get(REGISTRY_SETTING) or REGISTRY_DEFAULT, settings)
    except (ValueError, OSError) as error:
        raise usage_error(f"--registry: {error}") from error


def _not_installed(missing: ModuleNotFoundError) -> CommandError:
    return CommandError(f"formats of a registry need the extra moldau[serve] (no module {missing.name})")


class SchemaFormatter:
    """Formats records whose keys or values have schemas; they are JSON in the output."""

    def __init__(self, registry: "RegistryClient", template: str, forms: dict[str, Form]) -> None:
        try:
            from moldau.schemas.codecs import Codecs
        except ModuleNotFoundError as missing:
            raise _not_installed(missing) from missing
        self._registry = registry
        self._codecs = Codecs()
        self._forms = {part: form for part, form in forms.items() if form is not Form.BYTES}
        self._line = None if template == "json" else compile_template(template)

    def __call__(self, topic: str, partition: int, record: Record) -> bytes:
        decoded = {part: self._decode(part, topic, partition, record) for part in self._forms}
        if self._line is not None:
            texts = {part: getattr(record, part) for part in PARTS}
            texts |= {part: _json_bytes(value) for part, value in decoded.items() if texts[part] is not None}
            return self._line(
                topic, partition, Record(record.offset, record.timestamp, texts["key"], texts["value"], record.headers)
            )
        fields = to_json(topic, partition, record)
        shown = {name: value for name, value in fields.items() if name.removesuffix("_base64") not in decoded}
        return json.dumps({**shown, **decoded}, ensure_ascii=False).encode("utf-8", "replace") + b"\n"

    def _decode(self, part: str, topic: str, partition: int, record: Record) -> Any:
        from moldau.schemas.types import UndecodableValue
        from moldau.schemas.wire_format import schema_id_of

        data: bytes | None = getattr(record, part)
        if data is None:
            return None
        schema_id = schema_id_of(data)
        try:
            if schema_id is not None and schema_id not in self._codecs:
                self._codecs.add(_requested(lambda: self._registry.schema(schema_id)))
            kind, value = self._codecs.decode(data)
        except UndecodableValue as error:
            text = f"{topic}-{partition} offset {record.offset}: the {part} cannot be decoded: {error}"
            raise CommandError(f"{text}; --{part}-format bytes shows it as it is") from error
        if kind != self._forms[part].kind:
            text = f"{topic}-{partition} offset {record.offset}: the schema {schema_id} of the {part} is {kind}"
            raise CommandError(f"{text}, not {self._forms[part].kind}; see --{part}-format")
        return value


def formatter_of(template: str, registry: str | None, forms: dict[str, Form]) -> Formatter:
    """Return the formatter of a command: one that decodes, if a key or value has a schema."""
    if all(form is Form.BYTES for form in forms.values()):
        return compile_template(template)
    return SchemaFormatter(connect_registry(registry), template, forms)


class ValueEncoder:
    """Encodes keys or values from JSON with one schema."""

    def __init__(self, registry: "RegistryClient", form: Form, schema: str, subject: str, message: str | None) -> None:
        try:
            from moldau.schemas.codecs import compile_codec
        except ModuleNotFoundError as missing:
            raise _not_installed(missing) from missing
        from moldau.schemas.types import InvalidSchema

        found = _requested(lambda: _chosen_schema(registry, form, schema, subject))
        if found.kind != form.kind:
            raise usage_error(f"schema {found.schema_id} ({schema} of {subject}) is {found.kind}, not {form.kind}")
        self._schema_id = found.schema_id
        try:
            self._codec = compile_codec(found, message)
        except InvalidSchema as error:
            raise CommandError(f"schema {found.schema_id} is not valid: {error}") from error

    def encode_text(self, text: bytes) -> bytes:
        """Encode a JSON text; ValueError if it is none, or if the schema does not accept it."""
        try:
            value = json.loads(text)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
        return self.encode(value)

    def encode(self, value: Any) -> bytes:
        from moldau.schemas.wire_format import frame

        return frame(self._schema_id, self._codec.encode(value))


def encoders_of(
    topic: str, registry: str | None, forms: Mapping[str, Form], schemas: Mapping[str, str], message: str | None
) -> dict[str, ValueEncoder]:
    """Return an encoder for the key and the value, if they have schemas; `message` is that of the value."""
    return {
        part: ValueEncoder(
            connect_registry(registry), form, schemas[part], f"{topic}-{part}", message if part == "value" else None
        )
        for part, form in forms.items()
        if form is not Form.BYTES
    }


def _chosen_schema(registry: "RegistryClient", form: Form, schema: str, subject: str) -> "RegisteredSchema":
    if schema.isdecimal():
        return registry.schema(int(schema))
    if schema == LATEST:
        return registry.version(subject)
    return registry.register(subject, form.kind, read_text(Path(schema)))


def _requested(request: Callable[[], "RegisteredSchema"]) -> "RegisteredSchema":
    from moldau.schemas.registry_client import RegistryUnavailable, RequestRejected

    try:
        return request()
    except RegistryUnavailable as error:
        raise CommandError(f"{error}; give its address with --registry") from error
    except RequestRejected as error:
        raise CommandError(f"the schema registry: {error}") from error


def _json_bytes(content: Any) -> bytes:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
