"""From fractions of servers to whole ones: rounding of the relaxation, and improvement by neighbourhoods.

A corner of the relaxation has few fractional counts, a handful a model. They are rounded down, and then each model in
turn gives back a few servers and covers what it lacks anew, at the least cost, by dynamic programming over the types
that are nearly worth their price. A server of an exhausted type is at first priced at its worth to others, later at
less, so that the first models do not take what the last ones need and nothing is left idle in the end. Improvement
does the same with two models at once, drawn at random, and keeps what does not cost more.

HiGHS' own search takes many times as long for the same gap at a hundred models and a thousand types.
"""

from __future__ import annotations

import numpy as np

from hebe.planning.provisioning.program import COVERED, CoverProgram, Floats, Ints, Relaxation

_STEPS = 1200
"""The dynamic program counts load in this many steps of what is to be covered; a server's is rounded down."""
_CANDIDATES = 20
"""Server types that are tried for a model, of the least reduced cost among the free ones."""
_RELEASED_TYPES = 5
"""Server types of which a model gives back servers at once."""
_MOST_RELEASED = 4
"""Servers of one type that a model gives back at once, when improving."""
_REVIEW_ROUNDS = 20
"""How often it is worked out anew which models pay too much."""
_SCARCITY = (1.0, 0.5, 0.2, 0.0)
"""In which share of its worth to others a server of an exhausted type is priced, pass after pass."""
_SHORTAGE = 100.0
"""A demand that is not covered costs as much as this many of the dearest servers, and what it lacks besides."""


class Rounding:
    """Whole servers for a program: `counts` int64 `[models, types]`, at any time within what is available.

    They start as `start` rounded down, and may leave demands uncovered at first. `chance` draws the order of the models
    and the neighbourhoods.
    """

    def __init__(
        self,
        program: CoverProgram,
        relaxation: Relaxation,
        start: Floats | Ints,
        chance: np.random.Generator,
    ) -> None:
        self._program = program
        self._relaxation = relaxation
        self._chance = chance
        self.counts: Ints = np.floor(start + 1e-7).astype(np.int64)
        self._drop_excess()
        self._free: Ints = program.available - self.counts.sum(axis=0)
        self._served: Floats = (program.qps * self.counts).sum(axis=1)
        self._models: Ints = np.flatnonzero(program.demand > 0)
        self._shortage_cost = _SHORTAGE * float((program.cost + program.set_up)[program.qps > 0].max(initial=0.0))

    def _drop_excess(self) -> None:
        """Take away what the counts of a type may have above what is available, by the solver's tolerance."""
        excess = self.counts.sum(axis=0) - self._program.available
        for kind in np.flatnonzero(excess > 0):
            self.counts[np.argmax(self.counts[:, kind]), kind] -= excess[kind]

    @property
    def short_models(self) -> Ints:
        """The models whose demand is not met."""
        return np.flatnonzero(self._served < COVERED * self._program.demand)

    @property
    def value(self) -> float:
        """The objective of `counts`."""
        return self._program.value(self.counts)

    def round(self) -> None:
        """Cover every model's demand; exhausted types are first priced at their worth to others, then at less."""
        for turn, scarcity in enumerate(_SCARCITY):
            for model in self._chance.permutation(self._models):
                self._cover_again([int(model)], 1 if turn == 0 else 2, [scarcity], scarcity)

    def improve(self, rounds: int, good_enough: float) -> None:
        """Cover two or three models at once anew, `rounds` times, or until all is covered at a value of `good_enough`.

        The last one, judged by true cost, is drawn by what it pays beyond the relaxation, or is one that is short.
        """
        if len(self._models) < 2:
            return
        most = len(self._models) - 1
        value = float(self._judged(self._models, self.counts[self._models], 0.0))
        for turn in range(rounds):
            if turn % _REVIEW_ROUNDS == 0:
                excess = self._excess()
            short = self.short_models
            if len(short) == 0 and value <= good_enough:
                return
            last = int(self._chance.choice(short)) if len(short) else int(self._chance.choice(self._models, p=excess))
            others = self._chance.choice(self._models, min(int(self._chance.integers(1, 3)), most), replace=False)
            models = [*others[others != last].tolist(), last]
            if len(short):
                models.reverse()
            scarcities = [*self._chance.random(len(models) - 1).tolist(), 0.0]
            release = int(self._chance.integers(1, _MOST_RELEASED + 1))
            value -= self._cover_again(models, release, scarcities, 0.0)

    def _excess(self) -> Floats:
        """What each of the models with a demand pays beyond the relaxation, as shares that sum to 1."""
        program, relaxation = self._program, self._relaxation
        reduced = np.where(np.isfinite(relaxation.reduced_cost), relaxation.reduced_cost, 0.0)
        beyond = (reduced * self.counts).sum(axis=1) + relaxation.demand_price * (self._served - program.demand)
        beyond = np.maximum(beyond[self._models], 0.0)
        # all have some chance, and an equal one where nobody pays anything beyond
        weights = beyond + 0.01 * beyond.mean() + 1e-300
        shares: Floats = weights / weights.sum()
        return shares

    def _cover_again(self, models: list[int], release: int, scarcities: list[float], judge: float) -> float:
        """Let `models` give back up to `release` servers of each type and cover their demands anew, one by one.

        Each is covered at prices with its scarcity; what comes out is kept if at prices with scarcity `judge` it is
        no worse. Returns what was saved by it, shortages included.
        """
        old = self.counts[models]
        new = old - np.stack([self._released(counts, release) for counts in old])
        free = self._free + (old - new).sum(axis=0)
        for at, model in enumerate(models):
            added = self._cover(model, new[at], free, scarcities[at])
            new[at] += added
            free -= added
        before, after = self._judged(models, np.stack((old, new)), judge)
        saved = float(before - after)
        if saved < 0:
            return 0.0
        self.counts[models] = new
        self._free = free
        self._served[models] = (self._program.qps[models] * new).sum(axis=1)
        return saved

    def _judged(self, models: list[int] | Ints, counts: Ints, scarcity: float) -> Floats:
        """Cost of each of some `counts` `[..., models, types]`, and of what they leave uncovered: float64 `[...]`."""
        program = self._program
        cost = program.cost[models] + scarcity * self._relaxation.type_price
        started = np.maximum(counts - program.previous[models], 0)
        share = 1.0 - (program.qps[models] * counts).sum(axis=-1) / program.demand[models]
        shortage = self._shortage_cost * np.where(share > 1.0 - COVERED, 1.0 + share, 0.0)
        servers = cost * counts + program.set_up[models] * started
        judged: Floats = servers.sum(axis=(-2, -1)) + shortage.sum(axis=-1)
        return judged

    def _released(self, counts: Ints, most: int) -> Ints:
        """Up to `most` servers of each type that a model has, of some types if it has many."""
        kinds = np.flatnonzero(counts)
        if len(kinds) > _RELEASED_TYPES:
            kinds = self._chance.choice(kinds, _RELEASED_TYPES, replace=False)
        released = np.zeros_like(counts)
        released[kinds] = np.minimum(counts[kinds], most)
        return released

    def _cover(self, model: int, base: Ints, free: Ints, scarcity: float) -> Ints:
        """Servers `[types]` of the free ones that complete `base` to the model's demand at the least cost."""
        program, relaxation = self._program, self._relaxation
        added = np.zeros(len(base), dtype=np.int64)
        qps = program.qps[model]
        lacking = float(program.demand[model] * (1.0 - (1.0 - COVERED) / 2) - qps @ base)
        if lacking <= 0:
            return added
        price = program.cost[model] + scarcity * relaxation.type_price
        kept = np.maximum(program.previous[model] - base, 0)
        next_price = price + np.where(kept > 0, 0.0, program.set_up[model])
        score = np.where((free > 0) & (qps > 0), next_price - relaxation.demand_price[model] * qps, np.inf)
        kinds = np.argsort(score, kind="stable")[: np.isfinite(score).sum()]
        # as many types as cover it twice over, if a few do not
        enough = int(np.searchsorted(np.cumsum(qps[kinds] * free[kinds]), 2 * lacking)) + 1
        kinds = kinds[: max(_CANDIDATES, enough)]
        added[kinds] = _cheapest_cover(
            qps[kinds],
            free[kinds],
            kept[kinds],
            price[kinds],
            program.set_up[model, kinds],
            lacking,
            self._shortage_cost,
        )
        return added


