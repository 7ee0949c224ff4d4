"""Compiles the decoder of one version of one message.

A decoder is a straight line of Python: runs of numbers are one `unpack_from`, nested structs are written in place, and
each count is checked against the bytes that remain and a budget for the whole message before anything is allocated.
"""

import struct
from collections.abc import Callable
from typing import Any

from moldau.wire.classes import Message
from moldau.wire.limits import COPIED_BYTES_MAX
from moldau.wire.primitives import DECODE_FAILURES, Malformed, check_tag_count, read_uvarint, skip_tags
from moldau.wire.schema import FIXED, FIXED_BYTES, Field, Schema, Struct
from moldau.wire.source import TABLE_SIZE, Source

Decoder = Callable[[memoryview, int], tuple[Any, int]]


def compile_decoder(schema: Schema, version: int, top: type[Message]) -> Decoder:
    """A function from (buffer, position) to (message, end position) that raises nothing but `Malformed`."""
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
    source = Source(names)
    if schema.has_records(version):
        _Writer(source, schema, version, is_copied=False).function("decode_in_place")
        _Writer(source, schema, version, is_copied=True).function("decode", larger="decode_in_place")
    else:
        _Writer(source, schema, version, is_copied=True).function("decode")
    return source.compile("decode", f"decode {schema.name} {version}")


