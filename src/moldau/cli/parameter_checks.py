"""Checks of every option and argument of every command: no empty path, no NaN, no infinite number."""

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import typer


def add_parameter_checks(command: Any) -> None:
    """Make every parameter of a command, and of its subcommands, reject such values."""
    for parameter in command.params:
        # `process_value` gets the text as given: a callback may see `Path("")`, which equals `Path(".")`.
        parameter.process_value = functools.partial(_process, parameter.process_value, parameter)
    for each in getattr(command, "commands", {}).values():
        add_parameter_checks(each)


def _process(process_value: Callable[..., Any], parameter: Any, context: Any, value: Any) -> Any:
    kind = parameter_type(parameter)
    for each in value if isinstance(value, list | tuple) else [value]:
        if kind is Path and each == "":
            raise typer.BadParameter("the path is empty.", context, parameter)
        if kind is float and not _is_finite(each):
            raise typer.BadParameter(f"{each} is not a valid number.", context, parameter)
    return process_value(context, value)


def parameter_type(parameter: Any) -> type | None:
    """Return the type of one value of a parameter if it is Path or float."""
    click_type = getattr(parameter, "type", None)  # Typer before 0.29 describes types as Click does
    if click_type is not None:
        if hasattr(click_type, "dir_okay"):
            return Path
        return float if click_type.name.startswith("float") else None
    annotation = parameter.type_descriptor.annotation
    of_interest: tuple[type, ...] = (Path, float)
    return next((each for each in of_interest if each in (annotation, *get_args(annotation))), None)


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(float(value))
    except (TypeError, ValueError):
        return True  # no value, or a text that the conversion rejects
