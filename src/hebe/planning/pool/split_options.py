"""The ways to serve a query: whole on one server type, or in parts on one or two types at once.

Parts on one type are equal; parts on two types are sized so that all finish together, since the query is answered
when its last part is. Three and more types are left out, and so is the one type filled up to the time limit with the
rest on the other: on the measured EC2 types they never raised the bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np

from hebe.planning.error import PlanningError
from hebe.planning.pool.pool_problem import Floats, Ints, PoolProblem

MOST_PARTS = 16
"""The number of options grows with the square of the parts."""


@dataclass(frozen=True, slots=True, eq=False)
class SplitOptions:
    """`parts` int64 `[options, types]`: into how many parts, at the same time, on servers of which type.

    The first `len(types)` options are the whole query on each type. Of an option's one or two types, the lower index
    is `first`, the other `second` (the same again if there is one only), int64 `[options]`. By option and query size,
    float64 `[options, sizes]`: `first_items` and `second_items` of each part on that type (fractions);
    `first_load_s` and `second_load_s`, the server-seconds of all parts on it; `finish_s`, when the last part ends,
    infinite where the option cannot serve the size in time.
    """

    parts: Ints
    first: Ints
    second: Ints
    first_items: Floats
    second_items: Floats
    first_load_s: Floats
    second_load_s: Floats
    finish_s: Floats

    def __len__(self) -> int:
        return len(self.parts)

    def usable(self, counts: Ints) -> Ints:
        """The options that a pool has the servers for, int64 indices."""
        found: Ints = np.flatnonzero((self.parts <= counts).all(axis=1))
        return found

    def among(self, chosen: Ints) -> SplitOptions:
        """These options only."""
        return SplitOptions(
            self.parts[chosen],
            self.first[chosen],
            self.second[chosen],
            self.first_items[chosen],
            self.second_items[chosen],
            self.first_load_s[chosen],
            self.second_load_s[chosen],
            self.finish_s[chosen],
        )


def split_options(problem: PoolProblem, most_parts: int) -> SplitOptions:
    """All options of up to `most_parts` parts (1: no splitting) that may lower the load of a pool of any counts.

    An option is left out where the pool is never better off with it than with the whole query on the same types.
    Raises `PlanningError` if `most_parts` is not in 1..16.
    """
    if not 1 <= most_parts <= MOST_PARTS:
        raise PlanningError(f"most_parts is {most_parts}: must lie in 1..{MOST_PARTS}")
    types, sizes = problem.service_s.shape
    served = np.where(problem.in_time, problem.service_s, np.inf)
    rows = []
    for kind in range(types):
        parts = np.zeros(types, dtype=np.int64)
        parts[kind] = 1
        whole = np.arange(1.0, sizes + 1)
        rows.append((parts, kind, kind, whole, 0 * whole, problem.service_s[kind], 0 * whole, served[kind]))
    for split in _splits(problem, most_parts):
        first, second = split.first, split.second
        first_load_s, second_load_s = split.first_parts * split.first_s, split.second_parts * split.second_s
        # With these shares of whole queries on the same types, each type has no more work than with the parts.
        dominated = first_load_s / served[first] + second_load_s / served[second] >= 1
        fits = split.finish_s <= problem.limit_s
        if not (fits & ~dominated).any():
            continue
        parts = np.zeros(types, dtype=np.int64)
        parts[first], parts[second] = split.first_parts, split.second_parts or split.first_parts
        finish_s = np.where(fits, split.finish_s, np.inf)
        rows.append(
            (parts, first, second, split.first_items, split.second_items, first_load_s, second_load_s, finish_s)
        )
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    return SplitOptions(*columns)


def earliest_finish_s(problem: PoolProblem, most_parts: int) -> Floats:
    """After how many seconds a query of each size is answered at the earliest, whole or in up to `most_parts` parts,
    however late that is: float64 `[sizes]`."""
    earliest_s: Floats = problem.service_s.min(axis=0)
    for split in _splits(problem, most_parts):
        earliest_s = np.minimum(earliest_s, split.finish_s)
    return earliest_s


class _Split(NamedTuple):
    """So many parts on one or two types, as in `SplitOptions`, whatever the time limit. By query size: items and
    seconds of each part, and `finish_s`, infinite where a part would have less than an item.
    """

    first: int
    first_parts: int
    second: int
    second_parts: int
    first_items: Floats
    second_items: Floats
    first_s: Floats
    second_s: Floats
    finish_s: Floats


def _splits(problem: PoolProblem, most_parts: int) -> Iterator[_Split]:
    """All with at least two parts."""
    for first, first_parts, second, second_parts in _multisets(len(problem.types), most_parts):
        first_items, second_items = _items(problem, first, first_parts, second, second_parts)
        first_s = _at(problem.service_s[first], first_items)
        second_s = _at(problem.service_s[second], second_items) if second_parts else np.zeros_like(first_s)
        whole_items = (first_items >= 1) & ((second_items >= 1) | (second_parts == 0))
        finish_s = np.where(whole_items, np.maximum(first_s, second_s), np.inf)
        yield _Split(first, first_parts, second, second_parts, first_items, second_items, first_s, second_s, finish_s)


def _multisets(types: int, most_parts: int) -> Iterator[tuple[int, int, int, int]]:
    """(first type, its parts, second type, its parts) with at least two parts; the second is the first, with none, if
    there is one type only."""
    for kind in range(types):
        for parts in range(2, most_parts + 1):
            yield kind, parts, kind, 0
    for first, second in combinations(range(types), 2):
        for parts in range(2, most_parts + 1):
            for first_parts in range(1, parts):
                yield first, first_parts, second, parts - first_parts


def _items(problem: PoolProblem, first: int, first_parts: int, second: int, second_parts: int) -> tuple[Floats, Floats]:
    """Items of each part on either type, by query size, so that all finish together; 0 where they cannot."""
    sizes = np.arange(1.0, problem.largest + 1)
    if not second_parts:
        return sizes / first_parts, np.zeros(len(sizes))
    # Measured service times may fall here and there with the size; the least increasing line above them does not.
    rising = [np.maximum.accumulate(problem.service_s[kind]) * (1 + 1e-12 * sizes) for kind in (first, second)]
    moments_s = np.union1d(rising[0], rising[1])
    done = [np.interp(moments_s, line, sizes, left=0.0) for line in rising]
    together = first_parts * done[0] + second_parts * done[1]
    together += 1e-12 * np.arange(len(together))  # strictly increasing, to be inverted
    finish_s = np.interp(sizes, together, moments_s)
    first_items = np.interp(finish_s, rising[0], sizes, left=0.0)
    second_items = (sizes - first_parts * first_items) / second_parts
    return first_items, second_items


def _at(service_s: Floats, items: Floats) -> Floats:
    """Seconds for so many items, between the table's sizes by the line through them."""
    found: Floats = np.interp(items, np.arange(1.0, len(service_s) + 1), service_s)
    return found
