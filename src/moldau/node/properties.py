"""Parsers of settings: Java properties, TOML, and `name=value` from the command line."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from moldau.model.errors import InvalidConfig
from moldau.model.settings import shorten


class Entry(NamedTuple):
    """One setting as written, with its file and line."""

    name: str
    text: str
    where: str


_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_BLANK: Final = " \t\f"
_ESCAPED: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_LETTERS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_CODES: Final = {character: letter for letter, character in _LETTERS.items()}
_IN_NAMES: Final = re.compile(r"[\\=:#! \t\n\r\f]")
_IN_VALUES: Final = re.compile(r"[\\\t\n\r\f]|^ ")
# The name ends at the first unescaped blank, '=' or ':'.
_NAME_AND_VALUE: Final = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)


def read_properties(text: str, file: str) -> list[Entry]:
    """Return the entries of a properties file in order."""
    return [_read_line(line, f"{file}:{number}") for number, line in _logical_lines(text.removeprefix("\ufeff"))]


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines without comments, joined at trailing backslashes and numbered by their first."""
    partial: tuple[int, str] | None = None
    for number, line in enumerate(_LINE_END.split(text), start=1):
        line = line.lstrip(_BLANK)
        if partial is None and (not line or line[0] in "#!"):
            continue
        first, so_far = partial or (number, "")
        if _is_continued(line):
            partial = (first, so_far + line[:-1])
        else:
            partial = None
            yield first, so_far + line
    if partial:
        yield partial


def _is_continued(line: str) -> bool:
    """An odd number of trailing backslashes continues the line; two stand for one."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _read_line(line: str, where: str) -> Entry:
    match = _NAME_AND_VALUE.fullmatch(line)
    assert match  # every line matches; the name may be empty
    name, value = (_unescape(part, where) for part in match.groups())
    if not name:
        raise InvalidConfig(f"{where}: the name of the setting is missing.")
    return Entry(name, value.strip(), where)


def _unescape(text: str, where: str) -> str:
    def replace(match: re.Match[str]) -> str:
        escaped = match[1]
        if len(escaped) == 5:
            return chr(int(escaped[1:], 16))
        if escaped == "u":
            raise InvalidConfig(f"{where}: \\u must be followed by four hexadecimal digits.")
        return _LETTERS.get(escaped, escaped)

    return _ESCAPED.sub(replace, text)


def format_properties(settings: Mapping[str, str]) -> str:
    """Return the lines of a properties file, which `read_properties` and Java read back unchanged."""
    return "".join(f"{_escape(name, _IN_NAMES)}={_escape(text, _IN_VALUES)}\n" for name, text in settings.items())


def _escape(text: str, pattern: re.Pattern[str]) -> str:
    return pattern.sub(lambda match: "\\" + _CODES.get(match[0], match[0]), text)


def read_toml(text: str, file: str) -> list[Entry]:
    """Return the entries of a TOML file. Tables are prefixes: `[log] dirs = "x"` is `log.dirs`."""
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfig(f"{file}: {error}") from None
    lines = _toml_lines(text)
    return [Entry(name, value, f"{file}:{lines[name]}" if name in lines else file) for name, value in _flat(tree, file)]


def _flat(tree: Mapping[str, Any], file: str, prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, file, f"{prefix}{key}.")
        else:
            yield prefix + key, _toml_text(value, f"{file}: {prefix}{key}")


def _toml_text(value: object, where: str) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str() | int() | float():
            return str(value).strip()
        case list():
            return ",".join(_toml_text(each, where) for each in value)
        case _:
            raise InvalidConfig(f"{where}: a value must be a string, a number, true or false, or a list of these.")


def _toml_lines(text: str) -> dict[str, int]:
    """Return the line number of each name, found line by line, because tomllib does not report it."""
    lines: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if line.startswith("[") and line.endswith("]"):
            table = _plain_key(line.strip("[]")) + "."
        elif "=" in line and not line.startswith("#"):
            lines.setdefault(table + _plain_key(line.partition("=")[0]), number)
    return lines


def _plain_key(key: str) -> str:
    return re.sub(r"[\s\"']", "", key)


def read_override(argument: str) -> Entry:
    """Parse one `name=value` from the command line."""
    name, equals, value = argument.partition("=")
    if not equals or not name.strip():
        raise InvalidConfig(f"-c {shorten(name)}: must be name=value.")
    return Entry(name.strip(), value.strip(), "-c")
