"""Compiles the decoder of one version of one message.

A decoder is straight-line Python. Adjacent numbers, and the length prefix after them, are read by one unpack call.
Nested structs are inlined. A count is checked against the remaining bytes, and against a budget for the
whole message, before anything is allocated. A string that reaches past the end is shortened by the slice, but the
position advances by its announced length: then the next read fails, or the check at the end does.
"""

import struct
from collections.abc import Callable
from typing import Any

from moldau.wire.limits import COPIED_BYTES_MAX
from moldau.wire.message_classes import Message
from moldau.wire.primitives import DECODE_FAILURES, Malformed, check_tag_count, read_uvarint, skip_tags
from moldau.wire.schema import FIXED, FIXED_BYTES, Field, Schema, Struct
from moldau.wire.source_builder import TABLE_SIZE, SourceBuilder

Decoder = Callable[[memoryview, int], tuple[Any, int]]


def compile_decoder(schema: Schema, version: int, top: type[Message]) -> Decoder:
    """Return a function from (buffer, position) to (message, end position) that raises nothing but `Malformed`."""
    names: dict[str, Any] = {
        "Malformed": Malformed,
        "DECODE_FAILURES": DECODE_FAILURES,
        "check_tag_count": check_tag_count,
        "new": object.__new__,
        "read_uvarint": read_uvarint,
        "skip_tags": skip_tags,
        "unpack_from": struct.unpack_from,
        schema.name: top,
    }
    names.update((name, getattr(top, name)) for name in schema.nested)
    source = SourceBuilder(names)
    if schema.has_records(version):
        _Writer(source, schema, version, is_copied=False).function("decode_in_place")
        _Writer(source, schema, version, is_copied=True).function("decode", larger="decode_in_place")
    else:
        _Writer(source, schema, version, is_copied=True).function("decode")
    return source.compile("decode", f"decode {schema.name} {version}")


