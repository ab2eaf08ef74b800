"""A policy that knows service times beforehand, to tell what learning them during a run costs."""

from __future__ import annotations

from hebe.query import SubQuery
from hebe.scheduling.distribution import DistributionPolicy, Placements
from hebe.scheduling.fleet import Fleet
from hebe.scheduling.latency_prediction import LatencyPredictor
from hebe.simulation.service_table import Floats

_TIMES = 5
"""How often each size is told: more than a predictor's table needs to trust it."""
_STEP = 1.5


class KnownTimes:
    """`policy`, on fleets that are told `service_s` float64 [types, largest] before the first query comes."""

    def __init__(self, policy: DistributionPolicy, service_s: Floats) -> None:
        self.predicts = policy.predicts
        self._policy = policy
        self._service_s = service_s
        self._told = False

    @property
    def waiting(self) -> int:
        """The policy's."""
        return self._policy.waiting

    def arrived(self, sub_query: SubQuery, fleet: Fleet, now: float) -> None:
        """To the policy."""
        self._policy.arrived(sub_query, fleet, now)

    def place(self, fleet: Fleet, now: float) -> Placements:
        """The policy's."""
        return self._policy.place(fleet, now)

    def withdraw(self, query_id: int) -> None:
        """From the policy."""
        self._policy.withdraw(query_id)

    def withdraw_all(self) -> list[SubQuery]:
        """All of the policy's."""
        return self._policy.withdraw_all()

    def fleet_changed(self, fleet: Fleet, now: float) -> None:
        """Tell the fleet's predictors the first time."""
        if not self._told:
            self._told = True
            for predictor, times in zip(fleet.predictors, self._service_s, strict=True):
                _tell(predictor, times)
        self._policy.fleet_changed(fleet, now)


def _tell(predictor: LatencyPredictor, service_s: Floats) -> None:
    for _ in range(_TIMES):
        items = 1.0
        while items <= len(service_s):
            predictor.observe(int(items), float(service_s[int(items) - 1]))
            items *= _STEP
        predictor.observe(len(service_s), float(service_s[-1]))
