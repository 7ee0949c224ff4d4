"""The rules of a YAML file: by topic, a list of what must hold for fields of the JSON value."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from moldau.pipelines.fields import Field, field_of, span_of
from moldau.pipelines.requirements import PipelineError

_OTHER_KEYS: Final = {"field", "name"}
RULES_MAX: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A condition that SQL can decide for a row alone. A null field only violates `not_null`."""

    name: str
    violated: str  # SQL, true for a row that violates the rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A field whose value must be a key in a compacted topic, and not deleted."""

    name: str
    field: Field
    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unique:
    """A field whose value may occur once within a time."""

    name: str
    field: Field
    within: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules of one topic."""

    rows: Sequence[Rule] = ()
    references: Sequence[Reference] = ()
    unique: Sequence[Unique] = field(default=())

    @property
    def names(self) -> list[str]:
        return [*(each.name for each in self.rows), *(each.name for each in self.references)]


def rules_of(text: str, topic: str, place: str) -> Rules:
    """Parse the rules for a topic. Raises PipelineError that names the rule."""
    import yaml

    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise PipelineError(f"{place} is not YAML: {error}") from error
    if not isinstance(found, dict) or not isinstance(found.get(topic), list) or not found[topic]:
        raise PipelineError(f"{place} has no rules for topic {topic}: write `{topic}:` and a list of rules")
    if len(found[topic]) > RULES_MAX:
        raise PipelineError(
            f"{place} has {len(found[topic])} rules for topic {topic}; at most {RULES_MAX} are possible"
        )
    parsed = [_rule(each, f"{place}: rule {number} of {topic}") for number, each in enumerate(found[topic], 1)]
    names = [each.name for each in parsed]
    twice = sorted({each for each in names if names.count(each) > 1})
    if twice:
        raise PipelineError(f"{place}: two rules of {topic} are called {twice[0]}; give one of them a `name`")
    return Rules(
        rows=[each for each in parsed if isinstance(each, Rule)],
        references=[each for each in parsed if isinstance(each, Reference)],
        unique=[each for each in parsed if isinstance(each, Unique)],
    )


def _rule(shape: Any, place: str) -> Rule | Reference | Unique:
    if not isinstance(shape, dict) or not isinstance(shape.get("field"), str):
        raise PipelineError(f"{place} names no field")
    kinds = [each for each in shape if each not in _OTHER_KEYS]
    if len(kinds) != 1 or kinds[0] not in _KINDS:
        raise PipelineError(f"{place} needs exactly one of {', '.join(_KINDS)}; it has {', '.join(kinds) or 'none'}")
    kind = kinds[0]
    name = str(shape.get("name") or f"{shape['field']} {kind}")
    return _KINDS[kind](name, field_of(shape["field"], f"{place}: field"), shape[kind], f"{place}: {kind}")


def _not_null(name: str, of: Field, wanted: Any, place: str) -> Rule:
    if wanted is not True:
        raise PipelineError(f"{place} must be true")
    return Rule(name=name, violated=f"{of.text} is null")


def _range(name: str, of: Field, wanted: Any, place: str) -> Rule:
    is_pair = isinstance(wanted, list) and len(wanted) == 2 and wanted != [None, None]
    if not is_pair or not all(each is None or _is_number(each) for each in wanted):
        raise PipelineError(f"{place} must be two numbers, such as [0, 100]; null leaves a side open")
    low, high = wanted
    sides = [f"{of.number} < {low!r}D" for _ in range(low is not None)]
    sides += [f"{of.number} > {high!r}D" for _ in range(high is not None)]
    return Rule(name=name, violated=f"{of.text} is not null and ({of.number} is null or {' or '.join(sides)})")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _regex(name: str, of: Field, wanted: Any, place: str) -> Rule:
    if not isinstance(wanted, str):
        raise PipelineError(f"{place} must be a regular expression of Java")
    return Rule(name=name, violated=f"{of.text} is not null and not ({of.text} rlike {sql_text(wanted)})")


def _one_of(name: str, of: Field, wanted: Any, place: str) -> Rule:
    if not isinstance(wanted, list) or not wanted:
        raise PipelineError(f"{place} must be a list of values")
    values = ", ".join(sql_text(_value_text(each)) for each in wanted)
    return Rule(name=name, violated=f"{of.text} is not null and {of.text} not in ({values})")


def _value_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _exists_in(name: str, of: Field, wanted: Any, place: str) -> Reference:
    if not isinstance(wanted, str) or not wanted:
        raise PipelineError(f"{place} must be the name of a topic")
    return Reference(name=name, field=of, topic=wanted)


def _unique(name: str, of: Field, wanted: Any, place: str) -> Unique:
    return Unique(name=name, field=of, within=span_of(str(wanted), place))


_KINDS: Final[Mapping[str, Callable[[str, Field, Any, str], Rule | Reference | Unique]]] = {
    "not_null": _not_null,
    "range": _range,
    "regex": _regex,
    "one_of": _one_of,
    "exists_in": _exists_in,
    "unique": _unique,
}


def sql_text(text: str) -> str:
    """Return a literal of Spark SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"'{escaped}'"
