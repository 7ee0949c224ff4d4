"""The source options for registered values: `valueFormat`, `schemaRegistry`, `valueSubject` and `valueErrors`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark_moldau.options.offset_limits import OptionError

FORMATS: Final = ("avro", "protobuf", "json")
_FORMAT: Final = "valueformat"
_REGISTRY: Final = "schemaregistry"
_SUBJECT: Final = "valuesubject"
_ERRORS: Final = "valueerrors"
_SETTINGS: Final = "schema.registry."


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueOptions:
    """The registry, its settings, and the subject whose latest schema gives the columns."""

    kind: str
    registry: str
    subject: str
    settings: Mapping[str, str]
    has_error_column: bool


def value_options(raw: Mapping[str, str]) -> ValueOptions | None:
    """Parse the options; None if values stay binary."""
    given = {name.lower(): text for name, text in raw.items()}
    if _FORMAT not in given:
        unused = next((name for name in (_REGISTRY, _SUBJECT, _ERRORS) if name in given), None)
        if unused is not None:
            raise OptionError(f"Option '{unused}' has no effect without the option 'valueFormat'.")
        return None
    if _REGISTRY not in given:
        raise OptionError("Option 'valueFormat' needs the option 'schemaRegistry', the URL of a schema registry.")
    return ValueOptions(
        kind=_choice(given, _FORMAT, FORMATS),
        registry=given[_REGISTRY],
        subject=given.get(_SUBJECT) or f"{_topic(given)}-value",
        settings={name: text for name, text in given.items() if name.startswith(_SETTINGS)},
        has_error_column=_choice({_ERRORS: "fail", **given}, _ERRORS, ("fail", "column")) == "column",
    )


def _choice(given: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    chosen = given[name].lower()
    if chosen not in choices:
        raise OptionError(f"Option '{name}' is {given[name]}; it must be {' or '.join(choices)}.")
    return chosen


def _topic(given: Mapping[str, str]) -> str:
    topics = [each.strip() for each in given.get("subscribe", "").split(",") if each.strip()]
    if len(topics) != 1:
        raise OptionError("Set the option 'valueSubject', unless exactly one topic is subscribed.")
    return topics[0]