def _cheapest_cover(
    qps: Floats, free: Ints, kept: Ints, price: Floats, set_up: Floats, lacking: float, shortage_cost: float
) -> Ints:
    """How many servers of each type, at most `free`, cover `lacking` queries/s at the least cost.

    All arrays are `[types]`. Up to `kept` servers of a type cost `price`, further ones `set_up` more; any shortage
    costs `shortage_cost`, and a full one twice that. A dynamic program: `cheapest[i, j]` is the cost of covering j
    steps of the load with the first i items, an item being 1, 2, 4, ... servers of one type.
    """
    step = lacking / _STEPS
    items: list[tuple[int, int]] = []
    costs: list[float] = []
    most = np.minimum(free, np.ceil(lacking / qps)).astype(np.int64).tolist()  # as floats, which hold any ratio
    for kind, (limit, running) in enumerate(zip(most, kept.tolist(), strict=True)):
        running = min(limit, running)
        for number, cost in ((running, price[kind]), (limit - running, price[kind] + set_up[kind])):
            size = 1
            while number > 0:
                size = min(size, number)
                items.append((kind, size))
                costs.append(size * cost)
                number -= size
                size *= 2
    steps = [min(int(size * qps[kind] / step + 1e-9), _STEPS) for kind, size in items]
    cheapest = np.empty((len(items) + 1, _STEPS + 1))
    cheapest[0, 0] = 0.0
    cheapest[0, 1:] = np.inf
    for at, (width, cost) in enumerate(zip(steps, costs, strict=True)):
        before, after = cheapest[at], cheapest[at + 1]
        np.minimum(before[: width + 1], cost, out=after[: width + 1])
        after[0] = 0.0
        np.add(before[1 : _STEPS + 1 - width], cost, out=after[width + 1 :])
        np.minimum(after[width + 1 :], before[width + 1 :], out=after[width + 1 :])
    short = shortage_cost * (2.0 - np.arange(_STEPS) / _STEPS)
    cheapest[-1, :_STEPS] += short
    at_step = int(np.argmin(cheapest[-1]))
    cheapest[-1, :_STEPS] -= short
    chosen = np.zeros(len(qps), dtype=np.int64)
    for at in range(len(items) - 1, -1, -1):
        if cheapest[at + 1, at_step] < cheapest[at, at_step]:
            kind, size = items[at]
            chosen[kind] += size
            at_step = max(0, at_step - steps[at])
    return chosen
