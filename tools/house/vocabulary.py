"""The rule about words: names and prose use the terms of the field, not a dialect of this project.

A word matches in prose and as a part of an identifier (`_nobody_hears`, `NobodyHears`). Paths that are not clean yet
have a budget in `vocabulary_budget.toml`, which may only shrink; every other path has none.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from house.source import Finding

WORDS = (
    "anew anybody befall befallen befalls befell comer comers complains complaint complaints errands everybody heard "
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

BUDGET_FILE = Path(__file__).with_name("vocabulary_budget.toml")

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


def budgets() -> dict[str, int]:
    """Return the number of findings still allowed, by path prefix."""
    return {str(path): int(count) for path, count in tomllib.loads(BUDGET_FILE.read_text())["budget"].items()}


def over_budget(findings: Iterable[Finding], allowed: dict[str, int]) -> list[str]:
    """Return the findings outside the budgets, and the paths whose budget is exceeded."""
    used: Counter[str] = Counter()
    outside = []
    for finding in findings:
        prefix = max((each for each in allowed if finding.path.startswith(each)), key=len, default=None)
        if prefix is None:
            outside.append(str(finding))
        else:
            used[prefix] += 1
    exceeded = [
        f"{prefix}: {used[prefix]} lines with words of the list, at most {count} are left from before"
        for prefix, count in allowed.items()
        if used[prefix] > count
    ]
    return outside + exceeded
