"""Writes docs/promises.md and docs/mutants.md: each code as proven, partial or missing, from markers and mutants."""

import ast
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import mutants
from mutants import Mutant
from mutation import ROOT

TABLE = ROOT / "tools/promises.toml"
PAGE = ROOT / "docs/promises.md"
MUTANTS_PAGE = ROOT / "docs/mutants.md"

HEAD = """\
# Promises

What Moldau promises, and the evidence for it. *Proven*: for every part of the promise, at least one mutant of the
source makes a named test fail (`make mutants` repeats it). *Partial*: there are tests, or mutants for some of the
parts. *Missing*: nothing here shows it yet. [mutants.md](mutants.md) lists every mutant with the test that catches it.

`make docs` writes this page from `tools/promises.toml`, the `proves` markers of the tests and
`tools/mutants_caught.json`.
"""

MUTANTS_HEAD = """\
# Mutants

Every mutant of the source with the test that catches it, by promise ([promises.md](promises.md)). `make mutants`
applies them one at a time to a copy of the source. `make docs` writes this page from `tools/mutants.toml`.
"""


@dataclass(frozen=True)
class Promise:
    """One requirement code; a promise without named parts has one part, itself."""

    code: str
    text: str
    parts: tuple[str, ...] = ("",)


@dataclass(frozen=True)
class MarkedTest:
    """A test that carries `@pytest.mark.proves`."""

    id: str  # as pytest is given it, without parameters
    codes: frozenset[str]


@dataclass(frozen=True)
class Evidence:
    """All that speaks for the promises."""

    tests: tuple[MarkedTest, ...]
    caught: tuple[Mutant, ...]

    def tests_of(self, promise: Promise) -> list[MarkedTest]:
        return [test for test in self.tests if promise.code in test.codes]

    def mutants_of(self, promise: Promise, part: str) -> list[Mutant]:
        return [mutant for mutant in self.caught if mutant.code == promise.code and mutant.part == part]

    def state(self, promise: Promise) -> str:
        proven = [bool(self.mutants_of(promise, part)) for part in promise.parts]
        if all(proven):
            return "proven"
        return "partial" if any(proven) or self.tests_of(promise) else "missing"


def load_groups(text: str) -> dict[str, list[Promise]]:
    return {
        group["name"]: [
            Promise(entry["code"], entry["text"], tuple(entry.get("parts", ("",)))) for entry in group["promise"]
        ]
        for group in tomllib.loads(text)["group"]
    }


def marked_tests(path: str, text: str) -> Iterator[MarkedTest]:
    """The marked tests of one file: functions, methods of marked classes, or all of a marked module."""
    tree = ast.parse(text, path)
    of_module = frozenset().union(
        *(
            _codes([node.value])
            for node in tree.body
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "pytestmark"
        )
    )
    yield from _marked_in(tree.body, path, of_module)


def _marked_in(body: Sequence[ast.stmt], prefix: str, inherited: frozenset[str]) -> Iterator[MarkedTest]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _marked_in(node.body, f"{prefix}::{node.name}", inherited | _codes(node.decorator_list))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            codes = inherited | _codes(node.decorator_list)
            if codes:
                yield MarkedTest(f"{prefix}::{node.name}", codes)


def _codes(expressions: Sequence[ast.expr]) -> frozenset[str]:
    """The codes of every `pytest.mark.proves(...)` among some decorators, or in a list of marks."""
    calls = [node for each in expressions for node in ast.walk(each) if isinstance(node, ast.Call)]
    return frozenset(
        str(argument.value)
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "proves"
        for argument in call.args
        if isinstance(argument, ast.Constant)
    )


def gather() -> Evidence:
    """The evidence of this repository."""
    paths = sorted(path for folder in ("tests", "extra") for path in (ROOT / folder).rglob("test_*.py"))
    tests = [test for path in paths for test in marked_tests(path.relative_to(ROOT).as_posix(), path.read_text())]
    known = mutants.recorded()
    caught = [mutant for mutant in mutants.load(mutants.LIST.read_text()) if mutant.verdict_row in known]
    return Evidence(tuple(tests), tuple(caught))


