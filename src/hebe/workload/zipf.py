"""Exact Zipf-distributed ranks for any table size, without a table of probabilities.

W. Hoermann, G. Derflinger: Rejection-inversion to generate variates from monotone discrete distributions, ACM
Transactions on Modeling and Computer Simulation 6(3), 1996. Inversion of the continuous hat x^-alpha, and rejection
of the little that the hat has too much; set-up is O(1), so a billion rows cost no more than ten.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def draw_zipf_ranks(alpha: float, rows: int, count: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """`count` ranks in [0, rows), int64, where rank r has probability proportional to (r + 1) ** -alpha.

    `alpha` > 0; 1 included.
    """
    if rows == 1:
        return np.zeros(count, dtype=np.int64)
    top = float(_hat_integral(np.float64(1.5), alpha)) - 1.0
    bottom = float(_hat_integral(np.float64(rows + 0.5), alpha))
    # Within this distance below the rounded value, every candidate lies under the histogram.
    sure = 2.0 - float(_hat_inverse(_hat_integral(np.float64(2.5), alpha) - np.float64(2.0) ** -alpha, alpha))
    ranks = np.empty(count, dtype=np.int64)
    todo = np.arange(count)
    while todo.size:
        u = bottom + rng.random(todo.size) * (top - bottom)
        x = _hat_inverse(u, alpha)
        k = np.clip(np.rint(x), 1, rows)
        accepted = (k - x <= sure) | (u >= _hat_integral(k + 0.5, alpha) - k**-alpha)
        ranks[todo[accepted]] = k[accepted].astype(np.int64) - 1
        todo = todo[~accepted]
    return ranks


def _hat_integral(x: Floats | np.float64, alpha: float) -> Floats:
    """Integral of t^-alpha from 1 to x, well behaved around alpha = 1."""
    log_x = np.log(x)
    return np.asarray(_expm1_over((1.0 - alpha) * log_x) * log_x)


def _hat_inverse(area: Floats | np.float64, alpha: float) -> Floats:
    """The x whose `_hat_integral` is `area`."""
    t = np.maximum(np.asarray(area) * (1.0 - alpha), -1.0 + 1e-15)
    return np.asarray(np.exp(_log1p_over(t) * area))


def _expm1_over(x: Floats) -> Floats:
    small = np.abs(x) < 1e-8
    safe = np.where(small, 1.0, x)
    return np.where(small, 1.0 + x / 2, np.expm1(safe) / safe)


def _log1p_over(x: Floats) -> Floats:
    small = np.abs(x) < 1e-8
    safe = np.where(small, 1.0, x)
    return np.where(small, 1.0 - x / 2, np.log1p(safe) / safe)
