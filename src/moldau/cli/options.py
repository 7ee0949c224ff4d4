"""Options shared by commands."""

import re
from typing import Annotated, Any, Final

import typer

from moldau.cli.errors import usage_error
from moldau.model.units import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS

BOOTSTRAP_VARIABLE: Final = "MOLDAU_BOOTSTRAP_SERVERS"
BOOTSTRAP_DEFAULT: Final = "localhost:9092"
_DURATION: Final = re.compile(r"([0-9]{1,20})([smhd])")
_UNITS: Final = {"s": SECOND_MS, "m": MINUTE_MS, "h": HOUR_MS, "d": DAY_MS}


def _bootstrap(shown: str | bool) -> Any:
    return typer.Option(
        "--bootstrap-servers",
        "--bootstrap-server",
        "-b",
        envvar=BOOTSTRAP_VARIABLE,
        metavar="HOST:PORT,…",
        show_default=shown,
        help="Brokers to connect to, of any Kafka cluster.",
    )


Bootstrap = Annotated[str, _bootstrap(shown=True)]
BootstrapIfGiven = Annotated[str | None, _bootstrap(shown=BOOTSTRAP_DEFAULT)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Configs = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", metavar="KEY=VALUE", help="A setting; may be repeated."),
]


def in_utf8(text: str, option: str) -> str:
    """Return the text of an option if it is valid UTF-8, as names in the protocol must be."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise usage_error(f"{option} {text!r} is not UTF-8") from None
    return text


def pairs(texts: list[str] | None, option: str) -> dict[str, str]:
    """Parse KEY=VALUE texts; a value may contain further equal signs."""
    split = [text.partition("=") for text in texts or ()]
    for text, (key, equals, _) in zip(texts or (), split, strict=True):
        if not equals or not key.strip():
            raise usage_error(f"{option} {text}: write it as KEY=VALUE")
    return {key.strip(): value.strip() for key, _, value in split}


def duration_ms(text: str, option: str) -> int:
    """Parse a duration such as 90m."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise usage_error(f"{option} {text}: write it as 30s, 90m, 12h or 7d")
    return int(found[1]) * _UNITS[found[2]]
