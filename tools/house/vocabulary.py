"""The rule about words: names and prose use the terms of the field, not a dialect of this project.

A word matches in prose and as a part of an identifier (`_nobody_hears`, `NobodyHears`).
"""

import re
from collections.abc import Iterator

from house.source import Finding

WORDS = (
    "anew answer answered answering answers anybody befall befallen befalls befell comer comers complains complaint "
    "complaints errands everybody heard "
    "hears homeless hush lest nobody nudge nudges refusal refusals somebody tidings told unheard untold whence "
    "whisper whispers whoever whomever"
).split()

CHECKED = (
    "src/",
    "tests/",
    "tools/",
    "extra/",
    "examples/",
    "bench/",
    "docs/",
    "README.md",
    "ARCHITECTURE.md",
    "Makefile",
)
SUFFIXES = (".py", ".md", ".toml", "Makefile")

# Files that may contain the words, with the reason. CHANGELOG.md is not checked: entries of old releases stay.
ALLOWED_PATHS: dict[str, str] = {
    "tools/house/vocabulary.py": "lists the words",
    "tests/house/test_vocabulary.py": "tests the words",
}

_ALTERNATIVES = "|".join(WORDS)
_IN_CAMEL_CASE = "|".join(word.capitalize() for word in WORDS)
_DIALECT = re.compile(rf"(?<![a-z])(?i:{_ALTERNATIVES})(?![a-z])|(?<=[a-z])(?:{_IN_CAMEL_CASE})(?![a-z])")


def uses_dialect(path: str, text: str) -> Iterator[Finding]:
    """Yield a finding for each line with a word of the list."""
    if not path.startswith(CHECKED) or not path.endswith(SUFFIXES) or path in ALLOWED_PATHS:
        return
    for number, line in enumerate(text.splitlines(), 1):
        if found := _DIALECT.search(line):
            yield Finding(path, number, f"'{found.group()}': use the term of Kafka, Raft or Spark")
