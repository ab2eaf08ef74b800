"""How a server runs one model, where a profile says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hebe.profile import EfficiencyTuple
from hebe.runtime.accelerator import Accelerator
from hebe.server_configuration import Lane
from hebe.spec import ModelSpec, SlaTarget

KeepMeasured = Callable[[EfficiencyTuple, str], None]
"""Writes a corrected tuple, and the time since when it is so (ISO 8601), to where the profile is from. Blocks; raises
OSError or ValueError where that cannot be."""


@dataclass(frozen=True, slots=True)
class ServedConfiguration:
    """A profile's configuration of one model, with what it was measured to reach.

    `version`, `identity` (`LoadedModel.identity`) and `sla`: what was measured; other versions of the model are run in
    the same configuration, but `efficiency` is not theirs. `measured`: the tuple as serving has corrected it so far, by
    `measured_at`. `accelerator`: makes the one that lanes may run on, for a version that is to be loaded. `keep`: where
    corrections go besides. `power_watts`: of the server, idle and at full load, to estimate from as the profile did.
    `power_budget_watts`: what it may draw at most, None where nothing was said.
    """

    lanes: tuple[Lane, ...]
    version: int
    identity: str
    sla: SlaTarget
    efficiency: EfficiencyTuple
    measured: EfficiencyTuple | None = None
    measured_at: str | None = None
    accelerator: Callable[[ModelSpec], Accelerator] | None = None
    keep: KeepMeasured | None = None
    power_watts: tuple[float, float] | None = None
    power_budget_watts: float | None = None
