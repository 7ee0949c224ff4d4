"""Rules about names: words without meaning, modules named by a gerund, test files of the same name."""

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from house.source import Finding, Source

EMPTY_WORDS = frozenset("manager util utils helper helpers common misc impl base data info processor".split())

# Kafka's schemas have messages of type "data"; Spark's `format(…)` names a data source.
ALLOWED_NAMES = frozenset({"data_records", "data_source"})

# Modules and packages whose names end in "-ing", with the reason. Others are named by a noun of the domain.
GERUND_MODULES: dict[str, str] = {
    "src/moldau/broker/transactions/error_mapping.py": "a mapping is a noun",
    "src/moldau/client/broker_ranking.py": "a ranking is a noun",
    "src/moldau/testing": "the usual name of a package for tests",
    "src/moldau/wire/framing.py": "framing is the term for length-prefixed messages",
}

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def has_empty_name(source: Source) -> Iterator[Finding]:
    """No Manager, Util, Helper, Common, Misc, Impl, Base, Data, Info or Processor in the name of a class or module."""
    if not source.is_generated:
        stem = PurePosixPath(source.path).stem
        yield from (Finding(source.path, 1, message) for message in _empty_words(stem))
        for node in source.nodes:
            if isinstance(node, ast.ClassDef):
                yield from (source.finding(node, message) for message in _empty_words(node.name))


def _empty_words(name: str) -> Iterator[str]:
    if name not in ALLOWED_NAMES:
        words = {word.lower() for word in _WORD.findall(name)}
        yield from (f"{name}: the word '{word}' has no meaning; name the thing" for word in sorted(words & EMPTY_WORDS))


def is_named_by_gerund(source: Source) -> Iterator[Finding]:
    """A module or package is named by a noun, not by a gerund, unless `GERUND_MODULES` has a reason."""
    path = PurePosixPath(source.path)
    named = path.parent if path.name == "__init__.py" else path
    if not source.is_test and named.stem.endswith("ing") and str(named) not in GERUND_MODULES:
        yield Finding(source.path, 1, f"{named.stem} is a gerund: name the module by a noun, or add a reason")


def duplicates_test_file_name(sources: Sequence[Source]) -> Iterator[Finding]:
    """Test directories are not packages, so two files of the same name would be the same module."""
    seen: dict[str, str] = {}
    for source in sources:
        if source.is_test:
            name = PurePosixPath(source.path).name
            if name in seen and name != "conftest.py":
                yield Finding(source.path, 1, f"has the same name as {seen[name]}")
            seen.setdefault(name, source.path)
