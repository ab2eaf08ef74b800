"""What has become of each model that was ever to be loaded: its state, why and since when, and how often it failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from hebe.serving.requests.errors import described, sendable

log = structlog.get_logger("hebe.models")

_MOST_NAME_CHARACTERS = 200
"""Of a name in the log, since a client may have invented it."""


@dataclass(frozen=True, slots=True)
class ModelIndexEntry:
    """What the repository index shows of one version: READY, LOADING, UNLOADING or UNAVAILABLE, and why.

    Version 0 is of a model whose versions are not known, since its directory cannot be listed. `since_s`: when that
    came to be so, by the host's clock; None of a model that was never to be loaded.
    """

    name: str
    version: int
    state: str
    reason: str = ""
    since_s: float | None = None


class ModelIndex:
    """One entry a model, of names that the repository has had: names that clients invent have none. `clock` in seconds.

    What fails is told in the log each time, beside the requests that are refused: of those only so many get a line,
    and a load that failed would hide among them.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._entries: dict[str, ModelIndexEntry] = {}
        self._failures: Counter[str] = Counter()

    @property
    def entries(self) -> tuple[ModelIndexEntry, ...]:
        """All of them, by name."""
        return tuple(self._entries[name] for name in sorted(self._entries))

    @property
    def failures(self) -> Mapping[str, int]:
        """How often `failed` was called for each model that has an entry: 0 counts too, so that the first one shows."""
        return {name: self._failures[name] for name in sorted(self._entries)}

    def find(self, name: str) -> ModelIndexEntry | None:
        """The entry of model `name`; None if it was never to be loaded."""
        return self._entries.get(name)

    def put(self, name: str, version: int, state: str, reason: str = "") -> None:
        """So it is with model `name` from now on."""
        self._entries[name] = ModelIndexEntry(name, version, state, sendable(reason), self._clock())

    def failed(self, what: str, name: str, version: int, fault: Exception, *, in_log: bool = True) -> None:
        """Count that `what` of model `name` failed, and tell it in the log. Where it need not be `in_log`, since the
        caller tells it, only a fault that wants its traceback is. The entry stays: `put` the one there is.
        """
        if name in self._entries:
            self._failures[name] += 1
        if not in_log and _speaks_for_itself(fault):
            return
        log.error(
            f"{what} failed",
            model=name[:_MOST_NAME_CHARACTERS],
            version=version,
            reason=reason_of(fault),
            exc_info=None if _speaks_for_itself(fault) else fault,
        )


def reason_of(fault: Exception) -> str:
    """`fault` in words, with its type where these alone do not say what to do."""
    return str(fault) if _speaks_for_itself(fault) else described(fault)


def _speaks_for_itself(fault: Exception) -> bool:
    """Whether the message alone says what to do: of our own errors, and of those that name a value or a file."""
    return type(fault).__module__.startswith("hebe.") or isinstance(fault, ValueError | OSError)
