"""Where a batch's time goes on one core, and what op workers that took whole ops would idle (Hercules, Figure 5)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hebe.profile import ProfileError
from hebe.profiling.files.plain_data import checked_fields, checked_number, checked_object


@dataclass(frozen=True, slots=True)
class OpUse:
    """A batch of `items`: `seconds` by class of op, `idle_share` of the op workers' time by how many there are.

    Raises `ProfileError` for what is none of these.
    """

    items: int
    seconds: Mapping[str, float]
    idle_share: Mapping[int, float]

    def __post_init__(self) -> None:
        if not isinstance(self.items, int) or isinstance(self.items, bool) or self.items < 1:
            raise ProfileError(f"op_use: items is {self.items!r}: must be a whole number of at least 1")
        for name, values, most in (("seconds", self.seconds, math.inf), ("idle_share", self.idle_share, 1.0)):
            for key, value in values.items():
                if checked_number("op_use", f"{name} of {key}", value) > most:
                    raise ProfileError(f"op_use: {name} of {key} is {value!r}: must be a number from 0 to {most:g}")

    def to_dict(self) -> dict[str, Any]:
        """Plain data; `from_dict` reads it back to an equal object."""
        shares = {str(workers): share for workers, share in self.idle_share.items()}
        return {"items": self.items, "seconds": dict(self.seconds), "idle_share": shares}

    @classmethod
    def from_dict(cls, data: object) -> OpUse:
        """The inverse of `to_dict`; raises `ProfileError` naming a missing, unknown or ill-typed field."""
        told = checked_fields("op_use", data, ("items", "seconds", "idle_share"))
        shares = checked_object("op_use: idle_share", told["idle_share"])
        if odd := next((workers for workers in shares if not workers.isdecimal()), None):
            raise ProfileError(f"op_use: idle_share is of {odd!r}: must be of so many op workers")
        seconds = checked_object("op_use: seconds", told["seconds"])
        return cls(told["items"], seconds, {int(workers): share for workers, share in shares.items()})
