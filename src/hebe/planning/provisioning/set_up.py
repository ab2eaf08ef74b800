"""Servers that are set up before they serve: which can be in time, and what a plan covers where some are late.

A server is set up before the interval that it is started for, if some server of its type is free for so long. Where all
of them serve other models until then, it is set up when the interval begins, and serves the later part of it only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hebe.planning.provisioning.program import COVERED, CoverProgram, Floats, Ints


def intervals_ahead(interval_s: float, set_up_s: float) -> int:
    """In how many intervals before its own a server is set up, the first of them perhaps in part."""
    return math.ceil(set_up_s / interval_s * (1 - 1e-9))


def free_for_set_up(available: Ints, counts: Sequence[Ints], previous: Ints | None, ahead: int) -> Ints:
    """How many servers of each type are free in all of the `ahead` intervals before the next one: int64 `[types]`.

    `counts` `[models, types]` are planned for the intervals so far. Servers that are set up meanwhile for one of them
    are not free. Before the first interval `previous` runs; where that is not known, all are free.
    """
    known = [*([] if previous is None else [previous]), *counts][-ahead:]
    started = [np.maximum(after - before, 0).sum(axis=0) for before, after in pairwise(known)]
    free = available.copy()
    for at, running in enumerate(known):
        setting_up = sum(started[at:], np.zeros_like(available))
        free = np.minimum(free, available - running.sum(axis=0) - setting_up)
    return np.maximum(free, 0)


@dataclass(frozen=True, slots=True, eq=False)
class SetUpProgram:
    """A program whose servers either run already or are set up in time: `program` has columns of its own for both.

    Its first types are those of the fleet, for servers to be started; each further one stands for the servers of
    `kept_types` that run one of `kept_models` already, and can go on with that only.
    """

    program: CoverProgram
    kept_models: Ints
    kept_types: Ints

    @classmethod
    def of(cls, program: CoverProgram, startable: Ints) -> SetUpProgram:
        """From a program with `previous` and `set_up`, with at most `startable` `[types]` servers to be started."""
        models, types = np.nonzero((program.previous > 0) & (program.qps > 0))
        columns = np.arange(len(models))
        kept_qps, kept_cost = np.zeros((2, len(program.demand), len(models)))
        kept_qps[models, columns] = program.qps[models, types]
        kept_cost[models, columns] = program.cost[models, types]
        expanded = (len(program.demand), len(startable) + len(models))
        return cls(
            CoverProgram(
                np.hstack((program.qps, kept_qps)),
                np.hstack((program.cost + program.set_up, kept_cost)),
                np.zeros(expanded),
                np.zeros(expanded, dtype=np.int64),
                np.concatenate((startable, np.minimum(program.previous[models, types], program.available[types]))),
                program.demand,
            ),
            models,
            types,
        )

    def counts(self, found: Ints) -> Ints:
        """Servers of the fleet's types `[models, types]`, of what was found for the program."""
        types = found.shape[1] - len(self.kept_types)
        counts = found[:, :types].copy()
        kept = found[self.kept_models, types + np.arange(len(self.kept_types))]
        np.add.at(counts, (self.kept_models, self.kept_types), kept)
        return counts


def late_start(free: Ints, before: Ints, now: Ints) -> Ints:
    """Which of the servers that `now` has more of than `before`, both `[models, types]`, cannot be had of the `free`.

    What is free, `[types]`, is shared out among the models that start servers of a type, in proportion.
    """
    started = np.maximum(now - before, 0)
    late: Ints = started - _shared_out(started, free)
    return late


def late_starts(available: Ints, counts: Ints, previous: Ints | None, ahead: int) -> Ints:
    """Servers that are started for each interval, but cannot be set up before it: int64 `[intervals, models, types]`.

    `counts` `[intervals, models, types]`; none are late in the first interval unless it is known what ran before.
    """
    late = np.zeros_like(counts)
    before: Ints | None = previous
    for interval, now in enumerate(counts):
        if ahead and before is not None:
            free = free_for_set_up(available, list(counts[:interval]), previous, ahead)
            late[interval] = late_start(free, before, now)
        before = now
    return late


def joining(counts: Ints, late: Ints, interval: int, interval_s: float, set_up_s: float) -> list[tuple[float, Ints]]:
    """The servers that are not set up when an interval begins, with how many seconds later each of them is, the first
    ones first.

    `counts` and of them the `late`, both `[intervals, ...]`, are those of all intervals; what is told is `[...]`. A
    set-up may last beyond its own interval, into further ones. Of servers that are given up, those go first that have
    served.
    """
    left, found = counts[interval], []
    for before in range(min(intervals_ahead(interval_s, set_up_s), interval + 1)):  # the last to join at first
        missing = np.minimum(late[interval - before], left)
        if missing.any():
            found.append((set_up_s - before * interval_s, missing))
            left = left - missing
    return found[::-1]


def _shared_out(wanted: Ints, free: Ints) -> Ints:
    """How many of `wanted` `[models, types]` are had of `free` `[types]`: in proportion, the largest rests first."""
    got = np.zeros_like(wanted)
    for kind in np.flatnonzero(wanted.sum(axis=0)):
        most = min(int(wanted[:, kind].sum()), int(free[kind]))
        exact = wanted[:, kind] * (most / wanted[:, kind].sum())
        got[:, kind] = np.floor(exact + 1e-9)
        rest = most - int(got[:, kind].sum())
        got[np.argsort(got[:, kind] - exact, kind="stable")[:rest], kind] += 1
    return got


def covered_share(
    qps: Floats, counts: Ints, late: Ints, loads_qps: Floats, interval_s: float, step_s: float, set_up_s: float
) -> Floats:
    """The share of the time in which the servers that are set up can serve each model's load: float64 `[models]`.

    `loads_qps` `[n, models]` are so from one step of `step_s` to the next, the first when the first interval begins.
    """
    covered, lasting = np.zeros(loads_qps.shape), np.zeros(len(loads_qps))
    begins_s = np.arange(len(loads_qps)) * step_s
    last = 0
    for interval, now in enumerate(counts):
        first, last = last, int(np.searchsorted(begins_s, (interval + 1) * interval_s * (1 - 1e-9)))
        if first == last:
            break
        begin_s, end_s = interval * interval_s, begins_s[last - 1] + step_s
        waiting = [(begin_s + after_s, some) for after_s, some in joining(counts, late, interval, interval_s, set_up_s)]
        for from_s, to_s in pairwise(sorted({begin_s, *(joins_s for joins_s, _ in waiting if joins_s < end_s), end_s})):
            missing = sum((some for joins_s, some in waiting if joins_s > from_s), np.zeros_like(now))
            capacity = ((now - missing) * qps).sum(axis=1)
            starts, ends = begins_s[first:last], begins_s[first:last] + step_s
            seconds = np.clip(np.minimum(ends, to_s) - np.maximum(starts, from_s), 0.0, None)
            covered[first:last] += (capacity >= COVERED * loads_qps[first:last]) * seconds[:, None]
            lasting[first:last] += seconds
    share: Floats = covered.sum(axis=0) / lasting.sum()
    return share
