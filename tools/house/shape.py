"""Rules about code: sizes, docstrings, comments, and a few banned statements."""

import ast
import re
from collections.abc import Iterator

from house.source import Finding, Source

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60

PRINTING_PLACES = ("cli/", "pyspark_moldau/java.py")  # `python -m pyspark_moldau.java` is a command as well

_TO_DO_WORDS = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")
_BARE_IGNORE = re.compile(r"type:\s*ignore(?!\[)")


def is_too_long(source: Source) -> Iterator[Finding]:
    """A file has at most 500 lines, a function at most 60."""
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


def lacks_module_docstring(source: Source) -> Iterator[Finding]:
    """Every module starts with a docstring."""
    if source.text.strip() and not ast.get_docstring(source.tree):
        yield Finding(source.path, 1, "the module has no docstring")


def has_to_do_comment(source: Source) -> Iterator[Finding]:
    """Open work is tracked in issues, not in comments."""
    for line, comment in source.comments:
        if word := _TO_DO_WORDS.search(comment):
            yield Finding(source.path, line, f"{word.group()} in a comment: do it, or open an issue")


def has_bare_type_ignore(source: Source) -> Iterator[Finding]:
    """A type ignore names the error code."""
    for line, comment in source.comments:
        if _BARE_IGNORE.search(comment):
            yield Finding(source.path, line, "name the ignored error: type: ignore[code]")


def swallows_errors(source: Source) -> Iterator[Finding]:
    """Catching every exception and doing nothing hides bugs; a comment must give the reason."""
    commented = {line for line, _ in source.comments}
    for node in source.nodes:
        if isinstance(node, ast.ExceptHandler) and _catches_all(node.type) and all(map(_does_nothing, node.body)):
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            if commented.isdisjoint(lines):
                yield source.finding(node, "every exception is ignored, without a comment that gives the reason")


def _catches_all(kind: ast.expr | None) -> bool:
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(each is None or getattr(each, "id", "") in ("Exception", "BaseException") for each in kinds)


def _does_nothing(statement: ast.stmt) -> bool:
    is_constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return is_constant or isinstance(statement, ast.Pass | ast.Continue)


def prints_outside_cli(source: Source) -> Iterator[Finding]:
    """Only the command line prints; other code logs."""
    if source.place and not source.place.startswith(PRINTING_PLACES):
        for node in source.nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                yield source.finding(node, "print() outside the command line")


def sleeps_in_test(source: Source) -> Iterator[Finding]:
    """A test waits for a condition, not for a time; a comment must give the reason for a sleep."""
    if not source.is_test:
        return
    commented = {line for line, _ in source.comments}
    for node in source.nodes:
        match node:
            case ast.ImportFrom(module="time", names=names) if any(name.name == "sleep" for name in names):
                yield source.finding(node, "from time import sleep: write time.sleep, so that this rule sees it")
            case ast.Attribute(value=ast.Name(id="time"), attr="sleep") if node.lineno not in commented:
                yield source.finding(node, "time.sleep in a test, without a comment that gives the reason")
