"""Protobuf values as JSON, in Protobuf's own mapping with the field names of the schema.

The message of a value is given by its place in the file. Values are written as the first message of the file, or as
another one by name.
"""

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.message import DecodeError, EncodeError

from moldau.schemas.protobuf import MAIN, ProtobufSchema
from moldau.schemas.types import InvalidSchema, UndecodableValue, UnencodableValue
from moldau.schemas.wire_format import indexes_as_bytes, split_indexes

Indexes = tuple[int, ...]
REASON_CHARS_MAX: Final = 500


class ProtobufCodec:
    """Reads values of every message of one file, and writes those of one message."""

    def __init__(self, schema: ProtobufSchema, message: str | None = None) -> None:
        pool = descriptor_pool.DescriptorPool()
        for each in schema.files.values():  # dependencies first, as protoc writes them
            pool.Add(each)
        self._pool = pool
        self._classes: dict[Indexes, Any] = {}
        self._file = pool.FindFileByName(MAIN)
        self._written = _place_of(schema.file, message)

    def decode(self, payload: bytes) -> Any:
        indexes, content = split_indexes(payload)
        try:
            found = self._message_class(indexes).FromString(content)
            return json_format.MessageToDict(
                found,
                preserving_proto_field_name=True,
                always_print_fields_with_no_presence=True,
                descriptor_pool=self._pool,
            )
        except (DecodeError, json_format.SerializeToJsonError, UnicodeDecodeError, TypeError, ValueError) as error:
            raise UndecodableValue(f"not a message of the schema: {str(error)[:REASON_CHARS_MAX]}") from None

    def encode(self, value: Any) -> bytes:
        try:
            filled = json_format.ParseDict(value, self._message_class(self._written)(), descriptor_pool=self._pool)
            return indexes_as_bytes(self._written) + bytes(filled.SerializeToString())
        except (json_format.ParseError, EncodeError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise UnencodableValue(f": {str(error)[:REASON_CHARS_MAX]}") from None

    def _message_class(self, indexes: Indexes) -> Any:
        if indexes not in self._classes:
            self._classes[indexes] = message_factory.GetMessageClass(self._descriptor(indexes))
        return self._classes[indexes]

    def _descriptor(self, indexes: Indexes) -> Any:
        proto: Any = descriptor_pb2.FileDescriptorProto()
        self._file.CopyToProto(proto)
        messages, name = proto.message_type, proto.package
        for index in indexes:
            if not 0 <= index < len(messages):
                raise UndecodableValue(f"the schema has no message at {'/'.join(map(str, indexes))}")
            name = f"{name}.{messages[index].name}" if name else messages[index].name
            messages = messages[index].nested_type
        return self._pool.FindMessageTypeByName(name)


def _place_of(file: Any, message: str | None) -> Indexes:
    """Return the place of a message that is named with or without the package; the first one without a name."""
    if message is None:
        if not file.message_type:
            raise InvalidSchema("the schema has no message")
        return (0,)
    prefix = f"{file.package}." if file.package else ""
    names, indexes, messages = message.removeprefix(prefix).split("."), [], file.message_type
    for name in names:
        found = next((index for index, each in enumerate(messages) if each.name == name), None)
        if found is None:
            raise InvalidSchema(f"the schema has no message {message}")
        indexes.append(found)
        messages = messages[found].nested_type
    return tuple(indexes)
