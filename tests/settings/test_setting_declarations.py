"""Parsing of a setting: types, bounds, and errors that explain accepted values."""

from dataclasses import dataclass

import pytest

from moldau.model.errors import InvalidConfig
from moldau.model.settings import Kind, Setting, declared, parse_settings, setting


@dataclass(frozen=True, kw_only=True)
class SampleSettings:
    """A settings class with one setting of each type."""

    name: str = setting("pond.name", "blue", doc="Its name.")
    depth_m: int = setting("pond.depth.m", 3, at_least=1, at_most=9, doc="Its depth.")
    share: float = setting("pond.share", 0.5, at_least=0, at_most=1, doc="A share.")
    is_frozen: bool = setting("pond.frozen", False, doc="Whether it is frozen.")
    fish: tuple[str, ...] = setting("pond.fish", ("carp",), one_of=("carp", "pike"), doc="What swims there.")
    ducks: int | None = setting("pond.ducks", None, kind=Kind.SHORT, doc="How many ducks there are.")


def _one(kind: Kind) -> Setting:
    return Setting("a.name", None, kind, "A setting.")


def test_settings_are_parsed_by_name_and_others_ignored() -> None:
    pond = parse_settings(
        SampleSettings, {"pond.depth.m": "7", "pond.fish": "pike, carp,", "pond.frozen": "TRUE", "lake": "x"}
    )
    assert pond == SampleSettings(depth_m=7, fish=("pike", "carp"), is_frozen=True)


def test_kind_follows_from_the_annotation() -> None:
    kinds = {each.name: each.kind for each in declared(SampleSettings).values()}
    assert list(kinds.values()) == [Kind.STRING, Kind.LONG, Kind.DOUBLE, Kind.BOOLEAN, Kind.LIST, Kind.SHORT]


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("pond.depth.m", "0", "at least 1"),
        ("pond.depth.m", "10", "at most 9"),
        ("pond.depth.m", "deep", "whole number"),
        ("pond.depth.m", "", "whole number"),
        ("pond.depth.m", "1_0", "whole number"),
        ("pond.depth.m", "٣", "whole number"),
        ("pond.depth.m", "9" * 100_000, "whole number"),
        ("pond.share", "nan", "number"),
        ("pond.share", "1e999", "number"),
        ("pond.share", "1.5", "at most 1"),
        ("pond.frozen", "yes", "true or false"),
        ("pond.fish", "carp,eel", "carp, pike"),
        ("pond.ducks", "40000", "16 bits"),
    ],
)
def test_invalid_value_error_names_setting_and_accepted_values(name: str, text: str, word: str) -> None:
    with pytest.raises(InvalidConfig, match=word) as error:
        parse_settings(SampleSettings, {name: text})
    assert name in str(error.value)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(("kind", "largest"), [(Kind.SHORT, 2**15 - 1), (Kind.INT, 2**31 - 1), (Kind.LONG, 2**63 - 1)])
def test_integers_are_limited_to_their_size(kind: Kind, largest: int) -> None:
    assert _one(kind).parse(str(largest)) == largest
    assert _one(kind).parse(str(-largest - 1)) == -largest - 1
    for text in (str(largest + 1), str(-largest - 2)):
        with pytest.raises(InvalidConfig, match="bits"):
            _one(kind).parse(text)


@pytest.mark.parametrize(
    ("text", "value"), [("0.5", 0.5), ("1.7976931348623157E308", 1.7976931348623157e308), ("-2", -2)]
)
def test_numbers_are_parsed_like_java(text: str, value: float) -> None:
    assert _one(Kind.DOUBLE).parse(text) == value


def test_secret_is_not_shown_in_an_error() -> None:
    secret = Setting("a.password", None, Kind.PASSWORD, "A secret.", check=lambda _: "it is too short")
    with pytest.raises(InvalidConfig) as error:
        secret.parse("hunter2")
    assert secret.is_sensitive
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(("value", "text"), [(True, "true"), (("a", "b"), "a,b"), (5, "5"), (0.5, "0.5"), (None, None)])
def test_values_are_formatted_like_kafka(value: object, text: str | None) -> None:
    assert _one(Kind.STRING).format(value) == text