class _Writer:
    """Writes one decode function. In its code, `p` is the position and `end` the end of the buffer."""

    def __init__(self, source: SourceBuilder, schema: Schema, version: int, *, is_copied: bool) -> None:
        self.source = source
        self.schema = schema
        self.version = version
        self.is_flexible = schema.flexible.has(version)
        self.is_copied = is_copied
        self.title = f"{schema.name} version {version}"
        self.write = source.write
        self.pending: list[tuple[str, str]] = []  # letters of `struct`, and the targets of the values

    def function(self, name: str, larger: str | None = None) -> None:
        self.write(0, f"def {name}(view, p):")
        self.write(1, "end = len(view)")
        if larger:
            self.write(1, f"if end > {COPIED_BYTES_MAX}: return {larger}(view, p)")
        self.write(1, "buf = view.tobytes()" if self.is_copied else "buf = view")
        self.write(1, f"room = {self.schema.elements_max}")
        self.write(1, "try:")
        self.struct(2, self.schema.root, "message")
        self.flush(2)
        self.write(1, "except DECODE_FAILURES as error:")
        self.write(2, f"raise Malformed('{self.title}: ' + str(error)) from error")
        self.write(1, f"if p > end: raise Malformed('{self.title}: truncated')")
        self.write(1, "return message, p")

    def flush(self, depth: int) -> None:
        """Write the unpack call of the pending numbers. Needed before code that uses them or the position."""
        if not self.pending:
            return
        letters = "".join(letter for letter, _ in self.pending)
        targets = "".join(f"{target}, " for _, target in self.pending)
        if letters == "B":
            self.write(depth, f"{self.pending[0][1]} = buf[p]; p += 1")
        else:
            size = struct.calcsize(">" + letters)
            self.write(depth, f"{targets}= {self.source.format_method('unpack_from', letters)}(buf, p); p += {size}")
        self.pending = []

    def struct(self, depth: int, struct: Struct, target: str) -> None:
        self.write(depth, f"{target} = new({struct.name})")
        for each in struct.fields:
            if not each.versions.has(self.version):
                self.write(depth, f"{target}.{each.name} = {self.default(each)}")
        present = struct.at(self.version)
        plain = [each for each in present if not each.tagged.has(self.version)]
        for each in plain:
            self.value(depth, each, f"{target}.{each.name}")
        if self.is_flexible:
            self.tagged_fields(depth, present[len(plain) :], target)

    def default(self, each: Field) -> str:
        if each.struct and not each.is_array and not each.is_optional_struct:
            return f"{each.kind}()"
        return self.source.constant(each.default)

    def tagged_fields(self, depth: int, tagged: list[Field], holder: str) -> None:
        count = self.source.variable("t")
        self.pending.append(("B", count))
        self.flush(depth)
        if not tagged:
            self.write(depth, f"if {count}: p = skip_tags(buf, p - 1, end)")
            return
        for each in tagged:
            self.write(depth, f"{holder}.{each.name} = {self.default(each)}")
        self.write(depth, f"if {count}:")
        self.write(depth + 1, f"if {count} > 127: {count}, p = read_uvarint(buf, p - 1)")
        self.write(depth + 1, f"check_tag_count({count})")
        self.write(depth + 1, f"for _ in range({count}):")
        self.tagged_field(depth + 2, tagged, holder)

    def tagged_field(self, depth: int, tagged: list[Field], holder: str) -> None:
        tag, stop = self.source.variable("t"), self.source.variable("q")
        self.uvarint(depth, tag)
        self.uvarint(depth, stop)
        self.write(depth, f"{stop} += p")
        self.write(depth, f"if {stop} > end: raise Malformed('{self.title}: a tagged field exceeds the message')")
        for word, each in zip(["if"] + ["elif"] * len(tagged), tagged, strict=False):
            self.write(depth, f"{word} {tag} == {each.tag}:")
            self.value(depth + 1, each, f"{holder}.{each.name}")
            self.flush(depth + 1)
            self.write(
                depth + 1, f"if p != {stop}: raise Malformed('{self.title}: {each.name} has an unexpected size')"
            )
        self.write(depth, f"p = {stop}")  # skips unknown fields

    def value(self, depth: int, each: Field, target: str) -> None:
        """Write code that reads a field into `target`."""
        is_nullable = each.nullable.has(self.version)
        if each.is_array:
            self.array(depth, each, target, is_nullable=is_nullable)
        elif each.struct is None:
            self.primitive(depth, each, target, is_nullable=is_nullable)
        elif is_nullable:
            self.nullable_struct(depth, each, each.struct, target)
        else:
            made = self.source.variable("o")
            self.struct(depth, each.struct, made)
            self.write(depth, f"{target} = {made}")

    def nullable_struct(self, depth: int, each: Field, struct: Struct, target: str) -> None:
        """A byte marks null: -1, or 0 where the struct is a tagged field."""
        mark, made = self.source.variable("n"), self.source.variable("o")
        self.pending.append(("B", mark))
        self.flush(depth)
        self.write(depth, f"if {mark} {'> 0' if each.tagged.has(self.version) else '< 128'}:")
        self.struct(depth + 1, struct, made)
        self.flush(depth + 1)
        self.write(depth + 1, f"{target} = {made}")
        self.write(depth, f"else: {target} = None")

    def primitive(self, depth: int, each: Field, target: str, *, is_nullable: bool) -> None:
        if each.kind in FIXED:
            self.pending.append((FIXED[each.kind], target))
            return
        stop = self.source.variable("q")
        self.length(depth, stop, "h" if each.kind == "string" else "i")
        self.write(depth, f"if {stop}{'' if self.is_flexible else ' >= 0'}:")
        self.write(depth + 1, f"{stop} += p{' - 1' if self.is_flexible else ''}")
        self.write(depth + 1, f"{target} = {self.slice_of(each.kind, stop)}; p = {stop}")
        self.write(depth, f"else: {self.null(each, target, is_nullable)}")

    def slice_of(self, kind: str, stop: str) -> str:
        if kind == "records":
            return f"view[p:{stop}]"
        copy = f"buf[p:{stop}]" if self.is_copied else f"buf[p:{stop}].tobytes()"
        return f"{copy}.decode()" if kind == "string" else copy

    def null(self, each: Field, target: str, is_nullable: bool) -> str:
        return f"{target} = None" if is_nullable else f"raise Malformed('{self.title}: {each.name} is null')"

    def array(self, depth: int, each: Field, target: str, *, is_nullable: bool) -> None:
        count = self.source.variable("n")
        self.length(depth, count, "i")
        if self.is_flexible:
            self.write(depth, f"{count} -= 1")
        self.write(depth, f"if {count} > 0:")
        self.write(depth + 1, f"room -= {count}")
        self.write(depth + 1, f"if room < 0 or {count} * {self.element_bytes_min(each)} > end - p:")
        self.write(depth + 2, f"raise Malformed('{self.title}: {each.name} has ' + str({count}) + ' elements')")
        if each.kind in FIXED and each.kind != "uuid":
            self.numbers(depth + 1, each, target, count)
        else:
            self.elements(depth + 1, each, target, count)
        self.write(depth, f"elif {count} == 0: {target} = ()")
        self.write(depth, f"else: {self.null(each, target, is_nullable)}")

    def numbers(self, depth: int, each: Field, target: str, count: str) -> None:
        letter = FIXED[each.kind]
        table = self.source.format_table("unpack_from", letter)
        slow = f"unpack_from('>%d{letter}' % {count}, buf, p)"
        self.write(depth, f"{target} = {table}[{count}](buf, p) if {count} < {TABLE_SIZE} else {slow}")
        self.write(depth, f"p += {count} * {FIXED_BYTES[each.kind]}")

    def elements(self, depth: int, each: Field, target: str, count: str) -> None:
        gathered, element = self.source.variable("v"), self.source.variable("e")
        self.write(depth, f"{target} = {gathered} = []")
        self.write(depth, f"for _ in range({count}):")
        if each.struct:
            self.struct(depth + 1, each.struct, element)
        else:
            self.primitive(depth + 1, each, element, is_nullable=False)
        self.flush(depth + 1)
        self.write(depth + 1, f"{gathered}.append({element})")

    def length(self, depth: int, name: str, letter: str) -> None:
        """Read a length prefix; flexible versions encode length + 1."""
        if self.is_flexible:
            self.uvarint(depth, name)
        else:
            self.pending.append((letter, name))
            self.flush(depth)

    def uvarint(self, depth: int, name: str) -> None:
        self.pending.append(("B", name))
        self.flush(depth)
        self.write(depth, f"if {name} > 127: {name}, p = read_uvarint(buf, p - 1)")

    def element_bytes_min(self, each: Field) -> int:
        """Elements of zero bytes are not allowed: the frame would not bound their count."""
        size = self.struct_bytes_min(each.struct) if each.struct else self.plain_bytes_min(each.kind)
        assert size > 0, f"{each.name} of {self.schema.name} is an array of empty elements"
        return size

    def plain_bytes_min(self, kind: str) -> int:
        if kind in FIXED:
            return FIXED_BYTES[kind]
        if self.is_flexible:
            return 1
        return 2 if kind == "string" else 4

    def struct_bytes_min(self, struct: Struct) -> int:
        sizes = [self.field_bytes_min(each) for each in struct.at(self.version) if not each.tagged.has(self.version)]
        return sum(sizes) + (1 if self.is_flexible else 0)

    def field_bytes_min(self, each: Field) -> int:
        if each.is_array:
            return self.plain_bytes_min("bytes")
        if each.struct is None:
            return self.plain_bytes_min(each.kind)
        return 1 if each.nullable.has(self.version) else self.struct_bytes_min(each.struct)
