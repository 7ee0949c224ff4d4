"""Patterns of subscriptions: what real ones need is accepted, and expensive ones are rejected cheaply."""

from time import process_time
from typing import Any

import pytest
import re2

from moldau.broker.runtime.patterns import (
    PATTERN_BYTES_MAX,
    REPEATED_ATOMS_MAX,
    InvalidPattern,
    check_pattern,
    matching,
)

pytestmark = pytest.mark.proves("C2")
NAMES = [f"topic-name-number-{number}" for number in range(100)]


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("|".join(NAMES), NAMES[77]),
        (r"^orders-[a-z]+-(eu|us|ap)\.v[0-9]+$", "orders-new-eu.v2"),
        (".*", "anything"),
        (".{0,249}", "x" * 249),
        (r"(?i)ORDERS\.[^.]{1,100}", "orders.eu"),
        ("[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}", "123e4567-e89b-12d3-a456-426614174000"),
        (r"\pL+-\pN{1,3}", "a-12"),
        (r"\Qa{2}\E", "a{2}"),
        ("[({]a", "{a"),
    ],
)
def test_pattern_of_a_real_subscription_is_accepted(pattern: str, name: str) -> None:
    assert matching(pattern, [name, "other name"])[0] == name


@pytest.mark.parametrize(
    "pattern",
    [
        r"\pL" * 1_300,
        ("[^a]\\pL" * 4_000)[:27_000],
        "a" * (PATTERN_BYTES_MAX + 1),
        "é" * (PATTERN_BYTES_MAX // 2 + 1),
        "a{1,500}",
        "(a{1,30}){1,30}",
        "((a{1,7}){1,7}){1,9}",
        "(a?){1,500}",
        "a{20}{20}",
        "[^x]" * 1_000,
        "(a{100}" * 3,
        "a" + "{9999}" * 500,
    ],
)
def test_expensive_pattern_is_rejected_within_milliseconds(pattern: str) -> None:
    started_s = process_time()
    for _ in range(3):
        with pytest.raises(InvalidPattern):
            check_pattern(pattern)
    assert process_time() - started_s < 0.1


@pytest.mark.parametrize("pattern", ["(", "a)", "[", "*", "\udc80", "(?P<", "a{2,1}"])
def test_rejection_names_a_reason(pattern: str) -> None:
    with pytest.raises(InvalidPattern, match=r"\w"):
        check_pattern(pattern)


def test_rejections_are_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[bytes] = []
    original: Any = re2.compile

    def compile_and_count(pattern: bytes, options: Any) -> Any:
        compiled.append(pattern)
        return original(pattern, options)

    monkeypatch.setattr(re2, "compile", compile_and_count)
    for _ in range(3):
        with pytest.raises(InvalidPattern):
            check_pattern("[a-z-rejected-and-cached")
    assert len(compiled) == 1


def test_largest_accepted_repetition_compiles_quickly() -> None:
    started_s = process_time()
    for number in range(10):
        check_pattern(f"x{number}" + f"[^a]{{{REPEATED_ATOMS_MAX}}}")
    assert process_time() - started_s < 0.2
