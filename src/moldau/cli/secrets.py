"""Recognition of settings that are secrets. Too much is hidden rather than too little."""

import re
from collections.abc import Mapping
from typing import Final

HIDDEN: Final = "[hidden]"
# Patterns have no unbounded repetition before what they look for: a log may have lines of any length.
SECRET_WORD: Final = re.compile(
    r"(?:passw(?:or)?d|pwd|\buser_|passphrase|secret|token|credential|jaas|api[._-]?key|private[._-]?key)",
    re.IGNORECASE,
)
_KEY: Final = ".key"


def is_secret(name: str) -> bool:
    """Whether the value of the setting of this name is a secret."""
    return SECRET_WORD.search(name) is not None or name.lower().endswith(_KEY)


def without_secrets(settings: Mapping[str, str]) -> dict[str, str]:
    return {name: HIDDEN if is_secret(name) else value for name, value in settings.items()}
