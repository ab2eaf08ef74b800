"""The error of a planning problem that makes no sense or has no answer, and how messages name parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class Parameter(str):
    """A parameter's name within a message. A caller whose users know it by another name, as an option of a command
    line, can put that in its place. With a value it is written as in Python: `simulate=False`."""

    __slots__ = ()


def join_message(parts: Iterable[str], names: Mapping[str, str] | None = None) -> str:
    """The text of a message in parts; parameters that are in `names` are called as those say."""
    known = names or {}
    return "".join(known.get(part, part) if isinstance(part, Parameter) else part for part in parts)


class MessageError(ValueError):
    """An error whose message comes in parts, words and parameters."""

    def __init__(self, *message: str) -> None:
        super().__init__(*message)

    def __str__(self) -> str:
        return self.message_with({})

    @property
    def field(self) -> str | None:
        """The parameter that is wrong, the first one that the message names; None if it names none."""
        return next((part.partition("=")[0] for part in self.args if isinstance(part, Parameter)), None)

    def message_with(self, names: Mapping[str, str]) -> str:
        """The message with `names` in place of those parameters."""
        return join_message(self.args, names)


class PlanningError(MessageError):
    """Figures that contradict themselves, or a demand that nothing can meet; the message names the field or the
    binding constraint, and what to do."""
