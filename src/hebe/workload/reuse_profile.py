"""How often production tables' rows are reused, fitted to published histograms.

Meta's dlrm_datasets (github.com/facebookresearch/dlrm_datasets, MIT licence) gives, for one large batch over several
hundred production tables, which fraction of the touched rows was looked up 1, 2, 3-4, 5-8, ... times, and which
fraction of the lookups went to those rows. A row looked up once in that batch is not a row whose expected number of
lookups is one: most of them are colder and were lucky. So the fit finds the popularity of rows, sampling from which
would give the published histogram:

    rows in bin b      sum_j w_j P(Poisson(rate_j) in b)
    lookups in bin b   sum_j w_j E[Poisson(rate_j); Poisson(rate_j) in b]

with weights w_j >= 0 on a logarithmic grid of rates (non-negative least squares). What is kept is scale-free, so that
it serves a table of any size: the share of rows and the share of lookups of each popularity group, hottest first.
Rows too cold to be seen in that batch are not in the histogram; the coldest rate of the grid stands for them.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hebe.workload.text_errors import WorkloadError, why_unreadable

Floats = npt.NDArray[np.float64]

HOTTEST_RATE = 2.0**17
COLDEST_RATE = 0.25
"""The grid of expected lookups per batch, one an octave. A cold end of 0.5 misses the published fractions by 0.013;
0.25 meets them within 0.001, about their rounding, and anything colder fits no better."""


@dataclass(frozen=True, slots=True)
class ReuseHistogram:
    """One published histogram.

    `bounds` holds the upper bound of each bin (inclusive; the last is infinite), `row_fractions` and
    `lookup_fractions` the share of touched rows and of lookups in it.
    """

    name: str
    bounds: tuple[float, ...]
    row_fractions: tuple[float, ...]
    lookup_fractions: tuple[float, ...]

    @property
    def mean_reuse(self) -> float:
        """Lookups per touched row, from the bins in which the count is exact (1 and 2)."""
        lookups = self.row_fractions[0] + 2 * self.row_fractions[1]
        return lookups / (self.lookup_fractions[0] + self.lookup_fractions[1])


@dataclass(frozen=True, slots=True)
class ReuseProfile:
    """Popularity groups of rows, hottest first.

    Group i has `row_shares[i]` of the rows and gets `lookup_shares[i]` of the lookups; inside it all rows are alike.
    """

    name: str
    row_shares: tuple[float, ...]
    lookup_shares: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.row_shares) != len(self.lookup_shares) or not self.row_shares:
            raise WorkloadError(f"reuse profile {self.name}: give as many row shares as lookup shares, at least one")
        for field in ("row_shares", "lookup_shares"):
            shares = getattr(self, field)
            if min(shares) < 0 or not math.isclose(sum(shares), 1.0, abs_tol=1e-6):
                raise WorkloadError(f"reuse profile {self.name}: {field} must be at least 0 and sum to 1")

    def draw_ranks(self, rows: int, count: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
        """`count` popularity ranks in [0, rows), int64: the inverse of the piecewise linear Lorenz curve."""
        lookups = np.concatenate(([0.0], np.cumsum(self.lookup_shares)))
        shares = np.concatenate(([0.0], np.cumsum(self.row_shares)))
        position = np.interp(rng.random(count) * lookups[-1], lookups, shares / shares[-1])
        return np.asarray(np.minimum((position * rows).astype(np.int64), rows - 1))

    def shares_by_rank(self, rows: int) -> Floats:
        """The share of the lookups that `draw_ranks` gives each rank, float64 `[rows]`, which sums to 1."""
        lookups = np.concatenate(([0.0], np.cumsum(self.lookup_shares)))
        shares = np.concatenate(([0.0], np.cumsum(self.row_shares)))
        return np.diff(np.interp(np.arange(rows + 1) / rows, shares / shares[-1], lookups / lookups[-1]))


# fmt: off
PRODUCTION_2021 = ReuseProfile(
    "dlrm_datasets 2021",
    row_shares=(
        2.482e-07, 1.232e-06, 5.322e-06, 1.036e-05, 3.748e-05, 5.515e-05, 0.0001493, 0.0002323, 0.0006148,
        0.001023, 0.002941, 0.006644, 0.02148, 0.03916, 0.05966, 0.0836, 0.0652, 0.719185808,
    ),
    lookup_shares=(
        0.0117, 0.01452, 0.03137, 0.03052, 0.05521, 0.04063, 0.055, 0.04278, 0.05661,
        0.04708, 0.0677, 0.07647, 0.1236, 0.1127, 0.08585, 0.06015, 0.02345, 0.06466,
    ),
)
# fmt: on
"""`fit_reuse_profile` of embedding_bag/2021/locality_stats.txt, fbgemm_t856_bs65536.pt: 856 tables, 65,536 samples."""


def fit_reuse_profile(histogram: ReuseHistogram) -> ReuseProfile:
    """The profile whose sampling would give `histogram`, as the module's docstring says."""
    from scipy.optimize import nnls  # half a second, which all other loads do without

    octaves = round(math.log2(HOTTEST_RATE / COLDEST_RATE))
    rates: Floats = HOTTEST_RATE * np.exp2(-np.arange(octaves + 1, dtype=np.float64))
    upper = np.array(histogram.bounds)
    lower = np.concatenate(([0.0], upper[:-1]))
    rows_in_bin = _poisson_between(lower, upper, rates)
    lookups_in_bin = _poisson_between(lower - 1, upper - 1, rates) * rates / histogram.mean_reuse
    wanted = np.array(histogram.row_fractions + histogram.lookup_fractions)
    # Published with three decimals: a fraction of 0.000 weighs by its rounding, a large one by its size.
    trust = 1.0 / (0.0005 + 0.01 * wanted)
    weights, _ = nnls(np.vstack((rows_in_bin, lookups_in_bin)) * trust[:, None], wanted * trust)
    kept = weights > 0
    rows, lookups = weights[kept], (weights * rates)[kept]
    return ReuseProfile(histogram.name, tuple(rows / rows.sum()), tuple(lookups / lookups.sum()))


