"""What a profile says of the accelerator that its configuration uses, and the accelerator that this makes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hebe.models.hot_rows import Frequencies, read_key_trace
from hebe.profile import ProfileError
from hebe.profiling.plain_data import checked_fields
from hebe.runtime.accelerator import Accelerator
from hebe.spec import ModelSpec
from hebe.workload.forms import key_skew
from hebe.workload.key_frequencies import key_frequencies


@dataclass(frozen=True, slots=True)
class AcceleratorUse:
    """`memory_bytes` for hot rows, chosen by the trace of keys in the file `key_trace`, or, without one, as the load
    draws `keys` (a form of `workload.forms.key_skew`).
    """

    memory_bytes: int
    keys: str
    key_trace: str | None = None

    def __post_init__(self) -> None:
        bytes_fit = isinstance(self.memory_bytes, int) and not isinstance(self.memory_bytes, bool)
        if not bytes_fit or self.memory_bytes < 0:
            raise ProfileError(f"accelerator: memory_bytes is {self.memory_bytes!r}: must be a whole number from 0")
        if not isinstance(self.keys, str) or not (self.key_trace is None or isinstance(self.key_trace, str)):
            raise ProfileError("accelerator: keys must be text, key_trace the path of a file, or null")

    def frequencies(self, spec: ModelSpec) -> Frequencies:
        """How often each row of `spec` is looked up. Raises ValueError where that cannot be told any more."""
        if self.key_trace is not None:
            return read_key_trace(Path(self.key_trace), spec)
        return key_frequencies(spec, key_skew(self.keys))

    def check(self, spec: ModelSpec) -> None:
        """Raises as `frequencies` would, for less work where there is no trace to read."""
        if self.key_trace is not None:
            self.frequencies(spec)
        else:
            key_skew(self.keys)

    def accelerator(self, spec: ModelSpec) -> Accelerator:
        """The accelerator for a model."""
        return Accelerator(self.memory_bytes, lambda: self.frequencies(spec))

    def to_dict(self) -> dict[str, Any]:
        """Plain data; `from_dict` reads it back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: object) -> AcceleratorUse:
        """The inverse of `to_dict`; raises `ProfileError` naming a missing, unknown or ill-typed field."""
        return cls(**checked_fields("accelerator", data, ("memory_bytes", "keys", "key_trace")))
