"""The program behind provisioning (Hercules, Eq. 1-3), as arrays: its relaxation with a proven bound, and its exact
solution by HiGHS.

    minimise   sum cost * counts + set_up * (counts - previous, where positive)           (Eq. 1, and set-up)
    such that  sum over types of counts * qps >= demand, for every model                  (Eq. 2)
               sum over models of counts <= available, for every server type              (Eq. 3)

A set-up cost makes servers of one pair unlike: those that run already cost less than those to be started. They become
two columns of the program, kept ones (at most `previous`) and started ones; since kept ones are cheaper they come
first in every optimum, and no further constraint is needed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, linprog, milp

from hebe.planning.error import PlanningError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_MOST_SHARE = 1e6
"""Of a demand, what a server is taken to serve at most: where it serves more than all of it, that makes no difference,
but to the solver."""
_LEAST_PRICE = 1e-9
"""Of the largest one, above which a price is no rounding error."""

COVERED = 1.0 - 1e-9
"""The share of a demand at which it counts as met: sums of floats that should be equal seldom are."""


class Method(StrEnum):
    """How the relaxation is solved. The paper uses an interior point; rounding wants a corner, where few counts are
    fractional. HiGHS' interior point goes on to the same corner, and takes three times as long at 100 x 1,000."""

    SIMPLEX = "highs-ds"
    INTERIOR_POINT = "highs-ipm"


@dataclass(frozen=True, slots=True, eq=False)
class CoverProgram:
    """One interval's program.

    `qps`, `cost`, `set_up` float64 `[models, types]`, at least 0; a `qps` of 0 says that the type cannot serve the
    model. `previous` int64 `[models, types]`, what runs already; `available` int64 `[types]`; `demand` float64
    `[models]`, queries/s with the over-provision rate in it.
    """

    qps: Floats
    cost: Floats
    set_up: Floats
    previous: Ints
    available: Ints
    demand: Floats

    @property
    def usable(self) -> Flags:
        """Which pairs may have servers, bool `[models, types]`: there are some, they serve the model, it is wanted."""
        usable: Flags = (self.qps > 0) & (self.available > 0) & (self.demand > 0)[:, None]
        return usable

    @property
    def keepable(self) -> Flags:
        """The usable pairs of which servers run already and cost less than started ones, bool `[models, types]`."""
        keepable: Flags = self.usable & (self.previous > 0) & (self.set_up > 0)
        return keepable

    def capped(self) -> CoverProgram:
        """The same for whole servers: one that could serve more than all of a model's demand serves just that.

        The relaxation is tighter then, for it takes no thousandth of a server where a whole one is needed.
        """
        return replace(self, qps=np.minimum(self.qps, self.demand[:, None]))

    def value(self, counts: npt.NDArray[Any]) -> float:
        """The objective of `counts` `[models, types]`."""
        started = np.maximum(counts - self.previous, 0)
        return float((self.cost * counts).sum() + (self.set_up * started).sum())

    def is_met(self, counts: npt.NDArray[Any]) -> bool:
        """Whether `counts` meets every demand within what is available."""
        covered = (self.qps * counts).sum(axis=1) >= COVERED * self.demand
        return bool(covered.all() and (counts.sum(axis=0) <= self.available).all())


@dataclass(frozen=True, slots=True, eq=False)
class Relaxation:
    """The optimum in fractions of servers: `counts` float64 `[models, types]`, and what it proves.

    No plan costs less than `bound`, which is computed anew from the prices, so it holds whatever the solver's
    tolerances. `demand_price` `[models]` is the cost of one more query/s, `type_price` `[types]` the saving by one more
    server; `reduced_cost` and `kept_reduced_cost` `[models, types]` are what one server of a pair, started or kept,
    costs beyond its worth at these prices (infinite where there is no such column).
    """

    counts: Floats
    bound: float
    demand_price: Floats
    type_price: Floats
    reduced_cost: Floats
    kept_reduced_cost: Floats


@dataclass(frozen=True, slots=True, eq=False)
class _Columns:
    """The program's columns: of which model and type, at what cost, at most how many."""

    models: Ints
    types: Ints
    cost: Floats
    limit: Floats
    kept: Flags

    def counts(self, values: Floats, shape: tuple[int, ...]) -> Floats:
        counts = np.zeros(shape)
        np.add.at(counts, (self.models, self.types), values)
        return counts


def _columns(program: CoverProgram) -> _Columns:
    models, types = np.nonzero(program.usable)
    kept_models, kept_types = np.nonzero(program.keepable)
    kept_limit = np.minimum(program.previous[kept_models, kept_types], program.available[kept_types])
    return _Columns(
        np.concatenate((models, kept_models)),
        np.concatenate((types, kept_types)),
        np.concatenate(
            (program.cost[models, types] + program.set_up[models, types], program.cost[kept_models, kept_types])
        ),
        np.concatenate((program.available[types], kept_limit)).astype(np.float64),
        np.arange(len(models) + len(kept_models)) >= len(models),
    )


