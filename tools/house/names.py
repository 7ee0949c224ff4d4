"""The rules about names: words that say nothing, and test files that would hide one another."""

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from house.source import Finding, Source

EMPTY_WORDS = frozenset("manager util utils helper helpers common misc impl base data info processor".split())

# Where the word is the thing itself: the folder of the data, and the messages whose type is "data" in Kafka's schemas.
# `data_source` is Spark's word for what `format(…)` names.
ALLOWED_NAMES = frozenset({"LogDir", "data_records", "data_source"})

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def says_nothing(source: Source) -> Iterator[Finding]:
    """No Manager, Util, Helper, Common, Misc, Impl, Base, Data, Info or Processor in the name of a class or module."""
    if not source.is_generated:
        stem = PurePosixPath(source.path).stem
        yield from (Finding(source.path, 1, why) for why in _complaints(stem))
        for node in source.nodes:
            if isinstance(node, ast.ClassDef):
                yield from (source.finding(node, why) for why in _complaints(node.name))


def _complaints(name: str) -> Iterator[str]:
    if name not in ALLOWED_NAMES:
        words = {word.lower() for word in _WORD.findall(name)}
        yield from (f"{name}: the word '{word}' says nothing" for word in sorted(words & EMPTY_WORDS))


def hides_another_test(sources: Sequence[Source]) -> Iterator[Finding]:
    """Test folders are no packages, so two files of one name would be one module."""
    seen: dict[str, str] = {}
    for source in sources:
        if source.is_test:
            name = PurePosixPath(source.path).name
            if name in seen and name != "conftest.py":
                yield Finding(source.path, 1, f"has the same name as {seen[name]}")
            seen.setdefault(name, source.path)
