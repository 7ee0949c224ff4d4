"""Writes docs/reference/ from the declarations in the code, so that the pages cannot drift from it."""

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from moldau.model import errors
from moldau.model.errors import ErrorCode, KafkaError
from moldau.model.settings import LONG_MAX, Setting, declared
from moldau.model.units import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, GiB, KiB, MiB
from moldau.storage.settings import LogSettings

FOLDER = Path(__file__).resolve().parents[1] / "docs/reference"
NOTE = "*Written by `make docs` from the code; edit the code, not this page.*"


def page(title: str, *blocks: str) -> str:
    return "\n\n".join([f"# {title}", NOTE, *blocks]) + "\n"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


# Settings ------------------------------------------------------------------------------------------------------------


def default_of(setting: Setting) -> str:
    """The default as Kafka writes it, with a reading of large numbers."""
    text = setting.format(setting.default)
    if text is None:
        return "unset"
    if text == "":
        return "empty"
    reading = _reading(setting.name, setting.default)
    return f"`{text}`" + (f" ({reading})" if reading else "")


def _reading(name: str, value: object) -> str:
    if type(value) is not int:
        return ""
    if value == LONG_MAX:
        return "no limit"
    scales = {
        ".ms": ((DAY_MS, "d"), (HOUR_MS, "h"), (MINUTE_MS, "min"), (SECOND_MS, "s")),
        "bytes": ((GiB, "GiB"), (MiB, "MiB"), (KiB, "KiB")),
    }
    for ending, units in scales.items():
        if name.endswith(ending):
            return next((f"{value // unit} {word}" for unit, word in units if value and value % unit == 0), "")
    return ""


def accepted(setting: Setting) -> str:
    """What the setting takes."""
    if setting.one_of:
        return ", ".join(f"`{value}`" for value in setting.one_of)
    low, high = setting.at_least, setting.at_most
    bounds = f"{low} to {high}" if None not in (low, high) else f"≥ {low}" if low is not None else ""
    kind = setting.kind.name.lower()
    return f"{kind}, {bounds}" if bounds else kind


def setting_rows(owner: type) -> list[list[str]]:
    return [
        [f"`{each.name}`", default_of(each), accepted(each), each.doc]
        for each in declared(owner).values()
        if each.has_effect and not each.is_internal
    ]


def without_effect(owner: type) -> str:
    names = [f"`{each.name}`" for each in declared(owner).values() if not each.has_effect]
    return (
        "These names are accepted and checked, so that existing files and tools work, but they have no effect here: "
        f"{', '.join(sorted(names))}."
    )


def topic_settings() -> str:
    return page(
        "Topic settings",
        "Set with `moldau topic create --config name=value`, `moldau config set`, or any Kafka tool.",
        table(["setting", "default", "accepts", "what it does"], setting_rows(LogSettings)),
        "## Without effect",
        without_effect(LogSettings),
    )


# Error codes ---------------------------------------------------------------------------------------------------------


def error_codes() -> str:
    classes = {
        each.code: each.__name__
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, KafkaError) and each is not KafkaError
    }
    rows = [[str(code.value), f"`{code.name}`", f"`{classes[code]}`" if code in classes else ""] for code in ErrorCode]
    return page(
        "Error codes",
        "Every error code of the protocol, and the exception (`moldau.model.errors`) that carries it to a client. Codes "
        "without an exception are known, and never answered yet.",
        table(["code", "Kafka's name", "exception"], rows),
    )


PAGES: dict[str, Callable[[], str]] = {
    "topic-settings.md": topic_settings,
    "error-codes.md": error_codes,
}


def main() -> int:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, render in PAGES.items():
        (FOLDER / name).write_text(render())
    return 0


if __name__ == "__main__":
    sys.exit(main())
