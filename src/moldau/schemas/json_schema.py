"""JSON Schema: schemas checked by the library jsonschema; references are resolved among registered schemas only."""

import json
from collections.abc import Iterator
from typing import Any, Final

import jsonschema_specifications
from jsonschema.exceptions import SchemaError
from jsonschema.validators import Draft7Validator, validator_for
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT7

from moldau.schemas.json_difference import Comparison
from moldau.schemas.json_forms import Located
from moldau.schemas.types import Dependencies, InvalidSchema

BASE_URI: Final = ""
# Keywords whose values are data: what looks like a reference there is none.
DATA_KEYWORDS: Final = frozenset({"const", "default", "enum", "examples"})


class JsonSchema:
    """A parsed JSON schema and the registry of the schemas that it refers to."""

    def __init__(self, source: Any, dependencies: Dependencies) -> None:
        if not isinstance(source, dict | bool):
            raise InvalidSchema("a JSON schema is an object, true or false")
        self.source = source
        try:
            validator_for(source, default=Draft7Validator).check_schema(source)
            resources = [(BASE_URI, _resource(source))]
            resources += [(name, _resource(json.loads(text))) for name, text in dependencies.items()]
            registry: Registry[Any] = jsonschema_specifications.REGISTRY.with_resources(resources)
            root = source.get("$id", BASE_URI) if isinstance(source, dict) else BASE_URI
            if root:
                registry = registry.with_resource(root, _resource(source))
            self.registry = registry
            self.root = Located(source, registry.resolver(root))
            for reference, resolver in _references(source, self.root.resolver):
                resolver.lookup(reference)
        except SchemaError as error:
            raise InvalidSchema(f"{error.message} at /{'/'.join(map(str, error.path))}") from error
        except Unresolvable as error:
            raise InvalidSchema(f"the reference {error.ref} cannot be resolved") from error
        except RecursionError as error:
            raise InvalidSchema("nested too deeply") from error
        except (TypeError, ValueError, AttributeError) as error:
            raise InvalidSchema(str(error) or type(error).__name__) from error
        self.canonical = json.dumps(source, separators=(",", ":"), ensure_ascii=False)

    @property
    def normalized(self) -> str:
        """With the keys of objects in order."""
        return json.dumps(self.source, separators=(",", ":"), ensure_ascii=False, sort_keys=True)

    def incompatibilities(self, earlier: Any) -> list[str]:
        if not isinstance(earlier, JsonSchema):
            return ["the earlier schema is not JSON Schema"]
        try:
            return [str(each) for each in Comparison().differences(earlier.root, self.root)]
        except RecursionError as error:
            raise InvalidSchema("nested too deeply") from error


def parse(text: str, dependencies: Dependencies) -> JsonSchema:
    try:
        source = json.loads(text)
    except ValueError as error:
        raise InvalidSchema(f"not JSON: {error}") from error
    except RecursionError as error:
        raise InvalidSchema("nested too deeply") from error
    return JsonSchema(source, dependencies)


def _resource(source: Any) -> "Resource[Any]":
    return Resource.from_contents(source, default_specification=DRAFT7)


def _references(schema: Any, resolver: Any) -> Iterator[tuple[str, Any]]:
    """Yield every `$ref` with the resolver of its place."""
    if isinstance(schema, dict):
        if isinstance(schema.get("$id"), str):
            resolver = resolver.in_subresource(_resource(schema))
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"], resolver
        for name, value in schema.items():
            if name not in DATA_KEYWORDS:
                yield from _references(value, resolver)
    elif isinstance(schema, list):
        for each in schema:
            yield from _references(each, resolver)
