"""Source mutations: a pattern inside one function of a source file, and the text that replaces it.

A mutation is anchored so that it survives refactoring. `function` names the function, method or class that holds the
code (empty: the whole module), and `search` is matched token by token, so line breaks, indentation and trailing commas
do not matter. `shape` identifies a mutation by its structure: identifiers and string literals are replaced by numbers
in order of appearance, so that a rename in the source and in the list leaves the shape, and the recorded verdict, as
they were.
"""

import ast
import hashlib
import keyword
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).resolve().parents[1]

_TOKEN = re.compile(r"\w+|\s+|[^\w\s]")
_LITERAL = re.compile(r"\"[^\"\n]*\"|'[^'\n]*'|\w+|[^\w\s]")
_CLOSING = frozenset(")]}")


class Mutation(Protocol):
    """In `function` of `file`, `search` becomes `replace`."""

    @property
    def name(self) -> str: ...

    @property
    def file(self) -> str: ...

    @property
    def function(self) -> str: ...

    @property
    def search(self) -> str: ...

    @property
    def replace(self) -> str: ...


def apply(mutation: Mutation, text: str) -> str:
    """Return the mutated file; raise ValueError if the mutation no longer matches exactly once."""
    start, end = function_span(text, mutation.function)
    found = list(search_pattern(mutation.search).finditer(text, start, end))
    if len(found) != 1:
        where = f"{mutation.file}:{mutation.function}".rstrip(":")
        raise ValueError(f"'{mutation.name}': the pattern matches {len(found)} times in {where}, expected 1")
    match = found[0]
    indent = match.start() - text.rfind("\n", 0, match.start()) - 1
    mutated = text[: match.start()] + _replacement(mutation, indent) + text[match.end() :]
    compile(mutated, mutation.file, "exec")
    return mutated


def function_span(text: str, function: str) -> tuple[int, int]:
    """Return the offsets of a function, method or class given by its qualified name; the whole text if empty."""
    if not function:
        return 0, len(text)
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    spans = [
        (starts[_first_line(node) - 1], starts[node.end_lineno or 0])
        for name, node in definitions(ast.parse(text))
        if name == function
    ]
    if len(spans) != 1:
        raise ValueError(f"{len(spans)} definitions are named {function}, expected 1")
    return spans[0]


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def definitions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, Definition]]:
    """Yield every function and class below `node` with its qualified name."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition):
            name = f"{prefix}{child.name}"
            yield name, child
            yield from definitions(child, f"{name}.")
        else:
            yield from definitions(child, prefix)


def search_pattern(search: str) -> re.Pattern[str]:
    """Compile a search text to a pattern that ignores layout."""
    tokens = _TOKEN.findall(search)
    while tokens and tokens[0].isspace():
        tokens.pop(0)
    while tokens and tokens[-1].isspace():
        tokens.pop()
    parts: list[str] = []
    for previous, token in zip([None, *tokens], tokens, strict=False):
        if token.isspace():
            continue
        if previous is not None:
            parts.append(r"\s+" if previous.isspace() and _are_words(parts, token) else r"\s*")
        if token in _CLOSING and parts:
            parts.append(r"(?:,\s*)?")
        parts.append(re.escape(token))
    before = r"\b" if search[:1].isspace() and tokens[0][0].isidentifier() else ""
    after = r"\b" if search[-1:].isspace() and tokens[-1][-1].isidentifier() else ""
    return re.compile(before + "".join(parts) + after)


def shape(mutation: Mutation) -> str:
    """Return a digest of the mutation that does not depend on names, string literals or layout."""
    numbers: dict[str, int] = {}
    digest = hashlib.sha256()
    for side in (mutation.search, mutation.replace):
        for token in _LITERAL.findall(side):
            if (token.isidentifier() and not keyword.iskeyword(token)) or token[0] in "\"'":
                token = f"#{numbers.setdefault(token, len(numbers))}"
            digest.update(f"{token} ".encode())
        digest.update(b"=>")
    return digest.hexdigest()[:16]


def problems(mutations: Iterable[Mutation]) -> list[str]:
    """Return what is wrong with a list of mutations as it stands beside the source."""
    wrong = []
    for mutation in mutations:
        try:
            apply(mutation, (ROOT / mutation.file).read_text())
        except (ValueError, SyntaxError, FileNotFoundError) as problem:
            wrong.append(f"'{mutation.name}': {problem}")
    return wrong


def _first_line(node: Definition) -> int:
    return min([node.lineno, *(each.lineno for each in node.decorator_list)])


def _are_words(parts: list[str], token: str) -> bool:
    return (parts[-1][-1].isalnum() and token[0].isalnum()) or "_" in (parts[-1][-1], token[0])


def _replacement(mutation: Mutation, indent: int) -> str:
    """Return the replacement without its outer white space, its lines shifted to the indentation of the match."""
    lines = mutation.replace.strip().split("\n")
    margin = len(mutation.search) - len(mutation.search.lstrip(" "))
    shift = indent - margin if margin else 0
    return "\n".join([lines[0], *(_shifted(line, shift) for line in lines[1:])])


def _shifted(line: str, shift: int) -> str:
    return " " * shift + line if shift >= 0 else line[min(-shift, len(line) - len(line.lstrip(" "))) :]
