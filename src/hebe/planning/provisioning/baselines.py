"""The schedulers that Hercules is compared with (II.C and III.C of its paper), with the same kind of plan as result.

- oblivious: takes available servers at random, for whichever model still lacks capacity.
- greedy: each model takes the available servers on which it is most efficient; where several models want the same,
  they are divided at random.
- priority-aware: a contested server type goes to the model that gains most by it, over the type that it would fall
  back to.

They take servers one by one until the demand is met, and look neither at what others could do with a server nor at how
much of the last one is used. What they divide at random is drawn from `chance`. Each raises `PlanningError` naming the
model for which no server is left, which may happen with demands that a better plan meets.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from hebe.planning.error import PlanningError
from hebe.planning.provisioning.program import COVERED, CoverProgram, Floats, Ints
from hebe.planning.provisioning.provisioning import FleetOptions, Objective, ProvisioningPlan, make_program

_Pick = Callable[[int, Sequence[int]], int]
"""The server type to take next for a model, given the free servers of each type; negative if there is none."""


def provision_obliviously(
    options: FleetOptions,
    demand_qps: npt.ArrayLike,
    chance: np.random.Generator,
    *,
    over_provision_rate: npt.ArrayLike = 0.0,
    objective: Objective = Objective.POWER,
) -> ProvisioningPlan:
    """Servers at random, any of those that can serve the model; `objective` only says what the plan's cost is."""
    program = make_program(options, demand_qps, over_provision_rate, objective)

    able = (program.qps > 0).tolist()

    def pick(model: int, free: Sequence[int]) -> int:
        eligible = [count if serves else 0 for count, serves in zip(free, able[model], strict=True)]
        total = sum(eligible)
        if not total:
            return -1
        # What `chance.choice` draws with these weights, less its checks, which take ten times as long.
        cumulated = list(accumulate(count / total for count in eligible))
        return bisect_right([share / cumulated[-1] for share in cumulated], chance.random())

    return _one_by_one(options, program, objective, chance, pick, "oblivious")


def provision_greedily(
    options: FleetOptions,
    demand_qps: npt.ArrayLike,
    chance: np.random.Generator,
    *,
    over_provision_rate: npt.ArrayLike = 0.0,
    objective: Objective = Objective.POWER,
) -> ProvisioningPlan:
    """Each model's most efficient available servers, by queries/s per watt (or per price); models at random."""
    program = make_program(options, demand_qps, over_provision_rate, objective)
    efficiency = _efficiency(program)

    best_first = [
        [kind for kind in order if efficiency[model, kind] > 0]
        for model, order in enumerate(np.argsort(-efficiency, axis=1, kind="stable").tolist())
    ]

    def pick(model: int, free: Sequence[int]) -> int:
        return next((kind for kind in best_first[model] if free[kind] > 0), -1)

    return _one_by_one(options, program, objective, chance, pick, "greedy")


def provision_by_priority(
    options: FleetOptions,
    demand_qps: npt.ArrayLike,
    *,
    over_provision_rate: npt.ArrayLike = 0.0,
    objective: Objective = Objective.POWER,
) -> ProvisioningPlan:
    """Greedy, but a server type goes first to the model whose efficiency on it is most times that of its fallback.

    A model's fallback is what is plentiful: the type with most servers among those that can serve it (of several such
    the one on which it is most efficient). The paper has the CPU servers in its place.
    """
    program = make_program(options, demand_qps, over_provision_rate, objective)
    efficiency = _efficiency(program)
    plenty = np.where(program.qps > 0, program.available, -1)
    fallback = np.where(plenty == plenty.max(axis=1, keepdims=True), efficiency, 0.0).max(axis=1, keepdims=True)
    gain = np.divide(efficiency, fallback, out=np.zeros_like(efficiency), where=fallback > 0)
    counts = np.zeros(program.qps.shape, dtype=np.int64)
    free = program.available.copy()
    lacking = program.demand.copy()
    # of equal gain, which no model prefers, the pair that comes first
    for pair in np.argsort(-gain, axis=None, kind="stable"):
        model, kind = divmod(int(pair), gain.shape[1])
        if program.qps[model, kind] > 0 and lacking[model] > (1 - COVERED) * program.demand[model]:
            wanted = int(np.ceil(COVERED * lacking[model] / program.qps[model, kind]))
            counts[model, kind] = min(wanted, free[kind])
            free[kind] -= counts[model, kind]
            lacking[model] -= counts[model, kind] * program.qps[model, kind]
    short = np.flatnonzero(lacking > (1 - COVERED) * program.demand)
    if len(short):
        raise _exhausted(options, "priority-aware", int(short[0]), float(lacking[short[0]]))
    return _planned(options, program, objective, counts)


def _efficiency(program: CoverProgram) -> Floats:
    """Queries/s per unit of cost, float64 `[models, types]`; 0 where a type cannot serve a model.

    What costs nothing is as efficient as if it cost a millionth of the cheapest server.
    """
    positive = program.cost[program.cost > 0]
    least = 1e-6 * float(positive.min()) if positive.size else 1.0
    efficiency: Floats = program.qps / np.maximum(program.cost, least)
    return efficiency


def _one_by_one(
    options: FleetOptions,
    program: CoverProgram,
    objective: Objective,
    chance: np.random.Generator,
    pick: _Pick,
    name: str,
) -> ProvisioningPlan:
    """Servers picked for one model after the other, drawn at random from those that lack capacity."""
    counts = np.zeros(program.qps.shape, dtype=np.int64)
    # Plain lists: of numpy's arrays each number costs more to take out than to reckon with.
    qps: list[list[float]] = program.qps.tolist()
    free: list[int] = program.available.tolist()
    lacking: list[float] = program.demand.tolist()
    enough: list[float] = ((1 - COVERED) * program.demand).tolist()
    short = [model for model, lacks in enumerate(lacking) if lacks > enough[model]]
    while short:
        at = int(chance.integers(len(short)))
        model = short[at]
        kind = pick(model, free)
        if kind < 0:
            raise _exhausted(options, name, model, lacking[model])
        counts[model, kind] += 1
        free[kind] -= 1
        lacking[model] -= qps[model][kind]
        if lacking[model] <= enough[model]:
            short.pop(at)
    return _planned(options, program, objective, counts)


def _planned(options: FleetOptions, program: CoverProgram, objective: Objective, counts: Ints) -> ProvisioningPlan:
    return ProvisioningPlan(options, counts, objective, program.value(counts))


def _exhausted(options: FleetOptions, name: str, model: int, lacking_qps: float) -> PlanningError:
    return PlanningError(
        f"{name} provisioning: {options.models[model]} lacks {lacking_qps:.4g} queries/s when all servers that can "
        "serve it are taken: add servers, lower the demand, or plan by the optimum"
    )