def _poisson_between(lower: Floats, upper: Floats, rates: Floats) -> Floats:
    """P(lower < Poisson(rate) <= upper), float64 `[bins, rates]`."""
    from scipy.special import pdtr

    bounds = np.stack((lower, upper))[:, :, None]
    cumulative = np.where(bounds < 0, 0.0, np.where(np.isinf(bounds), 1.0, pdtr(np.clip(bounds, 0, 1e15), rates)))
    return np.asarray(cumulative[1] - cumulative[0])


def read_reuse_histogram(path: str | Path, name: str | None = None) -> ReuseHistogram:
    """One histogram of a CSV file with columns file, kind, bin_hi, fraction (others are ignored).

    `kind` is rows_by_reuse or lookups_by_reuse; `bin_hi` a count or `inf`. `name` is the value of `file` to take;
    without it, the first. Raises `WorkloadError` naming file, line and field.
    """
    bins: dict[str, dict[float, float]] = {"rows_by_reuse": {}, "lookups_by_reuse": {}}
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            for field in ("file", "kind", "bin_hi", "fraction"):
                if field not in (reader.fieldnames or ()):
                    raise WorkloadError(f"{path}: line 1: column {field} is missing")
            for row in reader:
                if name is None:
                    name = row["file"]
                if row["file"] != name:
                    continue
                where = f"{path}: line {reader.line_num}"
                if row["kind"] not in bins:
                    raise WorkloadError(f"{where}: kind is {row['kind']!r}: must be one of {', '.join(bins)}")
                bound = _number(row["bin_hi"], where, "bin_hi", 1.0, math.inf)
                bins[row["kind"]][bound] = _number(row["fraction"], where, "fraction", 0.0, 1.0)
    except (OSError, UnicodeDecodeError, csv.Error) as fault:
        raise WorkloadError(f"{path}: {why_unreadable(path, fault)}") from None
    rows, lookups = bins["rows_by_reuse"], bins["lookups_by_reuse"]
    if name is None or not rows:
        raise WorkloadError(f"{path}: has no histogram" + ("" if name is None else f" of file {name!r}"))
    bounds = tuple(sorted(rows))
    if tuple(sorted(lookups)) != bounds or bounds[:2] != (1.0, 2.0) or bounds[-1] != math.inf:
        raise WorkloadError(f"{path}: {name}: both kinds need the same bins, with bin_hi 1, 2, ..., inf")
    if lookups[1.0] + lookups[2.0] <= 0 or rows[1.0] + rows[2.0] <= 0:
        raise WorkloadError(f"{path}: {name}: fraction of bins 1 and 2 is 0: the mean reuse cannot be told")
    return ReuseHistogram(name, bounds, tuple(rows[b] for b in bounds), tuple(lookups[b] for b in bounds))


def _number(text: str | None, where: str, field: str, low: float, high: float) -> float:
    try:
        value = float(text or "")
    except ValueError:
        raise WorkloadError(f"{where}: {field} is {text!r}: must be a number") from None
    if not low <= value <= high:
        raise WorkloadError(f"{where}: {field} is {text}: must lie in [{low:g}, {high:g}]")
    return value
