"""What a profile is of: one model, as it lies on disk, on one kind of server, for one SLA target and load.

Files that say what a load is like are known by a checksum: what was measured by one is of its content, not of its name.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hebe.profile import ProfileError
from hebe.profiling.error import ProfilingError
from hebe.profiling.files.plain_data import checked_fields
from hebe.spec import SlaTarget, SpecError


@dataclass(frozen=True, slots=True)
class ProfileSubject:
    """What must be the same for two measurements to be of the same thing.

    `identity` is the checksum of the model's files (`StoredModel.identity`); `loaded` says how they are brought into
    memory (`LoadOptions.words`); `server` says in words what this machine
    is (processor, cores, memory, accelerator), equal on machines that are alike; `load` says what the queries are like
    and how thoroughly they were measured. `layout` says how the cores lie to each other (`core_layout`), empty where it
    is not known, as in what older versions wrote. Raises `ProfileError` for fields of other kinds.
    """

    model: str
    version: int
    identity: str
    loaded: str
    server: str
    sla: SlaTarget
    load: str
    layout: str = ""

    def __post_init__(self) -> None:
        for name in ("model", "identity", "loaded", "server", "load"):
            text = getattr(self, name)
            if not isinstance(text, str) or not text.strip() or not text.isprintable():
                raise ProfileError(f"subject: {name} is {text!r}: must be one line of text")
        if not isinstance(self.layout, str) or (self.layout and not self.layout.isprintable()):
            raise ProfileError(f"subject: layout is {self.layout!r}: must be one line of text, or empty")
        if not isinstance(self.version, int) or isinstance(self.version, bool) or self.version < 1:
            raise ProfileError(f"subject: version is {self.version!r}: must be a whole number from 1")

    @property
    def sizes(self) -> str | None:
        """The form of the query sizes that were sent (`hebe.workload.forms`); None if the load does not say."""
        words = re.match(r"sizes (.+?)(?:, (?:arrivals|seed) |$)", self.load)  # as hebe profile words its load
        return words[1].strip() if words else None

    def to_dict(self) -> dict[str, Any]:
        """Plain data; `from_dict` reads it back to an equal subject."""
        return {
            "model": self.model,
            "version": self.version,
            "identity": self.identity,
            "loaded": self.loaded,
            "server": self.server,
            "sla": {"latency_ms": self.sla.latency_ms, "percentile": self.sla.percentile},
            "load": self.load,
            "layout": self.layout,
        }

    @classmethod
    def from_dict(cls, data: object) -> ProfileSubject:
        """The inverse of `to_dict`; raises `ProfileError` naming a missing, unknown or ill-typed field."""
        names = ("model", "version", "identity", "loaded", "server", "sla", "load")
        fields = checked_fields("subject", data, names, ("layout",))
        sla = checked_fields("subject: sla", fields["sla"], ("latency_ms", "percentile"))
        try:
            target = SlaTarget(**sla)
        except (SpecError, TypeError, ValueError, OverflowError) as fault:
            raise ProfileError(f"subject: sla: {fault}") from None
        return cls(**{**fields, "sla": target})


_DIGITS = 12
_WITH_FILES = ("trace", "reuse")
"""Short forms of `workload.forms` that may name a file, behind the first colon."""


def file_checksum(path: Path) -> str:
    """The first digits of its SHA-256. Raises `ProfilingError`, which names the file, where it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:_DIGITS]
    except OSError as fault:
        raise ProfilingError(f"{path}: cannot be read: {fault.strerror}") from None


def file_of(form: str) -> Path | None:
    """The file that a short form of arrivals or keys names, `trace:FILE[:SPEED]` or `reuse:FILE[:NAME]`; else None."""
    name, *rest = form.strip().split(":")
    return Path(rest[0]) if rest and name in _WITH_FILES else None


def form_words(form: str) -> str:
    """The form, and the checksum of the file that it names: ``trace:day.csv (1f0c5a7b9e21)``. Raises as
    `file_checksum`."""
    path = file_of(form)
    return form if path is None else f"{form} ({file_checksum(path)})"
