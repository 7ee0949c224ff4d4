"""Writes docs/reference/ from the declarations in the code, and the list of decisions, so that they cannot drift."""

import sys
import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from moldau.broker.configs.broker_settings import BrokerSettings
from moldau.broker.configs.topic_defaults import TOPIC_DEFAULTS
from moldau.broker.handlers.authorization import RULES, Rule
from moldau.broker.handlers.table import served_apis
from moldau.broker.metrics.catalogue import CATALOGUE
from moldau.broker.requests.router import Api
from moldau.model import errors
from moldau.model.errors import ErrorCode, KafkaError
from moldau.model.kafka_settings import BROKER_SETTINGS, removed
from moldau.model.settings import LONG_MAX, Scope, Setting, declared
from moldau.model.units import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, GiB, KiB, MiB
from moldau.storage.settings import LogSettings

DOCS = Path(__file__).resolve().parents[1] / "docs"
ACL_DIFFERENCES = DOCS.parent / "extra/java/acl_differences.toml"
WHEN = {Scope.STATIC: "at start", Scope.PER_BROKER: "while it runs", Scope.CLUSTER: "while it runs"}
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
    """The values that the setting takes."""
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


def without_effect(settings: Iterable[Setting]) -> str:
    names = {each.name for each in settings if not each.has_effect and not each.is_internal}
    return (
        "These names are accepted and checked, so that existing files and tools work, but they have no effect here: "
        f"{code_list(names)}."
    )


def code_list(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in sorted(words))


def topic_settings() -> str:
    return page(
        "Topic settings",
        "Set with `moldau topic create --config name=value`, `moldau config set`, or any Kafka tool.",
        table(["setting", "default", "accepts", "what it does"], setting_rows(LogSettings)),
        "## Without effect",
        without_effect(declared(LogSettings).values()),
    )


def broker_settings() -> str:
    columns = ["setting", "default", "accepts", "may change", "what it does"]
    groups = [
        f"## {(group.__doc__ or '').splitlines()[0]}\n\n" + table(columns, broker_rows(declared(group).values()))
        for group in BrokerSettings.__bases__
        if any(each.has_effect for each in declared(group).values())
    ]
    defaults = broker_rows(sorted(TOPIC_DEFAULTS.values(), key=lambda each: each.name))
    ignored = [*TOPIC_DEFAULTS.values(), *BROKER_SETTINGS.values(), *declared(BrokerSettings).values()]
    return page(
        "Broker settings",
        "Set with `moldau start -c name=value` or in the file given with `--config`; those that may change while the "
        "broker runs also with `moldau config set` or any Kafka tool.",
        *groups,
        "## What topics get where they do not say\n\n" + table(columns, defaults),
        "## Without effect",
        without_effect(ignored),
        f"Names that Kafka 4.0 removed are ignored too: {code_list(removed.NAMES)}, and all that begin with "
        f"{code_list(removed.PREFIXES)}. Any other name is rejected.",
    )


def broker_rows(settings: Iterable[Setting]) -> list[list[str]]:
    return [
        [f"`{each.name}`", default_of(each), accepted(each), WHEN[each.scope], each.doc]
        for each in settings
        if each.has_effect and not each.is_internal
    ]


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
        "Every error code of the protocol, and the exception (`moldau.model.errors`) that carries it to a client. "
        "Codes without an exception are known but not returned yet.",
        table(["code", "Kafka's name", "exception"], rows),
    )


# APIs ----------------------------------------------------------------------------------------------------------------


def apis() -> str:
    rows = [[str(api.key), api.name, versions_of(api), _sentence(api)] for api in served_apis()]
    return page(
        "APIs",
        "Every API that is served, as in `ApiVersions`. Requests of other APIs or versions are "
        "rejected with `UNSUPPORTED_VERSION` where the protocol has room for it.",
        table(["key", "API", "versions", "what it does"], rows),
    )


