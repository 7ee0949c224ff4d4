"""Profiles: named files of client settings, one of which is current. Only their owner may read them.

A profile is a properties file with the settings of Kafka's Java clients, `bootstrap.servers` included, so that it also
serves as `--command-config` of Kafka's own tools:

    $XDG_CONFIG_HOME/moldau/profiles/NAME.properties
    $XDG_CONFIG_HOME/moldau/current-profile               the name of the current profile
"""

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from moldau.cli.errors import CommandError, usage_error
from moldau.cli.files import read_text, write_private
from moldau.model.settings import shorten
from moldau.node.properties import format_properties, read_properties

PROFILE_VARIABLE: Final = "MOLDAU_PROFILE"
NAME_LENGTH_MAX: Final = 64
_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{NAME_LENGTH_MAX - 1}}}")
_SUFFIX: Final = ".properties"
_OPEN_TO_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_LOCATION: Final = ".location"


@dataclass(frozen=True, slots=True)
class Profiles:
    """The profiles in a directory."""

    directory: Path

    def names(self) -> list[str]:
        return sorted(path.name.removesuffix(_SUFFIX) for path in self._profiles.glob(f"*{_SUFFIX}"))

    def current(self) -> str | None:
        """The name of the current profile, if there is one."""
        try:
            return read_text(self._current).strip() or None
        except FileNotFoundError:
            return None

    def read(self, name: str) -> dict[str, str]:
        """Return the settings of a profile, whose file must be its owner's alone."""
        path = self.path(name)
        try:
            mode = path.stat().st_mode
        except FileNotFoundError:
            known = ", ".join(self.names()) or "none; create one by moldau profile create NAME"
            raise CommandError(f"there is no profile {name}; there are: {known}") from None
        if mode & _OPEN_TO_OTHERS:
            raise CommandError(
                f"other users may access {path} (mode {stat.S_IMODE(mode):04o}), which has passwords: chmod 600 {path}"
            )
        return {entry.name: entry.text for entry in read_properties(read_text(path), str(path))}

    def write(self, name: str, settings: Mapping[str, str]) -> Path:
        path = self.path(name)
        if path.exists():
            raise CommandError(f"profile {name} exists already; delete it first: moldau profile delete {name}")
        self._profiles.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(path, format_properties({key: _absolute(key, value) for key, value in settings.items()}))
        return path

    def use(self, name: str) -> None:
        """Make a profile the current one."""
        self.read(name)
        write_private(self._current, f"{name}\n")

    def delete(self, name: str) -> None:
        self.read_path(name).unlink()
        if self.current() == name:
            self._current.unlink()

    def read_path(self, name: str) -> Path:
        """The file of an existing profile, whatever its mode."""
        path = self.path(name)
        if not path.exists():
            self.read(name)  # raises
        return path

    def path(self, name: str) -> Path:
        if _NAME.fullmatch(name) is None:
            raise usage_error(
                f"{shorten(name)} cannot be the name of a profile: use up to {NAME_LENGTH_MAX} letters, digits, dots, "
                "underscores and hyphens"
            )
        return self._profiles / f"{name}{_SUFFIX}"

    @property
    def _profiles(self) -> Path:
        return self.directory / "profiles"

    @property
    def _current(self) -> Path:
        return self.directory / "current-profile"


def user_profiles() -> Profiles:
    """The profiles of the user who runs the command."""
    home = os.environ.get("XDG_CONFIG_HOME", "")
    # XDG: a relative path is invalid and is ignored.
    base = Path(home) if Path(home).is_absolute() else Path("~/.config").expanduser()
    return Profiles(base / "moldau")


def _absolute(name: str, value: str) -> str:
    """Make the path of a store independent of the working directory."""
    return str(Path(value).absolute()) if name.endswith(_LOCATION) and value else value