def _rows(program: CoverProgram, columns: _Columns) -> tuple[sparse.csc_array, Floats]:
    """Eq. 2 and 3 as `matrix @ x <= limit`; a demand row is divided by its demand, so that all are of one scale."""
    share = program.qps[columns.models, columns.types] / program.demand[columns.models]
    count = len(columns.models)
    # every column stands in one demand row and one availability row: built as compressed columns at once
    values = np.column_stack((-share, np.ones(count))).ravel()
    rows = np.column_stack((columns.models, len(program.demand) + columns.types)).ravel()
    shape = (len(program.demand) + len(program.available), count)
    matrix = sparse.csc_array((values, rows, np.arange(0, 2 * count + 1, 2)), shape=shape)
    limits = np.concatenate((np.where(program.demand > 0, -1.0, 0.0), program.available))
    return matrix, limits


def relax(program: CoverProgram, method: Method = Method.SIMPLEX) -> Relaxation | None:
    """The optimum in fractions of servers; None where not even fractions can meet the demand."""
    columns = _columns(program)
    shape = program.qps.shape
    if len(columns.models) == 0:
        if (program.demand > 0).any():
            return None
        return _priced(program, np.zeros(shape), np.zeros(shape[0]), np.zeros(shape[1]))
    matrix, limits = _rows(program, columns)
    unit = float(columns.cost.max()) or 1.0
    bounds = np.column_stack((np.zeros(len(columns.limit)), np.where(columns.kept, columns.limit, np.inf)))
    found = linprog(columns.cost / unit, A_ub=matrix, b_ub=limits, bounds=bounds, method=str(method))
    if found.status == 2:
        return None
    if found.status != 0:
        raise PlanningError(f"provisioning: the relaxation was not solved: {found.message}")
    prices = np.maximum(-found.ineqlin.marginals, 0.0) * unit
    demand_price = np.divide(prices[: shape[0]], program.demand, out=np.zeros(shape[0]), where=program.demand > 0)
    return _priced(program, columns.counts(found.x, shape), demand_price, prices[shape[0] :])


def _priced(program: CoverProgram, counts: Floats, demand_price: Floats, type_price: Floats) -> Relaxation:
    """The bound by weak duality: dearer servers, where the solver's prices leave a started one below its worth."""
    usable, kept = program.usable, program.keepable
    worth = np.where(usable, program.qps * demand_price[:, None] - program.cost, -np.inf)
    type_price = np.maximum(type_price, np.maximum(worth - program.set_up, 0.0).max(axis=0, initial=0.0))
    beyond_worth = type_price - worth
    kept_reduced = np.where(kept, beyond_worth, np.inf)
    # a kept server below its worth is taken as often as there are such servers
    kept_limit = np.minimum(program.previous, program.available)
    gain = np.where(kept, np.minimum(beyond_worth, 0.0), 0.0) * kept_limit
    bound = float(demand_price @ program.demand - type_price @ program.available + gain.sum())
    return Relaxation(
        counts,
        max(bound, 0.0),
        demand_price,
        type_price,
        np.where(usable, beyond_worth + program.set_up, np.inf),
        kept_reduced,
    )


@dataclass(frozen=True, slots=True, eq=False)
class ExactSearch:
    """What HiGHS found: `counts` int64 `[models, types]`, or None; no plan costs less than `bound` (infinite: none is).

    Both refer to plans of at most the value that it was told to beat.
    """

    counts: Ints | None
    bound: float


def search_exactly(
    program: CoverProgram,
    relaxation: Relaxation,
    beat: float,
    target_gap: float,
    time_limit_s: float,
    most_columns: float = np.inf,
) -> ExactSearch | None:
    """Solve the program in whole servers for plans that cost at most `beat` (infinite: any plan).

    Stops within `target_gap` of the optimum or after `time_limit_s` seconds, as HiGHS counts them. None if there would
    be more than `most_columns` columns, which would only waste that time.
    """
    columns = _columns(program)
    reduced = np.where(
        columns.kept,
        relaxation.kept_reduced_cost[columns.models, columns.types],
        relaxation.reduced_cost[columns.models, columns.types],
    )
    # a plan costs the bound and the reduced costs of all its servers, at least: that limits how many it can have
    if np.isfinite(beat):
        spare = max(beat - relaxation.bound, 0.0) * (1 + 1e-6) + 1e-9
        most = np.divide(spare, reduced, out=np.full(len(reduced), np.inf), where=reduced > 0)
        columns.limit[:] = np.minimum(columns.limit, np.floor(most))
    used = columns.limit > 0
    if used.sum() > most_columns:
        return None
    columns = _Columns(
        columns.models[used], columns.types[used], columns.cost[used], columns.limit[used], columns.kept[used]
    )
    if len(columns.models) == 0:
        return ExactSearch(None, np.inf)
    matrix, limits = _rows(program, columns)
    unit = float(columns.cost.max()) or 1.0
    found = milp(
        columns.cost / unit,
        constraints=LinearConstraint(matrix, -np.inf, limits),
        integrality=np.ones(len(columns.cost)),
        bounds=Bounds(0, columns.limit),
        options={"mip_rel_gap": target_gap, "time_limit": time_limit_s},
    )
    if found.status == 2:
        return ExactSearch(None, np.inf)
    bound = relaxation.bound if found.mip_dual_bound is None else float(found.mip_dual_bound) * unit
    counts = None if found.x is None else columns.counts(np.round(found.x), program.qps.shape).astype(np.int64)
    return ExactSearch(counts, max(bound, relaxation.bound))


