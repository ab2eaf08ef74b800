"""What a search for a server's split asks, what its winner is then measured by, and how thoroughly (`Effort`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from hebe.planning.server_split.search import Configuration, Reached
from hebe.profile import LatencyProfile, ScalabilityProfile
from hebe.profiling.files.points import MeasurePoint, ScalabilityPoint
from hebe.profiling.steady_machine import RunDisturbance
from hebe.scheduling.events import Stage
from hebe.server_configuration import Lane

if TYPE_CHECKING:
    from hebe.profiling.files.op_use import OpUse


class ServerEvaluator(Protocol):
    """A running server that takes any configuration; an `Evaluate` of `planning.server_split.search`."""

    @property
    def version(self) -> int:
        """The model's."""

    @property
    def identity(self) -> str:
        """The checksum of the model's files."""

    @property
    def noise(self) -> float:
        """The relative difference of throughput that says nothing."""

    @property
    def lowest_qps(self) -> float:
        """The least rate that is tried before a configuration is said to reach nothing."""

    @property
    def power_source(self) -> str:
        """Where watts are from, known from the beginning; each of `Reached` says it of its own as well."""

    @property
    def power_unreadable(self) -> tuple[str, ...]:
        """What of the power cannot be read, why, and what would help, a sentence each."""

    def op_use(self, items: int) -> OpUse:
        """Where the time of a batch of so many goes. Raises what torch raises for a DenseNet that it cannot export."""

    @property
    def bandwidth_source(self) -> str:
        """Where memory traffic is from, or what it is estimated from and why."""

    @property
    def disturbances(self) -> Sequence[RunDisturbance]:
        """What disturbed each measurement so far that counts, in their order."""

    def remarks(self, found_qps: float) -> tuple[str, ...]:
        """What to know of a throughput that was found, a sentence each."""

    def __call__(self, configuration: Configuration) -> Reached:
        """What the configuration reaches within the SLA target."""

    def latency_profiles(self, configuration: Configuration) -> dict[str, LatencyProfile]:
        """Service time of one batch on one worker, by batch size, of each stage."""

    def busy_profiles(self, lane: Lane, batch_sizes: Sequence[int]) -> dict[Stage, LatencyProfile]:
        """Service time of one batch on one worker of a lane while all of its workers are busy, by batch size, of each
        stage. Its own batch size is left aside."""

    def scalability_point(self, configuration: Configuration, cache_ways: int | None) -> ScalabilityPoint:
        """A `MeasurePoint`."""

    def scalability(self, lane: Lane, measure: MeasurePoint) -> ScalabilityProfile:
        """Latency-bounded throughput with fewer workers like those of `lane`, and memory traffic, as `measure` tells
        them."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How thoroughly a configuration is measured; see `QpsSearch`. `longest_s`: after which it is ended, and given up
    where there were fewer than two rounds by then, since those of one say nothing of their spread."""

    probe_s: float = 2.0
    warm_up_s: float = 0.3
    rounds: int = 3
    resolution: float = 0.03
    longest_s: float = 180.0
    highest_qps: float = 1e6


QUICK = Effort(probe_s=0.7, warm_up_s=0.15, rounds=2, resolution=0.06, longest_s=60.0)
