"""The rules about the shape of the code: sizes, docstrings, comments, and a few statements nobody should write."""

import ast
import re
from collections.abc import Iterator

from house.source import Finding, Source

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60

PRINTING_PLACES = ("cli/", "pyspark_moldau/java.py")  # `python -m pyspark_moldau.java` is a command as well

_UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")
_BARE_IGNORE = re.compile(r"type:\s*ignore(?!\[)")


def is_too_long(source: Source) -> Iterator[Finding]:
    """A file is one noun: at most 500 lines. A function that passes 60 is two."""
    if source.is_generated:
        return
    lines = len(source.text.splitlines())
    if lines > FILE_LINES_MAX:
        yield Finding(source.path, lines, f"has {lines} lines; split it by noun before {FILE_LINES_MAX}")
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                yield source.finding(node, f"{node.name} has {length} lines; the most is {FUNCTION_LINES_MAX}")


def does_not_introduce_itself(source: Source) -> Iterator[Finding]:
    """Every module opens with what lives there."""
    if source.text.strip() and not ast.get_docstring(source.tree):
        yield Finding(source.path, 1, "a module opens with a docstring of one to three lines")


def leaves_work_behind(source: Source) -> Iterator[Finding]:
    """What is left to do is an issue, not a comment."""
    for line, comment in source.comments:
        if word := _UNFINISHED.search(comment):
            yield Finding(source.path, line, f"{word.group()} in a comment: do it, or open an issue")


def ignores_types_at_large(source: Source) -> Iterator[Finding]:
    """A silenced type error says which one it is."""
    for line, comment in source.comments:
        if _BARE_IGNORE.search(comment):
            yield Finding(source.path, line, "say which error is ignored: type: ignore[code]")


def swallows_errors(source: Source) -> Iterator[Finding]:
    """Catching everything and doing nothing hides our own bugs, unless a comment says why it cannot."""
    commented = {line for line, _ in source.comments}
    for node in source.nodes:
        if isinstance(node, ast.ExceptHandler) and _catches_all(node.type) and all(map(_does_nothing, node.body)):
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            if commented.isdisjoint(lines):
                yield source.finding(node, "every exception is caught, nothing is done, and nobody says why")


def _catches_all(kind: ast.expr | None) -> bool:
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(each is None or getattr(each, "id", "") in ("Exception", "BaseException") for each in kinds)


def _does_nothing(statement: ast.stmt) -> bool:
    is_constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return is_constant or isinstance(statement, ast.Pass | ast.Continue)


def prints(source: Source) -> Iterator[Finding]:
    """Only the command line speaks to a terminal; the rest logs."""
    if source.place and not source.place.startswith(PRINTING_PLACES):
        for node in source.nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                yield source.finding(node, "print() outside the command line")


def sleeps_in_a_test(source: Source) -> Iterator[Finding]:
    """A test waits for what it wants to see, never for a while, unless a comment says why there is nothing to see."""
    if not source.is_test:
        return
    commented = {line for line, _ in source.comments}
    for node in source.nodes:
        match node:
            case ast.ImportFrom(module="time", names=names) if any(name.name == "sleep" for name in names):
                yield source.finding(node, "from time import sleep: write time.sleep, so that it is seen")
            case ast.Attribute(value=ast.Name(id="time"), attr="sleep") if node.lineno not in commented:
                yield source.finding(node, "time.sleep in a test, and nobody says why")
