"""Generates one class per message, for all its versions, from the schema."""

from typing import Any, ClassVar

from moldau.wire.schema import Field, Schema, Struct


class Message:
    """Base of all messages and nested structs: keyword construction, equality, repr."""

    __slots__: tuple[str, ...] = ()

    API_KEY: ClassVar[int] = -1

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(_is_same(getattr(self, name), getattr(other, name)) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]  # fields may change

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__name__}({fields})"


class Request(Message):
    """Base of all requests. For type checkers it is generic in its response: see `messages.pyi`."""

    __slots__ = ()

    def __class_getitem__(cls, response: object) -> "type[Request]":
        return cls


def _is_same(one: object, other: object) -> bool:
    """Compare, treating a list and a tuple as equal: decoders produce either."""
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return list(one) == list(other)
    return one == other


def make_class(schema: Schema) -> type[Message]:
    """Return the class of a message, with the classes of its nested structs as attributes."""
    nested = {name: _make(struct, f"{schema.name}.{name}", {}) for name, struct in schema.nested.items()}
    # Constructors come last: one struct may build another as its default.
    for name, each in nested.items():
        each.__init__ = _constructor(schema.nested[name], nested)
    base = Request if schema.role == "request" else Message
    top = _make(schema.root, schema.name, {"API_KEY": schema.key, **nested}, base)
    top.__init__ = _constructor(schema.root, nested)
    made: type[Message] = top
    return made


def _make(struct: Struct, qualified_name: str, attributes: dict[str, Any], base: type[Message] = Message) -> Any:
    slots = tuple(each.name for each in struct.fields)
    own = {"__slots__": slots, "__module__": "moldau.wire.messages", "__qualname__": qualified_name}
    return type(struct.name, (base,), {**own, **attributes})


def _constructor(struct: Struct, nested: dict[str, Any]) -> Any:
    """A compiled function with keyword arguments is several times faster than a loop over `**fields`."""
    names = {f"default_{each.name}": each.default for each in struct.fields} | nested
    arguments = "".join(f", {each.name}=default_{each.name}" for each in struct.fields)
    lines = [f"def __init__(self{', *' if arguments else ''}{arguments}):"]
    lines += [f"    self.{each.name} = {_initial(each)}" for each in struct.fields]
    lines += ["    return None"]
    exec(compile("\n".join(lines), f"<constructor of {struct.name}>", "exec"), names)
    return names["__init__"]


def _initial(each: Field) -> str:
    if each.struct is None or each.is_array or each.is_optional_struct:
        return each.name
    return f"{each.kind}() if {each.name} is None else {each.name}"