class _Writer:
    """Writes one decode function. In what it writes, `p` is the position and `end` the end of the buffer."""

    def __init__(self, source: Source, schema: Schema, version: int, *, is_copied: bool) -> None:
        self.source = source
        self.schema = schema
        self.version = version
        self.is_flexible = schema.flexible.has(version)
        self.is_copied = is_copied
        self.write = source.write

    def function(self, name: str, larger: str | None = None) -> None:
        self.write(0, f"def {name}(view, p):")
        self.write(1, "end = len(view)")
        if larger:
            self.write(1, f"if end > {COPIED_BYTES_MAX}: return {larger}(view, p)")
        self.write(1, "buf = view.tobytes()" if self.is_copied else "buf = view")
        self.write(1, f"room = {self.schema.elements_max}")
        self.write(1, "try:")
        result = self.struct(2, self.schema.root)
        self.write(2, f"return {result}, p")
        self.write(1, "except DECODE_FAILURES as error:")
        title = f"{self.schema.name} version {self.version}"
        self.write(2, f"raise Malformed('{title}: ' + str(error)) from error")

    def struct(self, depth: int, struct: Struct) -> str:
        made = self.source.variable("o")
        self.write(depth, f"{made} = new({struct.name})")
        present = struct.at(self.version)
        for each in struct.fields:
            if not each.versions.has(self.version):
                self.write(depth, f"{made}.{each.name} = {self.default(each)}")
        plain = [each for each in present if not each.tagged.has(self.version)]
        self.plain_fields(depth, made, plain)
        if self.is_flexible:
            self.tagged_fields(depth, made, present[len(plain) :])
        return made

    def default(self, each: Field) -> str:
        if each.struct and not each.is_array and not each.is_optional_struct:
            return f"{each.kind}()"
        return self.source.constant(each.default)

    def plain_fields(self, depth: int, made: str, plain: list[Field]) -> None:
        run: list[Field] = []
        for each in plain:
            if each.kind in FIXED and not each.is_array:
                run.append(each)
                continue
            self.fixed_run(depth, made, run)
            run = []
            self.write(depth, f"{made}.{each.name} = {self.value(depth, each)}")
        self.fixed_run(depth, made, run)

    def fixed_run(self, depth: int, made: str, run: list[Field]) -> None:
        if run:
            targets = "".join(f"{made}.{each.name}, " for each in run)
            unpack = self.source.format_method("unpack_from", "".join(FIXED[each.kind] for each in run))
            size = sum(FIXED_BYTES[each.kind] for each in run)
            self.write(depth, f"{targets}= {unpack}(buf, p); p += {size}")

    def tagged_fields(self, depth: int, made: str, tagged: list[Field]) -> None:
        if not tagged:
            self.write(depth, "if buf[p]: p = skip_tags(buf, p, end)")
            self.write(depth, "else: p += 1")
            return
        for each in tagged:
            self.write(depth, f"{made}.{each.name} = {self.default(each)}")
        count, tag, stop = (self.source.variable(letter) for letter in "ntz")
        self.uvarint(depth, count)
        self.write(depth, f"if {count}: check_tag_count({count})")
        self.write(depth, f"for _ in range({count}):")
        self.uvarint(depth + 1, tag)
        self.uvarint(depth + 1, stop)
        self.write(depth + 1, f"{stop} += p")
        self.write(depth + 1, f"if {stop} > end: raise Malformed('a tagged field ends after the message')")
        word = "if"
        for each in tagged:
            self.write(depth + 1, f"{word} {tag} == {each.tag}:")
            self.write(depth + 2, f"{made}.{each.name} = {self.value(depth + 2, each)}")
            self.write(depth + 2, f"if p != {stop}: raise Malformed('{each.name}: not the size it was said to be')")
            word = "elif"
        self.write(depth + 1, f"p = {stop}")

    def value(self, depth: int, each: Field) -> str:
        """Write what reads a field; the expression that then holds its value."""
        if each.is_array:
            return self.array(depth, each)
        if each.struct is None:
            return self.primitive(depth, each, is_nullable=each.nullable.has(self.version))
        if not each.nullable.has(self.version):
            return self.struct(depth, each.struct)
        # A byte says whether it is there: -1 for null, or 0 where the struct is a tagged field.
        value, is_there = self.source.variable("v"), "> 0" if each.tagged.has(self.version) else "< 128"
        self.write(depth, f"{value} = None; p += 1")
        self.write(depth, f"if buf[p - 1] {is_there}:")
        self.write(depth + 1, f"{value} = {self.struct(depth + 1, each.struct)}")
        return value

    def primitive(self, depth: int, each: Field, *, is_nullable: bool) -> str:
        value = self.source.variable("v")
        if each.kind in FIXED:
            unpack = self.source.format_method("unpack_from", FIXED[each.kind])
            self.write(depth, f"{value}, = {unpack}(buf, p); p += {FIXED_BYTES[each.kind]}")
            return value
        stop = self.source.variable("q")
        self.length(depth, stop, "h" if each.kind == "string" else "i")
        self.write(depth, f"if {stop} < 0:")
        self.write(depth + 1, f"{value} = None" if is_nullable else f"raise Malformed('{each.name}: null')")
        self.write(depth, "else:")
        self.write(depth + 1, f"{stop} += p")
        self.write(depth + 1, f"if {stop} > end: raise Malformed('{each.name}: ends after the message')")
        self.write(depth + 1, f"{value} = {self.taken(each.kind, stop)}; p = {stop}")
        return value

    def taken(self, kind: str, stop: str) -> str:
        if kind == "records":
            return f"view[p:{stop}]"
        copy = f"buf[p:{stop}]" if self.is_copied else f"buf[p:{stop}].tobytes()"
        return f"{copy}.decode()" if kind == "string" else copy

    def array(self, depth: int, each: Field) -> str:
        value, count = self.source.variable("v"), self.source.variable("n")
        self.length(depth, count, "i")
        self.write(depth, f"if {count} < 0:")
        null = f"{value} = None" if each.nullable.has(self.version) else f"raise Malformed('{each.name}: null')"
        self.write(depth + 1, null)
        self.write(depth, "else:")
        smallest = self.element_bytes_min(each)
        self.write(depth + 1, f"room -= {count}")
        self.write(depth + 1, f"if room < 0 or {count} * {smallest} > end - p:")
        self.write(depth + 2, f"raise Malformed('{each.name}: ' + str({count}) + ' elements')")
        if each.kind in FIXED and each.kind != "uuid":
            self.numbers(depth + 1, each, value, count)
        else:
            self.elements(depth + 1, each, value, count)
        return value

    def numbers(self, depth: int, each: Field, value: str, count: str) -> None:
        letter = FIXED[each.kind]
        table = self.source.format_table("unpack_from", letter)
        slow = f"unpack_from('>%d{letter}' % {count}, buf, p)"
        self.write(depth, f"{value} = {table}[{count}](buf, p) if {count} < {TABLE_SIZE} else {slow}")
        self.write(depth, f"p += {count} * {FIXED_BYTES[each.kind]}")

    def elements(self, depth: int, each: Field, value: str, count: str) -> None:
        self.write(depth, f"{value} = []")
        self.write(depth, f"for _ in range({count}):")
        if each.struct:
            element = self.struct(depth + 1, each.struct)
        else:
            element = self.primitive(depth + 1, each, is_nullable=False)
        self.write(depth + 1, f"{value}.append({element})")

    def length(self, depth: int, name: str, letter: str) -> None:
        if self.is_flexible:
            self.uvarint(depth, name)
            self.write(depth, f"{name} -= 1")
        else:
            unpack = self.source.format_method("unpack_from", letter)
            self.write(depth, f"{name}, = {unpack}(buf, p); p += {2 if letter == 'h' else 4}")

    def uvarint(self, depth: int, name: str) -> None:
        self.write(depth, f"{name} = buf[p]; p += 1")
        self.write(depth, f"if {name} > 127: {name}, p = read_uvarint(buf, p - 1)")

    def element_bytes_min(self, each: Field) -> int:
        if each.struct:
            size = self.struct_bytes_min(each.struct)
            # A count of elements that take no bytes is not bounded by the frame.
            assert size > 0, f"{each.name} of {self.schema.name} would be an array of nothing"
            return size
        return self.plain_bytes_min(each.kind)

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
