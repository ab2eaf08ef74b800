"""The errors of planning and simulating capacity. An error names the parameter that is wrong in its `field`."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from hebe.planning.error import MessageError, Parameter, PlanningError, join_message
from hebe.workload.text_errors import RecordingError, WorkloadError


class PlanFileError(MessageError):
    """A file that cannot be planned from; the message names file, line and field."""


class MisfitError(PlanFileError):
    """An argument that does not fit the other ones, or what files hold; the message names it, as `field` does."""


class ArgumentError(MessageError):
    """An argument that is wrong by itself, or missing: `field` names the parameter, and the message the reason."""

    def __init__(self, field: str, *reason: str) -> None:
        super().__init__(Parameter(field), *reason)

    def __str__(self) -> str:
        return f"{self.field}: {self.reason({})}"

    def reason(self, names: Mapping[str, str]) -> str:
        """What is wrong, with `names` in place of parameters."""
        return join_message(self.args[1:], names)


@contextmanager
def naming(parameters: Mapping[str, str]) -> Iterator[None]:
    """Call what planning's errors name as `parameters` say: those of planning are not those of the caller."""
    try:
        yield
    except PlanningError as error:
        raise renamed(error, parameters) from None


def renamed(error: PlanningError, parameters: Mapping[str, str]) -> PlanningError:
    """The same error with its parameters called as `parameters` say."""
    parts = (Parameter(parameters.get(part, part)) if isinstance(part, Parameter) else part for part in error.args)
    return PlanningError(*parts)


def check_at_least(field: str, value: float, *, least: float | None = None, more_than: float | None = None) -> None:
    """Raises `ArgumentError` unless the value is finite, and at least or more than a limit."""
    finite = isinstance(value, int | float) and math.isfinite(value)
    if least is not None and not (finite and value >= least):
        raise ArgumentError(field, f"{_shown(value)}: must be at least {least:g}")
    if more_than is not None and not (finite and value > more_than):
        raise ArgumentError(field, f"{_shown(value)}: must be a finite number of more than {more_than:g}")


def check_percentile(field: str, value: float) -> None:
    """Raises `ArgumentError` unless the value lies between 0 and 100."""
    if not (isinstance(value, int | float) and 0 < value < 100):
        raise ArgumentError(field, f"{_shown(value)}: must lie between 0 and 100, both excluded")


def check_choice(field: str, value: str, known: Collection[str]) -> None:
    """Raises `ArgumentError` unless the value is one of those `known`."""
    if value not in list(known):
        raise ArgumentError(field, f"{value!r}: must be one of {', '.join(known)}")


_Kind = TypeVar("_Kind")


def check_form(field: str, parse: Callable[[str], _Kind], form: str) -> _Kind:
    """What the form names, by one of the functions of `hebe.workload.forms`. Raises `ArgumentError` unless there is
    such a form, and `RecordingError` for a file that it names and that cannot be read."""
    try:
        return parse(form)
    except RecordingError:
        raise
    except WorkloadError as fault:
        raise ArgumentError(field, str(fault)) from None


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, int | float) else repr(value)