@dataclass(frozen=True, slots=True, eq=False)
class LoadFactor:
    """The largest load that fits, all models alike: `counts` `[models, types]` serve `whole` times the demand.

    Fractions of servers would serve `fractional` times the demand, and nothing serves more; no whole servers serve more
    than `most` times, which is all of `fractional` where the search proved no less. `models` and `types`, indices, are
    those that stand in the way: all servers of these types are taken, and these models want them.
    """

    counts: Ints
    whole: float
    most: float
    fractional: float
    models: tuple[int, ...]
    types: tuple[int, ...]


def largest_load_factor(program: CoverProgram, time_limit_s: float) -> LoadFactor:
    """How much of the demand fits, all models alike; some model must have a demand.

    HiGHS looks for the whole servers for `time_limit_s`; at 0, and where it finds none that serve more, they are the
    fractions, rounded down.
    """
    shape = program.qps.shape
    # In units of what all servers together would serve of some model: the solver drops coefficients that are tiny.
    unit = _most_that_fits(program)
    scaled, columns, matrix, limits = _load_program(program, unit)
    objective = np.append(np.zeros(len(columns.models)), -1.0)
    relaxed = linprog(objective, A_ub=matrix, b_ub=limits, method=str(Method.SIMPLEX))
    if relaxed.status != 0:
        raise PlanningError(f"provisioning: the largest load was not found: {relaxed.message}")
    fractional = float(-relaxed.fun)
    prices = -relaxed.ineqlin.marginals
    counts = columns.counts(np.floor(relaxed.x[:-1] + 1e-7), shape).astype(np.int64)
    fits, most = _share_served(scaled, counts), fractional
    if time_limit_s > 0 and fractional > 0:
        # The factor is near 1 now: where it was far below, HiGHS has called half of the optimum optimal.
        nearer, columns, matrix, limits = _load_program(program, unit * fractional)
        whole = milp(
            objective,
            constraints=LinearConstraint(matrix, -np.inf, limits),
            integrality=np.append(np.ones(len(columns.models)), 0),
            bounds=Bounds(0, np.append(columns.limit, np.inf)),
            options={"time_limit": time_limit_s, "mip_rel_gap": 0.0},
        )
        if whole.mip_dual_bound is not None:
            most = min(fractional, -float(whole.mip_dual_bound) * fractional)
        if whole.x is not None:
            found = columns.counts(np.round(whole.x[:-1]), shape).astype(np.int64)
            if (better := _share_served(nearer, found) * fractional) > fits:
                counts, fits = found, better
    by_model, by_type = prices[: shape[0]], prices[shape[0] :]
    return LoadFactor(
        counts,
        fits * unit,
        most * unit,
        fractional * unit,
        tuple(np.flatnonzero(by_model > _LEAST_PRICE * by_model.max()).tolist()),
        tuple(np.flatnonzero(by_type > _LEAST_PRICE * by_type.max()).tolist()),
    )


def _load_program(program: CoverProgram, unit: float) -> tuple[CoverProgram, _Columns, sparse.csc_array, Floats]:
    """(the program with `unit` times its demand; its columns, and behind them the load factor, in that unit; the rows
    of available servers and of the share that is met of each demand, which is at least the factor; their limits)."""
    program = replace(program, demand=program.demand * unit)
    program = replace(program, qps=np.minimum(program.qps, _MOST_SHARE * program.demand[:, None]))
    models, types = np.nonzero(program.usable)
    columns = _Columns(
        models, types, np.zeros(len(models)), program.available[types].astype(np.float64), np.zeros(len(models), bool)
    )
    matrix, limits = _rows(program, columns)
    of_types = np.zeros(program.qps.shape[1])
    factor = sparse.csc_array(np.concatenate((program.demand > 0, of_types))[:, None].astype(np.float64))
    return program, columns, sparse.hstack((matrix, factor), format="csc"), np.where(limits < 0, 0.0, limits)


def _share_served(program: CoverProgram, counts: Ints) -> float:
    """The least share of any model's demand that `counts` `[models, types]` serve."""
    in_demand = program.demand > 0
    return float(((program.qps * counts).sum(axis=1)[in_demand] / program.demand[in_demand]).min())


def _most_that_fits(program: CoverProgram) -> float:
    """A load factor that cannot be exceeded: of the model for which all servers that can serve it do least; or 1."""
    wanted = program.demand > 0
    together = (program.qps * program.available).sum(axis=1)
    factor = float((together[wanted] / program.demand[wanted]).min(initial=np.inf))
    return factor if np.isfinite(factor) and factor > 0 else 1.0
