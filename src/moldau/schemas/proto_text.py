"""Prints a Protobuf file descriptor as the text of a .proto file, in one layout and without comments.

Clients register descriptors (the Python serializer of confluent-kafka does) or texts; both get the same text here. A
descriptor with something that the text form below does not express, such as custom options, raises NotPrintable.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from google.protobuf import descriptor_pb2

FieldProto = descriptor_pb2.FieldDescriptorProto
SCALARS: Final = {
    FieldProto.TYPE_DOUBLE: "double",
    FieldProto.TYPE_FLOAT: "float",
    FieldProto.TYPE_INT64: "int64",
    FieldProto.TYPE_UINT64: "uint64",
    FieldProto.TYPE_INT32: "int32",
    FieldProto.TYPE_FIXED64: "fixed64",
    FieldProto.TYPE_FIXED32: "fixed32",
    FieldProto.TYPE_BOOL: "bool",
    FieldProto.TYPE_STRING: "string",
    FieldProto.TYPE_BYTES: "bytes",
    FieldProto.TYPE_UINT32: "uint32",
    FieldProto.TYPE_SFIXED32: "sfixed32",
    FieldProto.TYPE_SFIXED64: "sfixed64",
    FieldProto.TYPE_SINT32: "sint32",
    FieldProto.TYPE_SINT64: "sint64",
}
INDENT: Final = "  "
MAX_NUMBER: Final = (1 << 29) - 1
MAX_ENUM_NUMBER: Final = (1 << 31) - 1
PROTO2: Final = "proto2"


class NotPrintable(ValueError):
    """A descriptor that the printed text would not express fully."""


def print_file(file: Any) -> str:
    """Return the text of a file."""
    syntax = file.syntax or PROTO2
    if syntax not in (PROTO2, "proto3"):
        raise NotPrintable(f"syntax {syntax}")
    if len(file.extension) or len(file.option_dependency):
        raise NotPrintable("extensions")
    return "\n".join(_File(syntax).lines(file)) + "\n"


class _File:
    def __init__(self, syntax: str) -> None:
        self._syntax = syntax

    def lines(self, file: Any) -> Iterator[str]:
        yield f'syntax = "{self._syntax}";'
        if file.package:
            yield f"package {file.package};"
        public, weak = set(file.public_dependency), set(file.weak_dependency)
        if file.dependency:
            yield ""
        for number, name in enumerate(file.dependency):
            kind = "public " if number in public else "weak " if number in weak else ""
            yield f"import {kind}{_quoted(name)};"
        yield from _after_blank(f"option {each};" for each in _options(file.options))
        for enum in file.enum_type:
            yield from ["", *self._enum(enum)]
        for message in file.message_type:
            yield from ["", *self._message(message, file.package)]
        for service in file.service:
            yield from ["", *self._service(service)]

    def _message(self, message: Any, scope: str) -> Iterator[str]:
        if len(message.extension) or any(each.options.ListFields() for each in message.extension_range):
            raise NotPrintable("extensions")
        name = f"{scope}.{message.name}" if scope else message.name
        maps = {f".{name}.{each.name}": each for each in message.nested_type if each.options.map_entry}
        yield f"message {message.name} {{"
        inner = [f"option {each};" for each in _options(message.options)]
        inner += self._reserved(message.reserved_range, message.reserved_name)
        for each in message.extension_range:
            inner.append(f"extensions {_range(each.start, each.end - 1, MAX_NUMBER)};")
        inner += self._fields(message, maps)
        for enum in message.enum_type:
            inner += ["", *self._enum(enum)]
        for nested in message.nested_type:
            if not nested.options.map_entry:
                inner += ["", *self._message(nested, name)]
        yield from _indented(inner)
        yield "}"

    def _fields(self, message: Any, maps: dict[str, Any]) -> list[str]:
        """Fields in the order of the descriptor; those of a oneof are together."""
        lines: list[str] = []
        printed: set[int] = set()
        for field in message.field:
            if field.type == FieldProto.TYPE_GROUP:
                raise NotPrintable("a group")
            if not field.HasField("oneof_index") or field.proto3_optional:
                lines.append(self._field(field, maps))
            elif field.oneof_index not in printed:
                printed.add(field.oneof_index)
                oneof = message.oneof_decl[field.oneof_index]
                members = [each for each in message.field if _is_in(each, field.oneof_index)]
                options = [f"option {each};" for each in _options(oneof.options)]
                inner = [*options, *(self._field(each, maps, is_in_oneof=True) for each in members)]
                lines += [f"oneof {oneof.name} {{", *_indented(inner), "}"]
        return lines

    def _field(self, field: Any, maps: dict[str, Any], *, is_in_oneof: bool = False) -> str:
        entry = maps.get(field.type_name)
        if entry is not None:
            key, value = entry.field
            what = f"map<{_type(key)}, {_type(value)}>"
        else:
            what = f"{'' if is_in_oneof else self._label(field)}{_type(field)}"
        options = [*self._default(field), *_options(field.options)]
        if field.json_name and field.json_name != _json_name(field.name):
            options.append(f"json_name = {_quoted(field.json_name)}")
        shown = f" [{', '.join(options)}]" if options else ""
        return f"{what} {field.name} = {field.number}{shown};"

    def _label(self, field: Any) -> str:
        if field.label == FieldProto.LABEL_REPEATED:
            return "repeated "
        if field.label == FieldProto.LABEL_REQUIRED:
            return "required "
        return "optional " if self._syntax == PROTO2 or field.proto3_optional else ""

    def _default(self, field: Any) -> list[str]:
        if not field.HasField("default_value"):
            return []
        if field.type == FieldProto.TYPE_BYTES:  # the descriptor has it escaped
            return [f'default = "{field.default_value}"']
        is_text = field.type == FieldProto.TYPE_STRING
        return [f"default = {_quoted(field.default_value) if is_text else field.default_value}"]

    def _enum(self, enum: Any) -> Iterator[str]:
        yield f"enum {enum.name} {{"
        inner = [f"option {each};" for each in _options(enum.options)]
        inner += self._reserved(enum.reserved_range, enum.reserved_name, is_enum=True)
        for value in enum.value:
            options = list(_options(value.options))
            shown = f" [{', '.join(options)}]" if options else ""
            inner.append(f"{value.name} = {value.number}{shown};")
        yield from _indented(inner)
        yield "}"

    def _reserved(self, ranges: Sequence[Any], names: Sequence[str], *, is_enum: bool = False) -> list[str]:
        lines = []
        if ranges:  # the end of a message's range is exclusive, of an enum's inclusive
            most = MAX_ENUM_NUMBER if is_enum else MAX_NUMBER
            shown = ", ".join(_range(each.start, each.end if is_enum else each.end - 1, most) for each in ranges)
            lines.append(f"reserved {shown};")
        if names:
            lines.append(f"reserved {', '.join(map(_quoted, names))};")
        return lines

    def _service(self, service: Any) -> Iterator[str]:
        yield f"service {service.name} {{"
        inner = [f"option {each};" for each in _options(service.options)]
        for method in service.method:
            sent = f"{'stream ' if method.client_streaming else ''}{method.input_type}"
            received = f"{'stream ' if method.server_streaming else ''}{method.output_type}"
            options = [f"option {each};" for each in _options(method.options)]
            head = f"rpc {method.name} ({sent}) returns ({received})"
            inner += [f"{head} {{", *_indented(options), "}"] if options else [f"{head};"]
        yield from _indented(inner)
        yield "}"


def _options(options: Any) -> Iterator[str]:
    """Print the options that descriptor.proto declares."""
    if options.ByteSize() != _known_bytes(options):
        raise NotPrintable("custom options")
    for descriptor, value in options.ListFields():
        if descriptor.is_extension or descriptor.name in ("uninterpreted_option", "features"):
            raise NotPrintable("custom options")
        if descriptor.name != "map_entry":
            for each in value if descriptor.is_repeated else [value]:
                yield f"{descriptor.name} = {_option_value(descriptor, each)}"


def _known_bytes(options: Any) -> int:
    """The size without unknown fields, which hold custom options."""
    copy = type(options)()
    copy.CopyFrom(options)
    copy.DiscardUnknownFields()
    size: int = copy.ByteSize()
    return size


def _option_value(descriptor: Any, value: Any) -> str:
    if descriptor.enum_type is not None:
        name: str = descriptor.enum_type.values_by_number[value].name
        return name
    if descriptor.message_type is not None:
        raise NotPrintable(f"option {descriptor.name}")
    if isinstance(value, bool):
        return "true" if value else "false"
    return _quoted(value) if isinstance(value, str) else str(value)


def _type(field: Any) -> str:
    return SCALARS.get(field.type) or field.type_name


def _is_in(field: Any, oneof: int) -> bool:
    return bool(field.HasField("oneof_index") and field.oneof_index == oneof and not field.proto3_optional)


def _range(first: int, last: int, most: int) -> str:
    if first == last:
        return str(first)
    return f"{first} to {'max' if last == most else last}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


def _json_name(name: str) -> str:
    """The name in JSON that the compiler derives."""
    first, *rest = name.split("_")
    return first + "".join(each[:1].upper() + each[1:] for each in rest)


def _indented(lines: Sequence[str]) -> Iterator[str]:
    for line in lines[1:] if lines and not lines[0] else lines:
        yield f"{INDENT}{line}" if line else ""


def _after_blank(lines: Iterator[str]) -> Iterator[str]:
    for number, line in enumerate(lines):
        if number == 0:
            yield ""
        yield line
