"""A user's own Python file as a step: what it must have is looked at before Spark starts, its errors are told."""

import ast
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moldau.pipelines.requirements import PipelineError


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
        scope: dict[str, Any] = {"__name__": "pipeline", "__file__": self.file}
        with _neighbours_importable(self.file), self._told_in_a_line():
            exec(compile(self.source, self.file, "exec"), scope)
            function = scope.get(self.name)
            if not callable(function):
                raise PipelineError(f"{self.file} has no function {self.name}(frame)")
            result = function(frame)
        if not hasattr(result, "writeStream"):
            kind = type(result).__name__
            raise PipelineError(f"{self.name}(frame) of {self.file} must return a DataFrame; it returned a {kind}")
        return result

    def code(self) -> str:
        return f"# {self.file}\n{self.source.rstrip()}\n\n\nframe = {self.name}(frame)\n"

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


@contextmanager
def _neighbours_importable(file: str) -> Iterator[None]:
    """As for a program that is run: what lies beside the file can be imported, here on the driver."""
    folder = str(Path(file).absolute().parent)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
