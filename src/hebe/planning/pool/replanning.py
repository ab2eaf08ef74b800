"""Plans again when query sizes shift: observe, shifted, plan for what was seen, compare with that (Kairos section 5.2).

Who drives a fleet tells the monitor of every query that arrives, and asks now and then; what it does with a new plan,
and how long servers take to come and go, is its own affair.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Generic, TypeVar

from hebe.planning.pool.pool_problem import PoolProblem
from hebe.planning.pool.query_size_monitor import QuerySizeMonitor

Plan = TypeVar("Plan")


class Replanner(Generic[Plan]):
    """Keeps `current`, what `make_plan` made of `problem`, the sizes of which are those last planned for.

    `monitor` is to be told of all queries. `planned_from`: from how many queries the first problem's sizes were
    estimated, if they were. No clock, no chance, but those of `make_plan`; raises what it does.
    """

    def __init__(
        self, problem: PoolProblem, make_plan: Callable[[PoolProblem], Plan], *, planned_from: float = math.inf
    ) -> None:
        self.problem = problem
        self.monitor = QuerySizeMonitor(problem.size_weights, planned_from=planned_from)
        self.current = make_plan(problem)
        self._make_plan = make_plan

    def plan_if_shifted(self) -> bool:
        """Plan for the sizes in the monitor's window if they are no longer those planned for; whether it was done.

        Where `make_plan` raises, all stays as it was, and the next call tries again.
        """
        if not self.monitor.shifted():
            return False
        seen = self.monitor.weights()
        problem = replace(self.problem, size_weights=seen)
        self.current = self._make_plan(problem)
        self.problem = problem
        self.monitor.plan_for(seen, planned_from=self.monitor.queries)
        return True
