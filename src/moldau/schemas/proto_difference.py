"""Differences between two Protobuf files, and which of them keep earlier data readable.

The rules are those of Confluent's registry, on top of Protobuf's own: fields are known by their numbers, names may
change, fields may come and go unless they are required, and a type may change within a group of one encoding. A change
between singular and repeated is rejected for numbers, because packed values cannot be read as single ones.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from google.protobuf import descriptor_pb2

FieldProto = descriptor_pb2.FieldDescriptorProto
# Types of one encoding, which may replace each other.
GROUPS: Final = {
    **dict.fromkeys(
        (
            FieldProto.TYPE_INT32,
            FieldProto.TYPE_INT64,
            FieldProto.TYPE_UINT32,
            FieldProto.TYPE_UINT64,
            FieldProto.TYPE_BOOL,
            FieldProto.TYPE_ENUM,
        ),
        "number",
    ),
    **dict.fromkeys((FieldProto.TYPE_SINT32, FieldProto.TYPE_SINT64), "signed number"),
    **dict.fromkeys((FieldProto.TYPE_STRING, FieldProto.TYPE_BYTES), "string or bytes"),
    **dict.fromkeys((FieldProto.TYPE_FIXED32, FieldProto.TYPE_SFIXED32), "fixed32"),
    **dict.fromkeys((FieldProto.TYPE_FIXED64, FieldProto.TYPE_SFIXED64), "fixed64"),
    FieldProto.TYPE_FLOAT: "float",
    FieldProto.TYPE_DOUBLE: "double",
}
TEXTS: Final = "string or bytes"
MESSAGES: Final = (FieldProto.TYPE_MESSAGE, FieldProto.TYPE_GROUP)


class Difference(NamedTuple):
    """One change that makes earlier data unreadable."""

    error: str
    path: str

    def __str__(self) -> str:
        return f"{{errorType:'{self.error}', path:'#/{self.path}'}}"


class File:
    """A file descriptor with the messages that it can name."""

    def __init__(self, file: Any, files: Mapping[str, Any]) -> None:
        self.file = file
        self._messages: dict[str, tuple[Any, str]] = {}  # by full name: the message and the package of its file
        for each in files.values():
            prefix = f".{each.package}" if each.package else ""
            for message in each.message_type:
                self._collect(message, f"{prefix}.{message.name}", each.package)

    def message(self, full_name: str) -> Any:
        return self._messages[full_name][0]

    def local_name(self, full_name: str) -> str:
        """The name without the package of the file."""
        package = self._messages[full_name][1]
        return full_name.removeprefix(f".{package}." if package else ".")

    def _collect(self, message: Any, full_name: str, package: str) -> None:
        self._messages[full_name] = (message, package)
        for nested in message.nested_type:
            self._collect(nested, f"{full_name}.{nested.name}", package)


class Comparison:
    """Compares an earlier file with a later one."""

    def __init__(self, earlier: File, later: File) -> None:
        self._earlier, self._later = earlier, later
        self._compared: set[tuple[str, str]] = set()  # pairs of message types reached through fields

    def differences(self) -> list[Difference]:
        before, after = self._earlier.file, self._later.file
        found = [] if before.package == after.package else [Difference("PACKAGE_CHANGED", "")]
        return [*found, *self._compare_messages(before.message_type, after.message_type, "")]

    def _compare_messages(self, earlier: Any, later: Any, path: str) -> Iterator[Difference]:
        after = {each.name: each for each in later}
        for message in earlier:
            place = f"{path}{message.name}"
            if message.options.map_entry:
                continue  # a part of its field
            if message.name not in after:
                yield Difference("MESSAGE_REMOVED", place)
            else:
                yield from self._compare_message(message, after[message.name], place)

    def _compare_message(self, earlier: Any, later: Any, path: str) -> Iterator[Difference]:
        before, after = ({each.number: each for each in message.field} for message in (earlier, later))
        for number, field in before.items():
            place = f"{path}/{number}"
            if number in after:
                yield from self._compare_fields(field, after[number], place)
            elif field.label == FieldProto.LABEL_REQUIRED:
                yield Difference("REQUIRED_FIELD_REMOVED", place)
            elif (oneof := _oneof_of(earlier, field)) is not None and oneof in _oneofs(later):
                yield Difference("ONEOF_FIELD_REMOVED", place)
        for number, field in after.items():
            if number not in before and field.label == FieldProto.LABEL_REQUIRED:
                yield Difference("REQUIRED_FIELD_ADDED", f"{path}/{number}")
        yield from _compare_oneofs(earlier, later, path)
        yield from self._compare_messages(earlier.nested_type, later.nested_type, f"{path}.")

    def _compare_fields(self, earlier: Any, later: Any, path: str) -> Iterator[Difference]:
        entries = [_map_entry(file, field) for file, field in ((self._earlier, earlier), (self._later, later))]
        if all(entries):
            for before, after in zip(entries[0].field, entries[1].field, strict=True):
                yield from self._compare_fields(before, after, path)
            return
        is_message = [field.type in MESSAGES for field in (earlier, later)]
        if any(entries) or is_message[0] != is_message[1]:
            yield Difference("FIELD_KIND_CHANGED", path)
        elif is_message[0]:
            yield from self._compare_named(earlier.type_name, later.type_name, path)
        elif GROUPS[earlier.type] != GROUPS[later.type]:
            yield Difference("FIELD_SCALAR_KIND_CHANGED", path)
        elif GROUPS[later.type] != TEXTS and _is_repeated(earlier) != _is_repeated(later):
            yield Difference("FIELD_NUMERIC_LABEL_CHANGED", path)

    def _compare_named(self, earlier: str, later: str, path: str) -> Iterator[Difference]:
        """Compare message types of fields; they may be in imported files."""
        if self._earlier.local_name(earlier) != self._later.local_name(later):
            yield Difference("FIELD_NAMED_TYPE_CHANGED", path)
            return
        if (earlier, later) in self._compared:
            return
        self._compared.add((earlier, later))
        messages = self._earlier.message(earlier), self._later.message(later)
        found = list(self._compare_message(*messages, self._later.local_name(later)))
        if found:
            yield from [*found, Difference("FIELD_NAMED_TYPE_CHANGED", path)]


def _map_entry(file: File, field: Any) -> Any:
    """Return the entry message of a map field, otherwise None."""
    if field.type != FieldProto.TYPE_MESSAGE:
        return None
    message = file.message(field.type_name)
    return message if message.options.map_entry else None


def _compare_oneofs(earlier: Any, later: Any, path: str) -> Iterator[Difference]:
    """At most one earlier field may move into a oneof, and only into a new one: a writer may have set several."""
    known = {field.number: _oneof_of(earlier, field) for field in earlier.field}
    for oneof in _oneofs(later):
        members = [field.number for field in later.field if _oneof_of(later, field) == oneof and field.number in known]
        moved = [number for number in members if known[number] is None]
        if len(moved) > 1:
            yield Difference("MULTIPLE_FIELDS_MOVED_TO_ONEOF", f"{path}/{oneof}")
        elif moved and len(members) > 1:
            yield Difference("FIELD_MOVED_TO_EXISTING_ONEOF", f"{path}/{oneof}")


def _oneofs(message: Any) -> list[str]:
    return list(dict.fromkeys(name for field in message.field if (name := _oneof_of(message, field)) is not None))


def _oneof_of(message: Any, field: Any) -> str | None:
    """The oneof of a field; `optional` in proto3 is not one."""
    if not field.HasField("oneof_index") or field.proto3_optional:
        return None
    name: str = message.oneof_decl[field.oneof_index].name
    return name


def _is_repeated(field: Any) -> bool:
    return bool(field.label == FieldProto.LABEL_REPEATED)
