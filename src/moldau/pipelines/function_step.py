"""A user's Python file as a step: checked before Spark starts, its errors reported in one line."""

import ast
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from moldau.pipelines.requirements import PipelineError

_IS_PROGRAM: Final = ("__name__ == '__main__'", "'__main__' == __name__")
_MODULE: Final = "moldau_pipeline_step"  # unlikely to collide with a sibling module


@dataclass(frozen=True, slots=True)
class FunctionStep:
    """A function from DataFrame to DataFrame, in a user's Python file."""

    source: str
    file: str
    name: str

    def check(self) -> None:
        """Check the syntax, and that the function exists, without running the file."""
        try:
            names = _names(ast.parse(self.source, self.file))
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None)
            place = f"{self.file}:{line}" if line else self.file
            raise PipelineError(f"{place}: invalid Python: {getattr(error, 'msg', error)}") from error
        if self.name not in names and "*" not in names:
            functions = sorted(name for name, is_function in names.items() if is_function)
            there = f"; it has {', '.join(functions)}: choose one with {self.file}:NAME" if functions else ""
            raise PipelineError(f"{self.file} has no function {self.name}(frame){there}")

    def apply(self, frame: Any) -> Any:
        module = ModuleType(_MODULE)
        module.__file__ = self.file
        with _siblings_importable(self.file), _registered(module), self._one_line_errors():
            exec(compile(self.source, self.file, "exec"), module.__dict__)
            function = getattr(module, self.name, None)
            if not callable(function):
                raise PipelineError(f"{self.file} has no function {self.name}(frame)")
            result = function(frame)
        if not hasattr(result, "writeStream"):
            kind = type(result).__name__
            raise PipelineError(f"{self.name}(frame) of {self.file} must return a DataFrame; it returned a {kind}")
        return result

    def code(self) -> str:
        return f"# {self.file}\n{_as_imported(self.source).rstrip()}\n\n\nframe = {self.name}(frame)\n"

    @contextmanager
    def _one_line_errors(self) -> Iterator[None]:
        try:
            yield
        except PipelineError:
            raise
        except Exception as error:
            mine = [each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename == self.file]
            place = f"{self.file}:{mine[-1]}" if mine else self.file
            words = (str(error) or "it failed").splitlines()[0]
            raise PipelineError(f"{place}: {type(error).__name__}: {words}") from error


def _names(module: ast.Module) -> dict[str, bool]:
    """Return top-level names and whether each is certainly a function; `*` stands for a star import."""
    found: dict[str, bool] = {}
    for each in ast.walk(module):
        match each:
            case ast.FunctionDef(name=name):
                found[name] = found.get(name, False) or each in module.body
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                found |= {alias.asname or alias.name: False for alias in aliases}
            case ast.Name(id=name, ctx=ast.Store()):
                found.setdefault(name, False)
    return found


def _as_imported(source: str) -> str:
    """Return the source without its `if __name__ == '__main__'` block, as an import would run it."""
    lines = source.encode().splitlines(keepends=True)
    for each in reversed(ast.parse(source).body):
        if isinstance(each, ast.If) and ast.unparse(each.test).replace('"', "'") in _IS_PROGRAM:
            first, last = each.test.lineno - 1, (each.test.end_lineno or each.test.lineno) - 1
            before, after = lines[first][: each.test.col_offset], lines[last][each.test.end_col_offset :]
            lines[first : last + 1] = [before + b"False" + after]
    return b"".join(lines).decode()


@contextmanager
def _siblings_importable(file: str) -> Iterator[None]:
    """Let the file import its sibling modules on the driver, as a script could."""
    folder = str(Path(file).absolute().parent)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


@contextmanager
def _registered(module: ModuleType) -> Iterator[None]:
    """Register the module in `sys.modules`, where dataclasses resolve annotations."""
    sys.modules[module.__name__] = module
    try:
        with _pickled_by_value(module):
            yield
    finally:
        del sys.modules[module.__name__]


@contextmanager
def _pickled_by_value(module: ModuleType) -> Iterator[None]:
    """Pickle the module by value, because executors cannot import it. Does nothing if Spark is not loaded."""
    cloudpickle = sys.modules.get("pyspark.cloudpickle")
    if cloudpickle is None:
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def with_future_first(script: str) -> str:
    """Move the `from __future__` imports of embedded files to the top of the script."""
    tree = ast.parse(script)
    found = [each for each in tree.body if isinstance(each, ast.ImportFrom) and each.module == "__future__"]
    if not found:
        return script
    lines = script.encode().splitlines(keepends=True)
    for each in reversed(found):
        first, last = each.lineno - 1, (each.end_lineno or each.lineno) - 1
        before, after = lines[first][: each.col_offset], lines[last][each.end_col_offset :]
        is_alone = not before.strip() and not after.partition(b"#")[0].strip()
        lines[first : last + 1] = [] if is_alone else [before + b"pass" + after]
    # The script starts with a docstring.
    top = tree.body[0].end_lineno or 0
    names = sorted({alias.name for each in found for alias in each.names})
    lines.insert(top, f"\nfrom __future__ import {', '.join(names)}\n".encode())
    return b"".join(lines).decode()
