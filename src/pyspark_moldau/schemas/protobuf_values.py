"""Protobuf values to structs: messages are parsed one by one, their fields are gathered column by column."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from moldau.schemas.protobuf import MAIN, ProtobufSchema
from moldau.schemas.types import InvalidSchema, UndecodableValue
from moldau.schemas.wire_format import split_indexes
from pyspark_moldau.schemas.registry_values import Decoded, Payloads

_TIMESTAMP: Final = "google.protobuf.Timestamp"
_KINDS: Final = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_ENUM: pa.string(),
}


class ProtobufValues:
    """Decodes the first message of a file; a value of another message of it is bad."""

    def __init__(self, schema: ProtobufSchema) -> None:
        pool = descriptor_pool.DescriptorPool()
        for each in schema.files.values():  # dependencies first
            pool.Add(each)
        messages = pool.FindFileByName(MAIN).message_types_by_name
        if not messages:
            raise InvalidSchema("the schema has no message")
        name = schema.file.message_type[0].name
        self._descriptor = messages[name]
        self._message: Callable[[], Any] = message_factory.GetMessageClass(self._descriptor)
        self.type = struct_type(self._descriptor, ())

    def decode(self, payloads: Payloads) -> Decoded:
        messages: list[Any] = []
        bad: dict[int, str] = {}
        for number, payload in enumerate(payloads.each()):
            try:
                messages.append(self._parsed(payload))
            except (DecodeError, UndecodableValue, ValueError) as error:
                bad[number] = f"the bytes are not a message of the schema: {error}"
                messages.append(None)
        return Decoded(struct_array(messages, self._descriptor, self.type), bad)

    def _parsed(self, payload: bytes) -> Any:
        indexes, content = split_indexes(payload)
        if indexes != (0,):
            raise UndecodableValue(f"it is message {list(indexes)} of the file, not the first one")
        message = self._message()
        message.ParseFromString(content)
        return message


def struct_type(descriptor: Any, outer: tuple[str, ...]) -> pa.DataType:
    """Return the struct of a message. Raises InvalidSchema if the message contains itself."""
    if descriptor.full_name in outer:
        raise InvalidSchema(f"message {descriptor.full_name} contains itself, which a column cannot")
    inner = (*outer, descriptor.full_name)
    return pa.struct([pa.field(each.name, _field_type(each, inner)) for each in descriptor.fields])


def _field_type(field: Any, outer: tuple[str, ...]) -> pa.DataType:
    if _is_map(field):
        entry = field.message_type.fields_by_name
        return pa.map_(pa.string(), _value_type(entry["value"], outer))
    kind = _value_type(field, outer)
    return pa.list_(pa.field("element", kind)) if field.is_repeated else kind


def _value_type(field: Any, outer: tuple[str, ...]) -> pa.DataType:
    if field.message_type is not None:
        if field.message_type.full_name == _TIMESTAMP:
            return pa.timestamp("us", "UTC")
        return struct_type(field.message_type, outer)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return pa.binary()
    return _KINDS.get(field.cpp_type, pa.string())


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def struct_array(messages: Sequence[Any], descriptor: Any, kind: pa.DataType) -> pa.Array:
    """Return messages as structs; None becomes null."""
    columns = [_column(messages, each, kind.field(place).type) for place, each in enumerate(descriptor.fields)]
    mask = pa.array([each is None for each in messages], pa.bool_())
    if not columns:
        return pa.array([None if each is None else {} for each in messages], kind)
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=mask)


def _column(messages: Sequence[Any], field: Any, kind: pa.DataType) -> pa.Array:
    name = field.name
    if not field.is_repeated and field.has_presence:
        found = [getattr(each, name) if each is not None and each.HasField(name) else None for each in messages]
    else:
        found = [None if each is None else getattr(each, name) for each in messages]
    if _is_map(field):
        value = field.message_type.fields_by_name["value"]
        return pa.array([_pairs(each, value) for each in found], kind)
    if field.is_repeated:
        return pa.array([None if each is None else [_plain(one, field) for one in each] for each in found], kind)
    if field.message_type is not None and field.message_type.full_name != _TIMESTAMP:
        return struct_array(found, field.message_type, kind)
    return pa.array([None if each is None else _plain(each, field) for each in found], kind)


def _pairs(found: Any, value: Any) -> list[tuple[str, Any]] | None:
    return None if found is None else [(str(key), _plain(each, value)) for key, each in found.items()]


def _plain(value: Any, field: Any) -> Any:
    """Return a value as Arrow takes it."""
    if field.message_type is not None:
        if field.message_type.full_name == _TIMESTAMP:
            return value.seconds * 1_000_000 + value.nanos // 1000
        return {each.name: _whole(value, each) for each in field.message_type.fields}
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    return value


def _whole(message: Any, field: Any) -> Any:
    if not field.is_repeated and field.has_presence and not message.HasField(field.name):
        return None
    found = getattr(message, field.name)
    if _is_map(field):
        return _pairs(found, field.message_type.fields_by_name["value"])
    return [_plain(each, field) for each in found] if field.is_repeated else _plain(found, field)
