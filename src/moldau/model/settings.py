"""Declaration of settings, once, beside the code they govern: name, type, default, bounds and documentation."""

import dataclasses
import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeVar

from moldau.model.errors import InvalidConfig

Settings = TypeVar("Settings")

SHORT_MAX: Final = (1 << 15) - 1
INT_MAX: Final = (1 << 31) - 1
LONG_MAX: Final = (1 << 63) - 1

# int() and float() also accept "1_000", "nan" and digits of other scripts; no number needs 40 digits.
_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,40}")
_NUMBER: Final = re.compile(r"[+-]?([0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40})([eE][+-]?[0-9]{1,3})?")


class Scope(Enum):
    """When a broker setting may change."""

    STATIC = "static"  # at start only
    PER_BROKER = "per-broker"  # for one broker while it runs
    CLUSTER = "cluster-wide"  # for one broker or all, while they run


class Kind(Enum):
    """The type of a setting's value, by Kafka's name and with DescribeConfigs' number."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


@dataclass(frozen=True, slots=True)
class Setting:
    """One declared setting."""

    name: str
    default: Any
    kind: Kind
    doc: str
    at_least: float | None = None
    at_most: float | None = None
    one_of: tuple[str, ...] = ()
    check: Callable[[Any], str | None] | None = None
    scope: Scope = Scope.STATIC
    has_effect: bool = True
    is_internal: bool = False  # accepted, but left out of listings, as Kafka does

    @property
    def is_sensitive(self) -> bool:
        """Whether the value must never be shown."""
        return self.kind is Kind.PASSWORD

    def parse(self, text: str) -> Any:
        """Parse a value; `InvalidConfig` explains which values are accepted."""
        value = self._convert(text.strip())
        self._check_bounds(value)
        return value

    def format(self, value: Any) -> str | None:
        """Format a value as Kafka does in files and DescribeConfigs responses."""
        if value is None:
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        return str(value)

    def _convert(self, text: str) -> Any:
        match self.kind:
            case Kind.BOOLEAN:
                return self._boolean(text)
            case Kind.INT | Kind.SHORT | Kind.LONG:
                return self._whole_number(text)
            case Kind.DOUBLE:
                return self._number(text)
            case Kind.LIST:
                return tuple(part.strip() for part in text.split(",") if part.strip())
            case _:
                return text

    def _boolean(self, text: str) -> bool:
        if text.lower() not in ("true", "false"):
            raise self._invalid(text, "it must be true or false")
        return text.lower() == "true"

    def _whole_number(self, text: str) -> int:
        if not _WHOLE_NUMBER.fullmatch(text):
            raise self._invalid(text, "it must be a whole number")
        value = int(text)
        bits = {Kind.SHORT: 15, Kind.INT: 31}.get(self.kind, 63)
        if not -(1 << bits) <= value < 1 << bits:
            raise self._invalid(text, f"it must fit in {bits + 1} bits")
        return value

    def _number(self, text: str) -> float:
        if not _NUMBER.fullmatch(text) or math.isinf(float(text)):
            raise self._invalid(text, "it must be a number")
        return float(text)

    def _check_bounds(self, value: Any) -> None:
        if self.at_least is not None and value < self.at_least:
            raise self._invalid(value, f"it must be at least {self.at_least}")
        if self.at_most is not None and value > self.at_most:
            raise self._invalid(value, f"it must be at most {self.at_most}")
        if self.one_of:
            for part in value if isinstance(value, tuple) else (value,):
                if part not in self.one_of:
                    raise self._invalid(value, f"it must be one of {', '.join(self.one_of)}")
        problem = self.check(value) if self.check else None
        if problem:
            raise self._invalid(value, problem)

    def _invalid(self, value: object, why: str) -> InvalidConfig:
        shown = "[hidden]" if self.is_sensitive else shorten(str(self.format(value)))
        return InvalidConfig(f"Invalid value {shown} for configuration {self.name}: {why}.")


def shorten(text: str, length_max: int = 200) -> str:
    """Shorten untrusted text for an error message."""
    return text if len(text) <= length_max else text[: length_max - 1] + "…"


_KINDS: dict[Any, Kind] = {bool: Kind.BOOLEAN, int: Kind.LONG, float: Kind.DOUBLE, str: Kind.STRING}


def setting(
    name: str,
    default: Any,
    *,
    doc: str,
    kind: Kind | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    one_of: tuple[str, ...] = (),
    check: Callable[[Any], str | None] | None = None,
    scope: Scope = Scope.STATIC,
    has_effect: bool = True,
    is_internal: bool = False,
) -> Any:
    """Declare a dataclass field as a setting. Its kind follows from the annotation unless given."""
    keywords = {
        "name": name,
        "default": default,
        "kind": kind,
        "doc": doc,
        "at_least": at_least,
        "at_most": at_most,
        "one_of": one_of,
        "check": check,
        "scope": scope,
        "has_effect": has_effect,
        "is_internal": is_internal,
    }
    return dataclasses.field(default=default, repr=kind is not Kind.PASSWORD, metadata={"setting": keywords})


_declared: dict[type, dict[str, Setting]] = {}


def declared(owner: type) -> Mapping[str, Setting]:
    """Return the settings of a settings class: field name to declaration, in order."""
    if owner not in _declared:
        hints = typing.get_type_hints(owner)
        _declared[owner] = {
            field.name: _complete(field.metadata["setting"], hints[field.name])
            for field in dataclasses.fields(owner)
            if "setting" in field.metadata
        }
    return _declared[owner]


def _complete(keywords: Mapping[str, Any], hint: Any) -> Setting:
    return Setting(**{**keywords, "kind": keywords["kind"] or _kind_of(hint)})


def _kind_of(hint: Any) -> Kind:
    if isinstance(hint, types.UnionType):  # a setting that may be unset: `int | None`
        (hint,) = (part for part in typing.get_args(hint) if part is not types.NoneType)
    if typing.get_origin(hint) is tuple:
        return Kind.LIST
    return _KINDS[hint]


def parse_settings(owner: type[Settings], texts: Mapping[str, str]) -> Settings:
    """Build an instance of `owner` from texts by setting name; ignore names of other classes."""
    return owner(**parse_fields(owner, texts))


def parse_fields(owner: type, texts: Mapping[str, str]) -> dict[str, Any]:
    """Parse the fields of `owner` present in `texts`, by field name."""
    return {field: each.parse(texts[each.name]) for field, each in declared(owner).items() if each.name in texts}
