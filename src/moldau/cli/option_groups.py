"""Options shared by several commands, declared once: a parameter typed with a dataclass becomes the fields' options."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_type_hints


def expand_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each dataclass parameter of a command by its fields, as Typer sees it."""
    signature = inspect.signature(command, eval_str=True)
    parameters = signature.parameters.values()
    groups: dict[str, Any] = {each.name: each.annotation for each in parameters if is_dataclass(each.annotation)}
    own = [_named(each) for each in parameters if each.name not in groups]
    options = {name: _options(group) for name, group in groups.items()}

    @functools.wraps(command)
    def run(**given: Any) -> None:
        gathered = {
            name: groups[name](**{each.name: given.pop(each.name) for each in found}) for name, found in options.items()
        }
        command(**given, **gathered)

    shown = [*own, *(each for found in options.values() for each in found)]
    run.__annotations__ = {each.name: each.annotation for each in shown} | {"return": None}
    run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined] # read by Typer
    return run


def _named(parameter: inspect.Parameter) -> inspect.Parameter:
    """Keyword-only, so that required parameters may follow optional ones."""
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)


def _options(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if each.default is MISSING else each.default,
            annotation=hints[each.name],
        )
        for each in fields(group)
        if each.init
    ]
