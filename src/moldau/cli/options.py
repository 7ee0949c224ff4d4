"""The options that commands share, and the client they make."""

from typing import Annotated, Any, Final

import typer

from moldau.cli.errors import usage_error

BOOTSTRAP_VARIABLE: Final = "MOLDAU_BOOTSTRAP_SERVERS"
BOOTSTRAP_DEFAULT: Final = "localhost:9092"


def _bootstrap(shown: str | bool) -> Any:
    return typer.Option(
        "--bootstrap-servers",
        "--bootstrap-server",
        "-b",
        envvar=BOOTSTRAP_VARIABLE,
        metavar="HOST:PORT,…",
        show_default=shown,
        help="Where to find the cluster; any Kafka cluster will do.",
    )


Bootstrap = Annotated[str, _bootstrap(shown=True)]
BootstrapIfGiven = Annotated[str | None, _bootstrap(shown=BOOTSTRAP_DEFAULT)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Configs = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", metavar="KEY=VALUE", help="A setting; may be given several times."),
]


def in_utf8(text: str, option: str) -> str:
    """The text of an option, unless it is made of other bytes: a name in the protocol is UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise usage_error(f"{option} {text!r} is not UTF-8") from None
    return text


def pairs(texts: list[str] | None, option: str) -> dict[str, str]:
    """KEY=VALUE texts as a dictionary; a value may contain further equal signs."""
    split = [text.partition("=") for text in texts or ()]
    for text, (key, equals, _) in zip(texts or (), split, strict=True):
        if not equals or not key.strip():
            raise usage_error(f"{option} {text}: write it as KEY=VALUE")
    return {key.strip(): value.strip() for key, _, value in split}
