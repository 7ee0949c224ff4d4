"""Differences between two JSON schemas, and which of them keep earlier data valid.

The rules are those of Confluent's registry. An object is open if it accepts properties that it does not declare,
closed if it rejects them, and partially open if they must satisfy a schema. A property may be added where the earlier
schema was not open, because earlier data cannot have it with another meaning; it may be removed where the later schema
is open.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from moldau.schemas.json_forms import (
    Form,
    Located,
    all_items,
    dependencies,
    form_of,
    has_default,
    is_open,
    item_schemas,
    property_of,
    requires,
    rest_of_items,
    schema_of_undeclared,
)
from moldau.schemas.types import InvalidSchema

STEPS_MAX: Final = 20_000  # comparisons of subschemas; combinations within combinations multiply them

COMPATIBLE: Final = frozenset(
    """
    SCHEMA_REMOVED TYPE_EXTENDED MAX_LENGTH_INCREASED MAX_LENGTH_REMOVED MIN_LENGTH_DECREASED MIN_LENGTH_REMOVED
    PATTERN_REMOVED MAXIMUM_INCREASED MAXIMUM_REMOVED MINIMUM_DECREASED MINIMUM_REMOVED EXCLUSIVE_MAXIMUM_INCREASED
    EXCLUSIVE_MAXIMUM_REMOVED EXCLUSIVE_MINIMUM_DECREASED EXCLUSIVE_MINIMUM_REMOVED MULTIPLE_OF_REDUCED
    MULTIPLE_OF_REMOVED REQUIRED_ATTRIBUTE_WITH_DEFAULT_ADDED REQUIRED_ATTRIBUTE_REMOVED DEPENDENCY_ARRAY_NARROWED
    DEPENDENCY_ARRAY_REMOVED DEPENDENCY_SCHEMA_REMOVED MAX_PROPERTIES_INCREASED MAX_PROPERTIES_REMOVED
    MIN_PROPERTIES_DECREASED MIN_PROPERTIES_REMOVED ADDITIONAL_PROPERTIES_ADDED ADDITIONAL_PROPERTIES_EXTENDED
    MAX_ITEMS_INCREASED MAX_ITEMS_REMOVED MIN_ITEMS_DECREASED MIN_ITEMS_REMOVED UNIQUE_ITEMS_REMOVED
    ADDITIONAL_ITEMS_ADDED ADDITIONAL_ITEMS_EXTENDED ENUM_ARRAY_EXTENDED COMBINED_TYPE_EXTENDED PRODUCT_TYPE_NARROWED
    SUM_TYPE_EXTENDED NOT_TYPE_NARROWED
    """.split()
)
# Limits: a keyword and the name of its differences.
LIMITS: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "object": (("maxProperties", "MAX_PROPERTIES"), ("minProperties", "MIN_PROPERTIES")),
    "array": (("maxItems", "MAX_ITEMS"), ("minItems", "MIN_ITEMS")),
    "string": (("maxLength", "MAX_LENGTH"), ("minLength", "MIN_LENGTH")),
    "number": (
        ("maximum", "MAXIMUM"),
        ("minimum", "MINIMUM"),
        ("exclusiveMaximum", "EXCLUSIVE_MAXIMUM"),
        ("exclusiveMinimum", "EXCLUSIVE_MINIMUM"),
    ),
}


class Difference(NamedTuple):
    """One change."""

    error: str
    path: str

    def __str__(self) -> str:
        return f"{{errorType:'{self.error}', path:'#{self.path or '/'}'}}"


class Comparison:
    """Compares an earlier schema with a later one; finds what makes earlier data invalid."""

    def __init__(self) -> None:
        self._steps = 0
        self._open: set[tuple[int, int]] = set()  # pairs that are being compared, which ends recursion

    def differences(self, earlier: Located, later: Located) -> list[Difference]:
        return self._compare(earlier, later, "")

    def _compare(self, earlier: Located, later: Located, path: str) -> list[Difference]:
        self._steps += 1
        if self._steps > STEPS_MAX:
            raise InvalidSchema("the schemas are too complex to compare")
        before, after = form_of(earlier), form_of(later)
        pair = (id(before.origin), id(after.origin))
        if pair in self._open:
            return []
        self._open.add(pair)
        try:
            return self._compare_forms(before, after, path)
        finally:
            self._open.discard(pair)

    def _compare_optional(self, earlier: Located | None, later: Located | None, path: str) -> list[Difference]:
        if later is None:
            return []
        if earlier is None:
            return _found("SCHEMA_ADDED", path)
        return self._compare(earlier, later, path)

    def _compare_forms(self, before: Form, after: Form, path: str) -> list[Difference]:
        if (before.kind == "combined") != (after.kind == "combined") and self._fits_one_part(before, after, path):
            return []
        if before.kind != after.kind:
            return [] if before.kind == "false" or after.kind == "empty" else _found("TYPE_CHANGED", path)
        compare: dict[str, Callable[[Form, Form, str], list[Difference]]] = {
            "combined": self._compare_combined,
            "object": self._compare_objects,
            "array": self._compare_arrays,
            "string": self._compare_strings,
            "number": self._compare_numbers,
            "enum": _compare_enums,
            "const": _compare_constants,
            "if": _compare_constants,
            "not": self._compare_not,
        }
        return compare[before.kind](before, after, path) if before.kind in compare else []

    def _fits_one_part(self, before: Form, after: Form, path: str) -> bool:
        """A schema and a combination: of one part, or of alternatives of which one accepts the earlier data."""
        if after.kind == "combined":
            if len(after.parts) == 1 or after.criterion != "allOf":
                return any(not self._compare(before.schema, part, path) for part in after.parts)
            return False
        return len(before.parts) == 1 and not self._compare(before.parts[0], after.schema, path)

    # Combinations

    def _compare_combined(self, before: Form, after: Form, path: str) -> list[Difference]:
        if not _accepts_criterion(before, after):
            return _found("COMBINED_TYPE_CHANGED", path)
        found: list[Difference] = []
        if len(before.parts) != len(after.parts):
            kind = "PRODUCT_TYPE" if after.criterion == "allOf" else "SUM_TYPE"
            change = "EXTENDED" if len(after.parts) > len(before.parts) else "NARROWED"
            found += _found(f"{kind}_{change}", path)
        edges = [
            [
                number
                for number, later in enumerate(after.parts)
                if not self._compare(earlier, later, f"{path}/{before.criterion}/{index}")
            ]
            for index, earlier in enumerate(before.parts)
        ]
        if _matching_size(edges) < min(len(before.parts), len(after.parts)):
            found += _found("COMBINED_TYPE_SUBSCHEMAS_CHANGED", path)
        return found

    def _compare_not(self, before: Form, after: Form, path: str) -> list[Difference]:
        """Exclusions may only be removed."""
        excluded, still = (each.schema.inner(each.schema.source["not"]) for each in (before, after))
        return _found("NOT_TYPE_EXTENDED", f"{path}/not") if self._compare(still, excluded, path) else []

    # Objects

    def _compare_objects(self, before: Form, after: Form, path: str) -> list[Difference]:
        earlier, later = before.schema, after.schema
        found = [
            each for name in _property_names(earlier, later) for each in self._property(earlier, later, name, path)
        ]
        found += self._compare_dependencies(earlier, later, path)
        found += self._compare_rest(earlier, later, "additionalProperties", "ADDITIONAL_PROPERTIES", path)
        return found + _compare_limits("object", earlier.source, later.source, path)

    def _property(self, earlier: Located, later: Located, name: str, path: str) -> list[Difference]:
        place = f"{path}/properties/{name}"
        before, after = property_of(earlier, name), property_of(later, name)
        if before is not None and after is not None:
            return [*self._newly_required(earlier, later, name, after, path), *self._compare(before, after, place)]
        if before is not None:
            return self._removed_property(before, later, name, place)
        assert after is not None
        return self._added_property(earlier, later, name, after, place)

    def _newly_required(
        self, earlier: Located, later: Located, name: str, after: Located, path: str
    ) -> list[Difference]:
        is_added = requires(later, name) and not requires(earlier, name)
        return (
            _found("REQUIRED_ATTRIBUTE_ADDED", f"{path}/required/{name}") if is_added and not has_default(after) else []
        )

    def _removed_property(self, before: Located, later: Located, name: str, place: str) -> list[Difference]:
        if is_open(later):
            return []
        if (rest := schema_of_undeclared(later, name)) is None:
            return [] if before.source is False else _found("PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL", place)
        found = self._compare(before, rest, place)
        return found and [*found, *_found("PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", place)]

    def _added_property(
        self, earlier: Located, later: Located, name: str, after: Located, place: str
    ) -> list[Difference]:
        if is_open(earlier):
            return [] if form_of(after).kind == "empty" else _found("PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL", place)
        found: list[Difference] = []
        if (rest := schema_of_undeclared(earlier, name)) is not None and (found := self._compare(rest, after, place)):
            found = [*found, *_found("PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", place)]
        if requires(later, name) and not has_default(after):
            found = [*found, *_found("REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL", place)]
        return found

    def _compare_dependencies(self, earlier: Located, later: Located, path: str) -> list[Difference]:
        found: list[Difference] = []
        before, after = dependencies(earlier), dependencies(later)
        for name, later_one in after.items():
            place, earlier_one = f"{path}/dependencies/{name}", before.get(name)
            if isinstance(later_one, list):
                if not isinstance(earlier_one, list):
                    found += _found("DEPENDENCY_ARRAY_ADDED", place)
                elif not set(later_one) <= set(earlier_one):
                    found += _found("DEPENDENCY_ARRAY_EXTENDED", place)
            elif earlier_one is None or isinstance(earlier_one, list):
                found += _found("DEPENDENCY_SCHEMA_ADDED", place)
            else:
                found += self._compare(earlier.inner(earlier_one), later.inner(later_one), place)
        return found

    def _compare_rest(self, earlier: Located, later: Located, keyword: str, name: str, path: str) -> list[Difference]:
        """additionalProperties and additionalItems."""
        before, after = earlier.source.get(keyword, True), later.source.get(keyword, True)
        place = f"{path}/{keyword}"
        if (before is False) != (after is False):
            return _found(f"{name}_REMOVED", place) if after is False else []
        if isinstance(after, bool):
            return []
        if isinstance(before, bool):
            return _found(f"{name}_NARROWED", place)
        return self._compare(earlier.inner(before), later.inner(after), place)

    # Arrays

    def _compare_arrays(self, before: Form, after: Form, path: str) -> list[Difference]:
        earlier, later = before.schema, after.schema
        found = self._compare_optional(all_items(earlier), all_items(later), f"{path}/items")
        found += self._compare_positions(earlier, later, path)
        rest_before, rest_after = (each.inner({"additionalItems": rest_of_items(each)}) for each in (earlier, later))
        found += self._compare_rest(rest_before, rest_after, "additionalItems", "ADDITIONAL_ITEMS", path)
        if later.source.get("uniqueItems") and not earlier.source.get("uniqueItems"):
            found += _found("UNIQUE_ITEMS_ADDED", f"{path}/uniqueItems")
        return found + _compare_limits("array", earlier.source, later.source, path)

    def _compare_positions(self, earlier: Located, later: Located, path: str) -> list[Difference]:
        found: list[Difference] = []
        before, after = item_schemas(earlier), item_schemas(later)
        for index in range(max(len(before), len(after))):
            place = f"{path}/items/{index}"
            if index < len(before) and index < len(after):
                found += self._compare(before[index], after[index], place)
            elif index < len(before):
                found += self._removed_item(before[index], later, place)
            else:
                found += self._added_item(earlier, after[index], place)
        return found

    def _removed_item(self, before: Located, later: Located, place: str) -> list[Difference]:
        rest = rest_of_items(later)
        if rest is True or before.source is False:
            return []
        if rest is False:
            return _found("ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL", place)
        found = self._compare(before, later.inner(rest), place)
        return found and [*found, *_found("ITEM_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", place)]

    def _added_item(self, earlier: Located, after: Located, place: str) -> list[Difference]:
        rest = rest_of_items(earlier)
        if rest is False:
            return []
        if rest is True:
            return [] if form_of(after).kind == "empty" else _found("ITEM_ADDED_TO_OPEN_CONTENT_MODEL", place)
        found = self._compare(earlier.inner(rest), after, place)
        return found and [*found, *_found("ITEM_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", place)]

    # Strings and numbers

    def _compare_strings(self, before: Form, after: Form, path: str) -> list[Difference]:
        earlier, later = before.schema.source, after.schema.source
        found = _compare_limits("string", earlier, later, path)
        pattern, later_pattern = earlier.get("pattern"), later.get("pattern")
        if later_pattern is not None and pattern != later_pattern:
            found += _found("PATTERN_ADDED" if pattern is None else "PATTERN_CHANGED", f"{path}/pattern")
        return found

    def _compare_numbers(self, before: Form, after: Form, path: str) -> list[Difference]:
        earlier, later = before.schema.source, after.schema.source
        found = _compare_limits("number", earlier, later, path)
        if later.get("type") == "integer" and earlier.get("type") != "integer":
            found += _found("TYPE_NARROWED", path)
        step, later_step = earlier.get("multipleOf"), later.get("multipleOf")
        if later_step is not None and step != later_step:
            if step is None:
                found += _found("MULTIPLE_OF_ADDED", f"{path}/multipleOf")
            elif step % later_step != 0:
                expanded = "EXPANDED" if later_step % step == 0 else "CHANGED"
                found += _found(f"MULTIPLE_OF_{expanded}", f"{path}/multipleOf")
        return found


def _found(error: str, path: str) -> list[Difference]:
    """A difference, unless it keeps earlier data valid."""
    return [] if error in COMPATIBLE else [Difference(error, path)]


def _compare_limits(kind: str, earlier: Any, later: Any, path: str) -> list[Difference]:
    found: list[Difference] = []
    for keyword, name in LIMITS[kind]:
        before, after = earlier.get(keyword), later.get(keyword)
        if after is None or before == after:
            continue
        change = "ADDED" if before is None else "INCREASED" if after > before else "DECREASED"
        found += _found(f"{name}_{change}", f"{path}/{keyword}")
    return found


def _compare_enums(before: Form, after: Form, path: str) -> list[Difference]:
    earlier, later = before.schema.source["enum"], after.schema.source["enum"]
    if all(each in later for each in earlier):
        return []
    change = "NARROWED" if all(each in earlier for each in later) else "CHANGED"
    return _found(f"ENUM_ARRAY_{change}", f"{path}/enum")


def _compare_constants(before: Form, after: Form, path: str) -> list[Difference]:
    """Constants and conditions must be equal."""
    names = ("const", "if", "then", "else")
    is_equal = all(before.schema.source.get(name) == after.schema.source.get(name) for name in names)
    return [] if is_equal else _found("CONDITION_CHANGED" if before.kind == "if" else "CONST_CHANGED", path)


def _accepts_criterion(before: Form, after: Form) -> bool:
    if before.criterion == after.criterion or after.criterion == "anyOf":
        return True
    return len(before.parts) == 1 and (after.criterion == "oneOf" or len(after.parts) == 1)


def _matching_size(edges: list[list[int]]) -> int:
    """Return the size of a maximum matching: `edges` are the right neighbours of each left node."""
    taken: dict[int, int] = {}

    def assign(left: int, seen: set[int]) -> bool:
        for right in edges[left]:
            if right not in seen:
                seen.add(right)
                if right not in taken or assign(taken[right], seen):
                    taken[right] = left
                    return True
        return False

    return sum(assign(left, set()) for left in range(len(edges)))


def _property_names(earlier: Located, later: Located) -> list[str]:
    return list(dict.fromkeys([*earlier.source.get("properties", {}), *later.source.get("properties", {})]))
