"""A user's own Python file as a step: what it must have is looked at before Spark starts, its errors are told."""

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
_MODULE: Final = "moldau_pipeline_step"  # not a name that a file beside it is likely to have


@dataclass(frozen=True, slots=True)
class FunctionStep:
    """A function of a Python file, from DataFrame to DataFrame."""

    source: str
    file: str
    name: str

    def check(self) -> None:
        """That it is Python, and has the function, as far as can be seen without running it."""
        try:
            names = _names(ast.parse(self.source, self.file))
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None)
            place = f"{self.file}:{line}" if line else self.file
            raise PipelineError(f"{place}: this is no Python: {getattr(error, 'msg', error)}") from error
        if self.name not in names and "*" not in names:
            functions = sorted(name for name, is_function in names.items() if is_function)
            there = f"; it has {', '.join(functions)}: choose one with {self.file}:NAME" if functions else ""
            raise PipelineError(f"{self.file} has no function {self.name}(frame){there}")

    def apply(self, frame: Any) -> Any:
        module = ModuleType(_MODULE)
        module.__file__ = self.file
        with _neighbours_importable(self.file), _known_by_name(module), self._told_in_a_line():
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
    def _told_in_a_line(self) -> Iterator[None]:
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
    """What the file binds at its top, and whether it is a function for sure; `*` if who knows what is imported."""
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
    """The same in a script: what the file does only as a program of its own is not done there either."""
    lines = source.encode().splitlines(keepends=True)
    for each in reversed(ast.parse(source).body):
        if isinstance(each, ast.If) and ast.unparse(each.test).replace('"', "'") in _IS_PROGRAM:
            first, last = each.test.lineno - 1, (each.test.end_lineno or each.test.lineno) - 1
            before, after = lines[first][: each.test.col_offset], lines[last][each.test.end_col_offset :]
            lines[first : last + 1] = [before + b"False" + after]
    return b"".join(lines).decode()


@contextmanager
def _neighbours_importable(file: str) -> Iterator[None]:
    """As for a program that is run: what lies beside the file can be imported, here on the driver."""
    folder = str(Path(file).absolute().parent)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


@contextmanager
def _known_by_name(module: ModuleType) -> Iterator[None]:
    """As a module that is imported: dataclasses look up there what annotations mean."""
    sys.modules[module.__name__] = module
    try:
        with _sent_as_it_is(module):
            yield
    finally:
        del sys.modules[module.__name__]


@contextmanager
def _sent_as_it_is(module: ModuleType) -> Iterator[None]:
    """Executors cannot import it by its name. Where Spark is not loaded, nothing is sent."""
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
    """A script whose imports from __future__, wherever a file in it has them, stand where Python wants them."""
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
    # The script begins with a string that says what it is.
    top = tree.body[0].end_lineno or 0
    names = sorted({alias.name for each in found for alias in each.names})
    lines.insert(top, f"\nfrom __future__ import {', '.join(names)}\n".encode())
    return b"".join(lines).decode()
