"""JSON values: validated when they are written, and read as they are.

Patterns of a schema are matched by RE2, whose time is linear: a schema comes from outside, and a pattern may be made to
take exponential time.
"""

import json
import math
from collections.abc import Iterator
from typing import Any, Final

import re2
from jsonschema.exceptions import ValidationError
from jsonschema.validators import Draft7Validator, extend, validator_for

from moldau.schemas.json_schema import JsonSchema
from moldau.schemas.types import UndecodableValue, UnencodableValue

REASON_CHARS_MAX: Final = 300


class JsonCodec:
    """Reads and writes values of one schema."""

    def __init__(self, schema: JsonSchema) -> None:
        source = schema.source
        kind = validator_for(source, default=Draft7Validator)
        self._validator = extend(kind, {"pattern": _pattern, "patternProperties": _pattern_properties})(
            source, registry=schema.registry
        )

    def decode(self, payload: bytes) -> Any:
        try:
            return json.loads(payload, parse_constant=_reject, parse_float=_finite)
        except (ValueError, RecursionError) as error:
            raise UndecodableValue(f"not JSON: {error}") from None

    def encode(self, value: Any) -> bytes:
        try:
            self._validator.validate(value)
            return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        except ValidationError as error:
            place = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in error.absolute_path)
            raise UnencodableValue(f"{place}: {error.message[:REASON_CHARS_MAX]}") from None
        except (ValueError, RecursionError) as error:
            raise UnencodableValue(f": {error or 'nested too deeply'}") from None


def _pattern(_: Any, pattern: str, instance: Any, __: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not _search(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Any, instance: Any, _: Any) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    for pattern, schema in patterns.items():
        for name, value in instance.items():
            if _search(pattern, name):
                yield from validator.descend(value, schema, path=name, schema_path=pattern)


def _search(pattern: str, text: str) -> bool:
    try:
        return re2.search(pattern, text) is not None
    except re2.error as error:
        raise UnencodableValue(f": the pattern {pattern[:80]!r} is not supported: {error}") from None


def _reject(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is too large")
    return number
