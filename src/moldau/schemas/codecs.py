"""Codecs of registered schemas: bytes in the wire format of a registry, to and from JSON.

The command line, the gateway, the console and Spark share this module; it needs no web framework. A registry is
anything that returns a schema by id, such as `moldau.schemas.registry_client`.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from moldau.schemas import avro, json_schema, protobuf
from moldau.schemas.types import AVRO, JSON, PROTOBUF, Codec, InvalidSchema, UndecodableValue, UnencodableValue
from moldau.schemas.wire_format import frame, payload_of, schema_id_of

CODECS_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema with its id, and the texts of the schemas that it refers to, by name, those that others need first."""

    schema_id: int
    kind: str
    text: str
    dependencies: Mapping[str, str] = field(default_factory=dict)


def compile_codec(schema: RegisteredSchema, message: str | None = None) -> Codec:
    """Return the codec of a schema, or raise InvalidSchema. `message` selects the Protobuf message to write."""
    from moldau.schemas.avro_codec import AvroCodec
    from moldau.schemas.json_codec import JsonCodec
    from moldau.schemas.protobuf_codec import ProtobufCodec

    if schema.kind == AVRO:
        return AvroCodec(avro.parse(schema.text, schema.dependencies))
    if schema.kind == JSON:
        return JsonCodec(json_schema.parse(schema.text, schema.dependencies))
    if schema.kind == PROTOBUF:
        return ProtobufCodec(protobuf.parse(schema.text, schema.dependencies), message)
    raise InvalidSchema(f"{schema.kind} is not a type of schema: AVRO, JSON or PROTOBUF")


class Codecs:
    """Codecs by schema id, the most recently used ones. A schema never changes, so that a codec is never outdated."""

    def __init__(self) -> None:
        self._codecs: OrderedDict[int, tuple[str, Codec] | InvalidSchema] = OrderedDict()

    def __contains__(self, schema_id: object) -> bool:
        return schema_id in self._codecs

    def add(self, schema: RegisteredSchema) -> None:
        """Compile a schema; one that is not valid is remembered as such."""
        try:
            self._codecs[schema.schema_id] = (schema.kind, compile_codec(schema))
        except InvalidSchema as error:
            self._codecs[schema.schema_id] = error
        while len(self._codecs) > CODECS_MAX:
            self._codecs.popitem(last=False)

    def decode(self, data: bytes) -> tuple[str, Any]:
        """Return the type of the schema and the value of bytes whose schema was added; UndecodableValue otherwise."""
        kind, codec = self._find(schema_id_of(data), UndecodableValue)
        return kind, codec.decode(payload_of(data))

    def encode(self, schema_id: int, value: Any) -> bytes:
        """Return a value with its header; UnencodableValue if its schema does not accept it."""
        _, codec = self._find(schema_id, UnencodableValue)
        return frame(schema_id, codec.encode(value))

    def _find(self, schema_id: int | None, kind: Callable[[str], Exception]) -> tuple[str, Codec]:
        found = self._codecs.get(schema_id or 0)
        if found is None:
            text = "no schema id" if schema_id is None else f"schema {schema_id} is not known"
            raise kind(text)
        if isinstance(found, InvalidSchema):
            raise kind(f"schema {schema_id} is not valid: {found}")
        self._codecs.move_to_end(schema_id or 0)
        return found
