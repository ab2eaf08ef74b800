"""Commands with their options and arguments, from the command object that `python -m hebe` runs."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any
from unittest import mock

from surface_sources import hebe
from typer.core import TyperGroup


def command_lines() -> Iterator[str]:
    """A line for each command, and for each of its parameters."""
    for path, command in _commands(_root(), "hebe", None):
        yield f"{path}: command"
        for parameter in command.params:
            yield f"{path} {_described(parameter)}"


def _root() -> Any:
    """The group that `python -m hebe` is about to run."""
    found: list[Any] = []
    with mock.patch.object(TyperGroup, "main", lambda self, *_arguments, **_options: found.append(self)):
        hebe("--help")
    return found[0]


def _commands(command: Any, name: str, parent: Any) -> Iterator[tuple[str, Any]]:
    context = command.context_class(command, info_name=name, parent=parent)
    yield context.command_path, command
    for inner in command.list_commands(context) if hasattr(command, "list_commands") else ():
        yield from _commands(command.resolve_command(context, [inner])[1], inner, context)


def _described(parameter: Any) -> str:
    names = [*parameter.opts, *(f"(off) {name}" for name in parameter.secondary_opts)]
    if parameter.param_type_name == "argument":
        names = [f"<{parameter.metavar or parameter.name}>"]
    default = parameter.default
    if callable(default) or "Sentinel" in type(default).__name__:
        default = "from a function" if callable(default) else None
    facts = [f"type={_type_words(parameter)}", f"default={default!s}"]
    facts += ["required"] if parameter.required else []
    facts += ["flag"] if getattr(parameter, "is_flag", False) else []
    facts += ["repeated"] if getattr(parameter, "multiple", False) or parameter.nargs != 1 else []
    facts += [f"env={parameter.envvar}"] if parameter.envvar else []
    facts += [f"metavar={parameter.metavar}"] if parameter.metavar else []
    facts += ["hidden"] if getattr(parameter, "hidden", False) else []
    return f"{' '.join(names)}: {', '.join(facts)}"


def _type_words(parameter: Any) -> str:
    """The Python type of its values, with bounds, or choices."""
    descriptor = parameter.type_descriptor
    kind = descriptor.annotation
    words = kind.__name__ if isinstance(kind, type) else str(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        words += f" {'|'.join(str(member.value) for member in kind)}"
    if (parameter.min, parameter.max) != (None, None):
        words += f" {parameter.min}..{parameter.max}"
    if formats := getattr(descriptor.parameter_info, "formats", None):
        words += f" {'|'.join(formats)}"
    return words
