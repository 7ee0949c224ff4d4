"""JSON schemas as the compatibility rules see them.

A schema has one of these forms: `empty` (everything is valid), `false`, one type (`string`, `number`, `boolean`,
`null`, `object`, `array`), `enum`, `const`, `not`, `if`, or a combination (allOf, anyOf, oneOf) of further schemas. A
schema with several of them is an allOf of the parts, and a list of types is an anyOf.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import re2

from moldau.schemas.types import InvalidSchema

REFERENCES_MAX: Final = 100  # from one reference to the next
TYPE_KEYWORDS: Final[Mapping[str, frozenset[str]]] = {
    "object": frozenset(
        "properties required additionalProperties patternProperties minProperties maxProperties dependencies "
        "dependentRequired dependentSchemas propertyNames unevaluatedProperties".split()
    ),
    "array": frozenset(
        "items prefixItems additionalItems minItems maxItems uniqueItems contains minContains maxContains "
        "unevaluatedItems".split()
    ),
    "string": frozenset("minLength maxLength pattern".split()),
    "number": frozenset("minimum maximum exclusiveMinimum exclusiveMaximum multipleOf".split()),
}
COMBINATIONS: Final = ("allOf", "anyOf", "oneOf")


@dataclass(frozen=True, slots=True)
class Located:
    """A schema and the resolver of the references in it."""

    source: Any
    resolver: Any

    def inner(self, source: Any) -> "Located":
        return Located(source, self.resolver)

    def get(self, keyword: str) -> "Located | None":
        return self.inner(self.source[keyword]) if keyword in self.source else None


@dataclass(frozen=True, slots=True)
class Form:
    """A schema as the rules see it."""

    kind: str
    schema: Located
    origin: Any  # the schema that this form was found in, references resolved
    criterion: str = ""
    parts: tuple[Located, ...] = ()


def form_of(schema: Located) -> Form:
    """Resolve references and find the form of a schema."""
    schema = _resolve(schema)
    source = schema.source
    if source is False:
        return Form("false", schema, source)
    parts = list(_parts(source)) if isinstance(source, dict) else []
    if not parts:
        return Form("empty", schema, source)
    if len(parts) > 1:
        return Form("combined", schema, source, "allOf", tuple(schema.inner(each) for each in parts))
    return _single_form(schema, parts[0])


def _resolve(schema: Located) -> Located:
    for _ in range(REFERENCES_MAX):
        if not isinstance(schema.source, dict) or not isinstance(schema.source.get("$ref"), str):
            return schema
        resolved = schema.resolver.lookup(schema.source["$ref"])
        schema = Located(resolved.contents, resolved.resolver)
    raise InvalidSchema("references lead to references without end")


def _single_form(schema: Located, part: dict[str, Any]) -> Form:
    kind = part.get("type")
    if isinstance(kind, list):
        branches = [{**_keywords_of(part, each), "type": each} for each in kind]
        if len(branches) > 1:
            return Form("combined", schema, schema.source, "anyOf", tuple(schema.inner(each) for each in branches))
        part, kind = branches[0], branches[0]["type"]
    if kind is not None:
        return Form("number" if kind == "integer" else kind, schema.inner(part), schema.source)
    for criterion in COMBINATIONS:
        if criterion in part:
            inner = tuple(schema.inner(each) for each in part[criterion])
            return Form("combined", schema, schema.source, criterion, inner)
    return Form(next(each for each in ("enum", "const", "not", "if") if each in part), schema, schema.source)


def _parts(source: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Split a schema into what each form of it says."""
    if "type" in source:
        kinds = source["type"] if isinstance(source["type"], list) else [source["type"]]
        yield {"type": source["type"], **{k: v for kind in kinds for k, v in _keywords_of(source, kind).items()}}
    else:
        for kind in TYPE_KEYWORDS:
            if keywords := _keywords_of(source, kind):
                yield {"type": kind, **keywords}
    for keyword in ("enum", "const", *COMBINATIONS, "not"):
        if keyword in source:
            yield {keyword: source[keyword]}
    if "if" in source:
        yield {name: source[name] for name in ("if", "then", "else") if name in source}


def _keywords_of(source: dict[str, Any], kind: str) -> dict[str, Any]:
    known = TYPE_KEYWORDS.get("number" if kind == "integer" else kind, frozenset())
    return {name: value for name, value in source.items() if name in known}


def property_of(schema: Located, name: str) -> Located | None:
    properties = schema.source.get("properties", {})
    return schema.inner(properties[name]) if name in properties else None


def requires(schema: Located, name: str) -> bool:
    return name in schema.source.get("required", ())


def has_default(schema: Located) -> bool:
    """Whether a property has a default, which the reader fills in."""
    return isinstance(schema.source, dict) and "default" in schema.source


def is_open(schema: Located) -> bool:
    return not schema.source.get("patternProperties") and schema.source.get("additionalProperties", True) is True


def schema_of_undeclared(schema: Located, name: str) -> Located | None:
    """Return the schema that a property must satisfy which is not declared; None if there is none."""
    for pattern, pattern_schema in schema.source.get("patternProperties", {}).items():
        if _matches(pattern, name):
            return schema.inner(pattern_schema)
    rest = schema.source.get("additionalProperties", True)
    return None if isinstance(rest, bool) else schema.inner(rest)


def _matches(pattern: str, name: str) -> bool:
    try:
        return re2.search(pattern, name) is not None
    except re2.error as error:
        raise InvalidSchema(f"the pattern {pattern[:80]!r} cannot be compared: {error}") from error


def dependencies(schema: Located) -> dict[str, Any]:
    names = ("dependencies", "dependentRequired", "dependentSchemas")
    return {key: value for name in names for key, value in schema.source.get(name, {}).items()}


def all_items(schema: Located) -> Located | None:
    """The schema of all items, if there is one for all."""
    items = schema.source.get("items")
    return None if items is None or isinstance(items, list) or "prefixItems" in schema.source else schema.inner(items)


def item_schemas(schema: Located) -> list[Located]:
    """The schemas of the first items, one by one."""
    items = schema.source.get("prefixItems", schema.source.get("items"))
    return [schema.inner(each) for each in items] if isinstance(items, list) else []


def rest_of_items(schema: Located) -> Any:
    """The schema of the items after those with a schema of their own: `items` since draft 2020-12."""
    if "prefixItems" in schema.source:
        return schema.source.get("items", True)
    return schema.source.get("additionalItems", True)