def versions_of(api: Api) -> str:
    served = f"{api.oldest}-{api.newest}" if api.oldest != api.newest else str(api.oldest)
    advertised_from = api.advertised[0]
    return served if advertised_from == api.oldest else f"{served} (advertised as {advertised_from}-{api.newest})"


def _sentence(api: Api) -> str:
    """The first line of the handler's file, without the API's name."""
    handler = api.decide or api.handle
    handler = getattr(handler, "func", handler)  # of a partial
    words = (sys.modules[handler.__module__].__doc__ or "").partition("\n")[0]
    words = words.removeprefix(api.name).lstrip(":, ")
    return words[:1].upper() + words[1:]


# Authorization -------------------------------------------------------------------------------------------------------


def authorization() -> str:
    rows = [
        [api.name, _permissions(rule), rule.when or "always", _consequence(rule)]
        for api in sorted(served_apis(), key=lambda api: api.name)
        for rule in RULES[api.name]
    ]
    free = sorted(api.name for api in served_apis() if not RULES[api.name])
    return page(
        "Authorization",
        "The permissions that each API needs, with an authorizer. Where an API has several rows, all of them apply, in "
        "this order. READ, WRITE, DELETE and ALTER imply DESCRIBE; ALTER_CONFIGS implies DESCRIBE_CONFIGS. The "
        "[guide](../guides/authorization.md) shows how to allow and deny.",
        table(["API", "needs", "when", "otherwise"], rows),
        f"Allowed to every client: {', '.join(free)}.",
        "## Differences from Apache Kafka",
        "Every API is sent to Moldau and to Apache Kafka 4.3.1 under no ACL, each single ACL, and all but one. Both "
        "deny the same requests with the same responses, and hide the same names, but for:",
        table(["request", "difference"], [[each["what"], each["why"]] for each in _acl_differences()]),
    )


def _acl_differences() -> list[dict[str, str]]:
    differences: list[dict[str, str]] = tomllib.loads(ACL_DIFFERENCES.read_text())["difference"]
    return differences


def _permissions(rule: Rule) -> str:
    return " or ".join(f"{operation.name} on {kind.name}" for operation, kind in rule.any_of)


def _consequence(rule: Rule) -> str:
    return f"{rule.effect.value} (`{rule.error.name}`)" if rule.error else rule.effect.value


# Metrics -------------------------------------------------------------------------------------------------------------


def metrics() -> str:
    rows = [[f"`{each.name}`", each.kind, code_list(each.labels), each.doc] for each in CATALOGUE]
    return page(
        "Metrics",
        "Served for Prometheus at `http://localhost:9404/metrics`; the setting `moldau.metrics.listener` moves it. "
        "Beside these there are the usual metrics of a process, whose names begin with `process_`, and "
        "[metrics that clients push](../operations.md#metrics-of-clients), whose names begin with `kafka_client_`.",
        table(["metric", "kind", "labels", "what it says"], rows),
    )


# Decisions -----------------------------------------------------------------------------------------------------------


def decisions() -> str:
    records = sorted((DOCS / "decisions").glob("[0-9]*.md"))
    titles = [(path.name, path.read_text().partition("\n")[0].removeprefix("# ")) for path in records]
    return page(
        "Decisions",
        "One page for each choice that was not obvious: the question, what we do, what follows. Number 10 is not used.",
        "\n".join(f"- [{title}]({name})" for name, title in titles),
    )


PAGES: dict[str, Callable[[], str]] = {
    "reference/apis.md": apis,
    "reference/broker-settings.md": broker_settings,
    "reference/topic-settings.md": topic_settings,
    "reference/error-codes.md": error_codes,
    "reference/authorization.md": authorization,
    "reference/metrics.md": metrics,
    "decisions/README.md": decisions,
}


def main() -> int:
    for name, render in PAGES.items():
        (DOCS / name).write_text(render())
    return 0


if __name__ == "__main__":
    sys.exit(main())