def contradictions(groups: dict[str, list[Promise]], evidence: Evidence, listed: Sequence[Mutant]) -> list[str]:
    """Find unknown codes, unknown parts, and mutants whose test does not name its promise."""
    promises = {promise.code: promise for promises in groups.values() for promise in promises}
    wrong = [
        f"{test.id} proves {code}, which is no promise"
        for test in evidence.tests
        for code in sorted(test.codes)
        if code not in promises
    ]
    codes_of = {test.id: test.codes for test in evidence.tests}
    for mutant in listed:
        if mutant.code not in promises or mutant.part not in promises[mutant.code].parts:
            wrong.append(f"mutant '{mutant.name}': {mutant.code} has no part '{mutant.part}'")
        if mutant.code not in codes_of.get(mutant.test.split("[")[0], ()):
            wrong.append(f"mutant '{mutant.name}': {mutant.test} is not marked as proving {mutant.code}")
    return wrong


def render(groups: dict[str, list[Promise]], evidence: Evidence) -> str:
    states = [evidence.state(promise) for promises in groups.values() for promise in promises]
    counts = ", ".join(f"{states.count(state)} {state}" for state in ("proven", "partial", "missing"))
    sections = [_section(name, promises, evidence) for name, promises in groups.items()]
    return "\n".join([HEAD, f"**{len(states)} promises: {counts}.**\n", *sections])


def _section(name: str, promises: Sequence[Promise], evidence: Evidence) -> str:
    rows = [f"| {each.code} | {each.text} | {evidence.state(each)} |" for each in promises]
    table = ["| code | promise | state |", "|---|---|---|", *rows]
    return "\n".join([f"## {name}\n", *table, "", *(line for each in promises for line in _proof(each, evidence))])


def _proof(promise: Promise, evidence: Evidence) -> Iterator[str]:
    """One line per part with its number of mutants, then the files with more tests of the promise."""
    tests = evidence.tests_of(promise)
    if not tests:
        return
    yield f"**{promise.code}**\n"
    breaking = set()
    for part in promise.parts:
        found = evidence.mutants_of(promise, part)
        title = part or "the whole promise"
        yield f"- {title}: {_count(found)}" if found else f"- {title}: not proven yet"
        breaking |= {mutant.test.split("[")[0] for mutant in found}
    more = sorted({test.id.partition("::")[0] for test in tests if test.id not in breaking})
    if more:
        yield f"- more tests in {', '.join(f'[{_file_name(path)}](../{path})' for path in more)}"
    yield ""


def _count(found: Sequence[Mutant]) -> str:
    link = f"[{len(found)} mutant{'s' * (len(found) > 1)}](mutants.md#{found[0].code.lower()})"
    return f"{link}, first caught by {_link(found[0].test.split('[')[0])}"


def render_mutants(groups: dict[str, list[Promise]], evidence: Evidence) -> str:
    """The long list: a section per promise, a row per mutant."""
    lines = [MUTANTS_HEAD]
    for promise in (each for promises in groups.values() for each in promises):
        found = [mutant for mutant in evidence.caught if mutant.code == promise.code]
        if found:
            lines += [f"## {promise.code}\n", "| part | mutant | caught by |", "|---|---|---|"]
            lines += [f"| {each.part} | {each.name} | {_link(each.test.split('[')[0])} |" for each in found]
            lines.append("")
    return "\n".join(lines)


def _file_name(path: str) -> str:
    return path.rpartition("/")[2]


def _link(test: str) -> str:
    path, _, name = test.partition("::")
    words = name.rpartition("::")[2].removeprefix("test_").replace("_", " ")
    return f"[{words}](../{path})"


def pages() -> dict[Path, str]:
    """The text of both pages."""
    groups, evidence = load_groups(TABLE.read_text()), gather()
    return {PAGE: render(groups, evidence), MUTANTS_PAGE: render_mutants(groups, evidence)}


def main() -> int:
    for path, text in pages().items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
