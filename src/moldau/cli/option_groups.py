"""Options that commands share are declared once: a parameter whose type is a group of options becomes these options."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_type_hints


def expand_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the fields of its groups, which are dataclasses, in the place of the groups."""
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
    run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined] # which is what typer looks at
    return run


def _named(parameter: inspect.Parameter) -> inspect.Parameter:
    """By name alone: among such parameters, those that must be given may follow those that may."""
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
