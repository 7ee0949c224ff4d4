"""Values that no option of any command can mean: a path that is empty, a number that is none."""

import functools
import math
from collections.abc import Callable
from typing import Any

import typer


def guard(command: Any) -> None:
    """Have every option and argument of a command, and of those below it, refuse them."""
    for parameter in command.params:
        parameter.callback = functools.partial(_checked, parameter.callback)
    for each in getattr(command, "commands", {}).values():
        guard(each)


def _checked(callback: Callable[..., Any] | None, context: Any, parameter: Any, value: Any) -> Any:
    for each in value if isinstance(value, list | tuple) else [value]:
        if isinstance(each, float) and not math.isfinite(each):
            raise typer.BadParameter(f"{each} is no number to go by.", context, parameter)
        # Python takes an empty path for the folder that we are in, which nobody who left a variable unset means.
        if _is_path(parameter) and each is not None and not str(each):
            raise typer.BadParameter("it is empty, and names no file or folder.", context, parameter)
    return value if callback is None else callback(context, parameter, value)


def _is_path(parameter: Any) -> bool:
    return hasattr(parameter.type, "dir_okay")
