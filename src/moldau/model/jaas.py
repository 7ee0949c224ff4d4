"""JAAS login configurations as Kafka's settings hold them: `Module required option="value" …;`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from moldau.model.errors import InvalidConfig

CHARACTERS_MAX: Final = 1 << 20
_USER: Final = "user_"
_TOKEN: Final = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s"'=;]+)|([=;]))""", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_FLAGS: Final = ("required", "requisite", "sufficient", "optional")


@dataclass(frozen=True, slots=True)
class JaasConfig:
    """One login module with its options, which may be secrets."""

    module: str
    options: Mapping[str, str] = field(repr=False)

    @property
    def username(self) -> str | None:
        return self.options.get("username")

    @property
    def password(self) -> str | None:
        return self.options.get("password")

    @property
    def users(self) -> dict[str, str]:
        """The passwords of `user_NAME="password"` options, by name."""
        return {name.removeprefix(_USER): text for name, text in self.options.items() if name.startswith(_USER)}


def parse_jaas(text: str) -> JaasConfig:
    """Parse a configuration of one login module. Errors do not show the text, which contains passwords."""
    tokens = _tokens(text)
    if len(tokens) < 3 or tokens[-1] != (";", True) or any(is_mark for _, is_mark in tokens[:2]):
        raise InvalidConfig(
            'A JAAS configuration must be: MODULE required OPTION="value" …; with a semicolon at its end.'
        )
    module, flag = tokens[0][0], tokens[1][0]
    if flag.lower() not in _FLAGS:
        raise InvalidConfig(f"A JAAS configuration must have one of {', '.join(_FLAGS)} behind the login module.")
    options: dict[str, str] = {}
    rest = tokens[2:-1]
    for position in range(0, len(rest), 3):
        group = rest[position : position + 3]
        if [is_mark for _, is_mark in group] != [False, True, False] or group[1][0] != "=":
            raise InvalidConfig(f'Option {position // 3 + 1} of the JAAS configuration is not OPTION="value".')
        options[group[0][0]] = group[2][0]
    return JaasConfig(module, options)


def _tokens(text: str) -> list[tuple[str, bool]]:
    """Return words and marks, each with whether it is a mark."""
    if len(text) > CHARACTERS_MAX:
        raise InvalidConfig(f"A JAAS configuration may have {CHARACTERS_MAX} characters, and this has {len(text)}.")
    tokens: list[tuple[str, bool]] = []
    position, end = 0, len(text.rstrip())
    while position < end:
        found = _TOKEN.match(text, position, end)
        if found is None:
            raise InvalidConfig("The JAAS configuration has a quotation mark without its counterpart.")
        double, single, word, mark = found.groups()
        quoted = double if double is not None else single
        tokens.append((mark, True) if mark else (_ESCAPE.sub(r"\1", quoted) if quoted is not None else word, False))
        position = found.end()
    return tokens
