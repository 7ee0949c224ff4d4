"""The source text of a codec function before it is compiled."""

import struct
from collections.abc import Callable
from typing import Any, Final

TABLE_SIZE: Final = 32  # arrays of numbers shorter than this have a prepared packer


class SourceBuilder:
    """Collects lines of Python with the globals they use, and allocates variable names."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.lines: list[str] = []
        self.names = names
        self._variables = 0

    def write(self, depth: int, line: str) -> None:
        self.lines.append("    " * depth + line)

    def variable(self, letter: str) -> str:
        self._variables += 1
        return f"{letter}{self._variables}"

    def constant(self, value: object) -> str:
        """Return a name bound to `value`, or its literal where that suffices."""
        if value is None or isinstance(value, (bool, int, str)) or value == ():
            return repr(value)
        name = f"K{len(self.names)}"
        self.names[name] = value
        return name

    def format_method(self, method: str, letters: str) -> str:
        """Return a name bound to the `pack` or `unpack_from` of a fixed layout."""
        name = f"{method}_{letters.replace('?', 'B_')}"
        if name not in self.names:
            self.names[name] = getattr(struct.Struct(">" + letters), method)
        return name

    def format_table(self, method: str, letter: str) -> str:
        """Return a name bound to a table of that method, indexed by array length."""
        name = f"{method}_table_{letter.replace('?', 'B_')}"
        if name not in self.names:
            self.names[name] = _table(method, letter)
        return name

    def compile(self, function: str, title: str) -> Callable[..., Any]:
        text = "\n".join(self.lines)
        exec(compile(text, f"<{title}>", "exec"), self.names)
        compiled: Callable[..., Any] = self.names[function]
        return compiled


_tables: dict[tuple[str, str], list[Callable[..., Any]]] = {}


def _table(method: str, letter: str) -> list[Callable[..., Any]]:
    """Tables are shared by all codecs: there are few number types."""
    key = (method, letter)
    if key not in _tables:
        _tables[key] = [getattr(struct.Struct(f">{length}{letter}"), method) for length in range(TABLE_SIZE)]
    return _tables[key]
