"""`ssl.principal.mapping.rules`: from the subject of a certificate to a user name, in Kafka's syntax.

    RULE:^CN=(.*?),OU=Services.*$/$1/L, RULE:^CN=(.*?),.*$/$1/, DEFAULT

Rules are tried in order. A pattern must match the whole subject; the replacement may contain `$1`, `$2`, …, and `L` or
`U` converts the result to lower or upper case. DEFAULT is the subject as it is. Subjects come from outside, so patterns
are evaluated by RE2, whose time grows with the subject alone; it has neither lookaround nor backreferences.
"""

import re
from dataclasses import dataclass
from typing import Any, Final

import re2

from moldau.model.errors import InvalidConfig
from moldau.model.settings import shorten
from moldau.model.units import MiB

MEMORY_BYTES_MAX: Final = 1 * MiB  # of one compiled pattern
NAME_CHARACTERS_MAX: Final = 4096
_RULE: Final = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|$)", re.S)
_PART: Final = re.compile(r"\\(.)|\$([0-9]+)", re.S)


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: Any  # None: DEFAULT
    replacement: str
    case: str

    def apply(self, subject: str) -> str | None:
        if self.pattern is None:
            return subject
        if self.pattern.fullmatch(subject) is None:
            return None
        # As in Java, every match is replaced, also an empty one at the end.
        name, position = "", 0
        for match in self.pattern.finditer(subject):
            name += subject[position : match.start()] + self._expand(match)
            position = match.end()
        name += subject[position:]
        return name.lower() if self.case == "L" else name.upper() if self.case == "U" else name

    def _expand(self, match: Any) -> str:
        def part(found: "re.Match[str]") -> str:
            if found[1] is not None:
                return found[1]
            digits, groups = found[2], self.pattern.groups
            used = max((n for n in range(1, len(digits) + 1) if int(digits[:n]) <= groups), default=0)
            if not used:
                return found[0]  # no such group: as it stands
            return (match.group(int(digits[:used])) or "") + digits[used:]

        return _PART.sub(part, self.replacement)


class PrincipalRules:
    """The parsed rules."""

    def __init__(self, rules: tuple[_Rule, ...], text: str) -> None:
        self._rules = rules
        self._text = text

    @classmethod
    def parse(cls, text: str) -> "PrincipalRules":
        rules, position = [], 0
        end = len(text.rstrip())
        while position < end:
            match = _RULE.match(text, position)
            if match is None:
                raise InvalidConfig(
                    f"the rule '{shorten(text[position:].strip(), 100)}' is neither DEFAULT nor "
                    "RULE:pattern/replacement/ with an optional L or U"
                )
            rules.append(_Rule(None if match[1] else _compiled(match[2]), match[3] or "", match[4] or ""))
            position = match.end()
        return cls(tuple(rules) or (_Rule(None, "", ""),), text)

    def apply(self, subject: str) -> str:
        """Return the user name; `InvalidConfig` if no rule applies."""
        for rule in self._rules:
            name = rule.apply(subject)
            if name is not None:
                return name[:NAME_CHARACTERS_MAX]
        raise InvalidConfig(f"no rule of ssl.principal.mapping.rules applies to {shorten(subject)}")


def _compiled(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MEMORY_BYTES_MAX
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0]
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise InvalidConfig(f"the pattern '{shorten(pattern, 100)}' cannot be used: {text}") from None
