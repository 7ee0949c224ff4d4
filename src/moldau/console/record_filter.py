"""Filters of records: text, a key, or an expression in a small subset of Python.

    value.user.country == "CH" and value.amount > 100 and "trace" in headers

An expression is parsed, never executed by Python: only the node types below exist, each evaluates in time linear in
its operands, and their number is bounded. A part that a record does not have makes the comparison false.
"""

import ast
import json
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

from moldau.console.record_views import Decode, FoundRecord, printable

EXPRESSION_CHARACTERS_MAX: Final = 1_000
NODES_MAX: Final = 200
NAMES: Final = frozenset({"key", "value", "headers", "offset", "partition", "timestamp"})

Evaluate = Callable[[Mapping[str, Any]], Any]

_COMPARISONS: Final[Mapping[type[ast.cmpop], Callable[[Any, Any], Any]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
_FUNCTIONS: Final[Mapping[str, tuple[int, Callable[..., Any]]]] = {
    "len": (1, len),
    "lower": (1, lambda text: str(text).lower()),
    "startswith": (2, lambda text, prefix: str(text).startswith(str(prefix))),
    "endswith": (2, lambda text, suffix: str(text).endswith(str(suffix))),
    "contains": (2, lambda text, part: str(part) in str(text)),
}


class InvalidExpression(ValueError):
    """The expression is not in the subset; the message names the part."""


class _Missing(Exception):
    """The record has no such field."""


def text_filter(text: str) -> Callable[[FoundRecord], bool]:
    """Match records whose key, value or header values contain the text, ignoring the case of ASCII letters."""
    wanted = text.lower().encode()

    def matches(found: FoundRecord) -> bool:
        record = found.record
        fields = (record.key, record.value, *(value for _, value in record.headers))
        return any(each is not None and wanted in each.lower() for each in fields)

    return matches


def key_filter(key: str) -> Callable[[FoundRecord], bool]:
    """Match records with exactly this key."""
    wanted = key.encode()
    return lambda found: found.record.key == wanted


def expression_filter(text: str, decode: Decode) -> Callable[[FoundRecord], bool]:
    """Compile an expression; `InvalidExpression` if it is not in the subset. `decode` knows schemas of values."""
    if len(text) > EXPRESSION_CHARACTERS_MAX:
        raise InvalidExpression(f"The expression is longer than {EXPRESSION_CHARACTERS_MAX} characters.")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidExpression(f"The expression cannot be parsed: {str(error)[:200]}.") from None
    if sum(1 for _ in ast.walk(tree)) > NODES_MAX:
        raise InvalidExpression(f"The expression has more than {NODES_MAX} parts.")
    evaluate = _compile(tree.body)

    def matches(found: FoundRecord) -> bool:
        try:
            return bool(evaluate(_Fields(found, decode)))
        except _Missing:
            return False

    return matches


class _Fields(dict[str, Any]):
    """The names of an expression; key and value are decoded when they are used."""

    def __init__(self, found: FoundRecord, decode: Decode) -> None:
        record = found.record
        super().__init__(offset=record.offset, partition=found.place.partition, timestamp=record.timestamp)
        self._record, self._with_schema = record, decode

    def __missing__(self, name: str) -> Any:
        record = self._record
        if name == "headers":
            self[name] = {printable(each): _decode(value) for each, value in record.headers}
        else:
            data = record.key if name == "key" else record.value
            decoded = self._with_schema(data)
            self[name] = _decode(data) if decoded is None or decoded.error is not None else decoded.value
        return self[name]


def _decode(data: bytes | None) -> Any:
    """Return the value of JSON, else text."""
    if data is None:
        return None
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return data.decode("utf-8", "replace")


def _compile(node: ast.expr) -> Evaluate:
    match node:
        case ast.Constant(value=str() | int() | float() | bool() | None as value):
            return lambda _: value
        case ast.Name(id=name) if name in NAMES:
            return lambda fields: fields[name]
        case ast.Attribute(value=value, attr=name):
            return _access(_compile(value), name)
        case ast.Subscript(value=value, slice=ast.Constant(value=str() | int() as key)):
            return _access(_compile(value), key)
        case ast.BoolOp(op=ast.And(), values=values):
            return _all([_compile(each) for each in values])
        case ast.BoolOp(values=values):
            return _any([_compile(each) for each in values])
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _negation(_compile(operand))
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return lambda _: -value
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            parts = [_compile(each) for each in elements]
            return lambda fields: [part(fields) for part in parts]
        case ast.Compare(left=left, ops=ops, comparators=others):
            return _comparison([_compile(each) for each in (left, *others)], [_COMPARISONS[type(each)] for each in ops])
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            return _call(name, [_compile(each) for each in args])
        case _:
            part = ast.unparse(node)[:100]
            raise InvalidExpression(
                f"{part} is not supported; use {', '.join(sorted(NAMES))}, fields of JSON, comparisons, and, or, not, "
                f"in, and {', '.join(f'{each}()' for each in _FUNCTIONS)}."
            )


def _access(evaluate: Evaluate, key: str | int) -> Evaluate:
    def access(fields: Mapping[str, Any]) -> Any:
        container = evaluate(fields)
        if not isinstance(container, dict if isinstance(key, str) else list):
            raise _Missing
        entries: Any = container
        try:
            return entries[key]
        except (KeyError, IndexError):
            raise _Missing from None

    return access


def _truth(evaluate: Evaluate, fields: Mapping[str, Any]) -> bool:
    try:
        return bool(evaluate(fields))
    except _Missing:
        return False


def _all(parts: list[Evaluate]) -> Evaluate:
    return lambda fields: all(_truth(part, fields) for part in parts)


def _any(parts: list[Evaluate]) -> Evaluate:
    return lambda fields: any(_truth(part, fields) for part in parts)


def _negation(part: Evaluate) -> Evaluate:
    return lambda fields: not _truth(part, fields)


def _comparison(parts: list[Evaluate], compare: list[Callable[[Any, Any], Any]]) -> Evaluate:
    def evaluate(fields: Mapping[str, Any]) -> bool:
        values = [part(fields) for part in parts]
        try:
            return all(each(left, right) for each, left, right in zip(compare, values, values[1:], strict=False))
        except TypeError:  # such as a number compared with text
            return False

    return evaluate


def _call(name: str, parts: list[Evaluate]) -> Evaluate:
    arity, function = _FUNCTIONS[name]
    if len(parts) != arity:
        raise InvalidExpression(f"{name}() takes {arity} argument{'s' if arity > 1 else ''}.")

    def call(fields: Mapping[str, Any]) -> Any:
        try:
            return function(*(part(fields) for part in parts))
        except TypeError:
            raise _Missing from None

    return call
