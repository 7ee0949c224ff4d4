"""Compiles the encoder of one version of one message: the mirror of `decoder.py`.

Adjacent numbers, lengths and constant bytes are written with one `pack`. Records are appended to the
output unchanged, so that a batch or a file slice is never copied.
"""

import struct
from collections.abc import Callable
from typing import Any

from moldau.model.ports import Piece
from moldau.wire.primitives import ENCODE_FAILURES, SMALL, SMALL_MAX, Unencodable, string_length, uvarint
from moldau.wire.schema import FIXED, Field, Schema, Struct
from moldau.wire.source_builder import TABLE_SIZE, SourceBuilder

Encoder = Callable[[Any, list[Piece]], None]


def compile_encoder(schema: Schema, version: int) -> Encoder:
    """Return a function that appends the pieces of a message to a list, or raises `Unencodable`."""
    names: dict[str, Any] = {
        "ENCODE_FAILURES": ENCODE_FAILURES,
        "SMALL": SMALL,
        "Unencodable": Unencodable,
        "pack": struct.pack,
        "string_length": string_length,
        "uvarint": uvarint,
    }
    source = SourceBuilder(names)
    _Writer(source, schema, version).function()
    return source.compile("encode", f"encode {schema.name} {version}")


class _Writer:
    """Writes one encode function. In its code, `w` appends to the output."""

    def __init__(self, source: SourceBuilder, schema: Schema, version: int) -> None:
        self.source = source
        self.schema = schema
        self.version = version
        self.is_flexible = schema.flexible.has(version)
        self.write = source.write
        self.pending: list[tuple[str, str]] = []  # letters of `struct` and the expressions of the values

    def function(self) -> None:
        self.write(0, "def encode(message, out):")
        self.write(1, "w = out.append")
        self.write(1, "try:")
        self.write(2, "pass")
        self.struct(2, self.schema.root, "message")
        self.flush(2)
        self.write(1, "except ENCODE_FAILURES as error:")
        title = f"{self.schema.name} version {self.version}"
        self.write(2, f"raise Unencodable('{title}: ' + str(error)) from error")

    def flush(self, depth: int) -> None:
        """Write the pack call of the pending values. Needed before code that branches or appends."""
        if not self.pending:
            return
        letters = "".join(letter for letter, _ in self.pending)
        values = [value for _, value in self.pending]
        self.pending = []
        if letters == "B" * len(values):
            self.write(depth, f"w({bytes(int(value) for value in values)!r})")
        else:
            self.write(depth, f"w({self.source.format_method('pack', letters)}({', '.join(values)}))")

    def struct(self, depth: int, struct: Struct, holder: str) -> None:
        present = struct.at(self.version)
        plain = [each for each in present if not each.tagged.has(self.version)]
        for each in plain:
            self.value(depth, each, f"{holder}.{each.name}")
        if self.is_flexible:
            self.tagged_fields(depth, present[len(plain) :], holder)

    def tagged_fields(self, depth: int, tagged: list[Field], holder: str) -> None:
        if not tagged:
            self.pending.append(("B", "0"))
            return
        self.flush(depth)
        conditions = [self.is_not_default(each, f"{holder}.{each.name}") for each in tagged]
        self.write(depth, f"if {' or '.join(conditions)}:")
        sections, outer = self.source.variable("sections"), self.source.variable("w")
        self.write(depth + 1, f"{sections} = []; {outer} = w")
        for each, condition in zip(tagged, conditions, strict=True):
            self.write(depth + 1, f"if {condition}:")
            self.tagged_field(depth + 2, each, f"{holder}.{each.name}", sections)
        self.write(depth + 1, f"w = {outer}; w(uvarint(len({sections}))); w(b''.join({sections}))")
        self.write(depth, "else: w(b'\\0')")

    def tagged_field(self, depth: int, each: Field, value: str, sections: str) -> None:
        """A tagged field follows its size, so it is encoded into a separate list first. They are rare."""
        aside = self.source.variable("aside")
        self.write(depth, f"{aside} = []; w = {aside}.append")
        self.value(depth, each, value)
        self.flush(depth)
        self.write(depth, f"{aside} = b''.join({aside})")
        self.write(depth, f"{sections}.append(uvarint({each.tag}) + uvarint(len({aside})) + {aside})")

    def is_not_default(self, each: Field, value: str) -> str:
        """Return the condition that a tagged field differs from its default."""
        if each.default is None:
            return f"{value} is not None"
        if each.is_array:
            return f"({value} is None or len({value}) > 0)" if each.nullable.has(self.version) else f"len({value}) > 0"
        return f"{value} != {self.source.constant(each.default)}"

    def value(self, depth: int, each: Field, value: str) -> None:
        if each.kind in FIXED and not each.is_array:
            self.pending.append((FIXED[each.kind], value))
            return
        is_nullable = each.nullable.has(self.version)
        if each.struct and not each.is_array and not is_nullable:
            self.struct(depth, each.struct, value)
            return
        if is_nullable:
            self.flush(depth)
            self.write(depth, f"if {value} is None: w({self.null(each)!r})")
            self.write(depth, "else:")
            depth += 1
        if each.is_array:
            self.array(depth, each, value)
        elif each.struct:
            self.pending.append(("B", "1"))
            self.struct(depth, each.struct, value)
        else:
            self.sized(depth, each.kind, value)
        if is_nullable:
            self.flush(depth)

    def null(self, each: Field) -> bytes:
        if each.struct and not each.is_array:
            return b"\0" if each.tagged.has(self.version) else b"\xff"
        if self.is_flexible:
            return b"\0"
        return b"\xff\xff" if each.kind == "string" and not each.is_array else b"\xff\xff\xff\xff"

    def sized(self, depth: int, kind: str, value: str) -> None:
        content, size = self.source.variable("b"), self.source.variable("n")
        self.write(depth, f"{content} = {value}.encode()" if kind == "string" else f"{content} = {value}")
        self.write(depth, f"{size} = len({content})")
        self.length(depth, kind, size)
        self.flush(depth)
        self.write(depth, f"w({content})")

    def array(self, depth: int, each: Field, value: str) -> None:
        count = self.source.variable("n")
        self.write(depth, f"{count} = len({value})")
        self.length(depth, "array", count)
        self.flush(depth)
        if each.kind in FIXED and each.kind != "uuid":
            letter = FIXED[each.kind]
            table = self.source.format_table("pack", letter)
            slow = f"pack('>%d{letter}' % {count}, *{value})"
            self.write(depth, f"w({table}[{count}](*{value}) if {count} < {TABLE_SIZE} else {slow})")
            return
        element = self.source.variable("e")
        self.write(depth, f"for {element} in {value}:")
        if each.struct:
            self.struct(depth + 1, each.struct, element)
        elif each.kind == "uuid":
            self.pending.append((FIXED["uuid"], element))
        else:
            self.sized(depth + 1, each.kind, element)
        self.flush(depth + 1)

    def length(self, depth: int, kind: str, size: str) -> None:
        if not self.is_flexible:
            self.pending.append(("h" if kind == "string" else "i", size))
            return
        self.flush(depth)
        slow = f"string_length({size})" if kind == "string" else f"uvarint({size} + 1)"
        self.write(depth, f"w(SMALL[{size} + 1] if {size} < {SMALL_MAX} else {slow})")
