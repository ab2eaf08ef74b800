"""Area under the ROC curve, exact, by ranks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def roc_auc(labels: npt.ArrayLike, scores: npt.ArrayLike) -> float:
    """Probability that a positive's score exceeds a negative's, ties counting one half.

    `labels` `[n]`, 0 or 1; `scores` `[n]`. The Mann-Whitney statistic from ranks averaged over ties (Hanley and
    McNeil, "The meaning and use of the area under a ROC curve", Radiology 143, 1982). NaN if all labels are alike.
    Raises ValueError if the shapes differ, a label is not 0 or 1, or a score is NaN.
    """
    label = np.asarray(labels)
    score = np.asarray(scores)
    if label.ndim != 1 or label.shape != score.shape:
        raise ValueError(f"labels {label.shape} and scores {score.shape}: must be of one shape [n]")
    if not np.isin(label, (0, 1)).all():
        raise ValueError("labels: must be 0 or 1")
    if np.isnan(score).any():
        raise ValueError("scores: must not be NaN")
    positive = label == 1
    positives = int(positive.sum())
    negatives = len(label) - positives
    if positives == 0 or negatives == 0:
        return float("nan")
    _, group, sizes = np.unique(score, return_inverse=True, return_counts=True)
    # Twice the averaged rank of each group of tied scores, so that sums stay whole numbers and exact.
    last = np.cumsum(sizes)
    doubled = 2 * last - sizes + 1
    rank_sum = int(doubled[group[positive]].sum())
    return (rank_sum - positives * (positives + 1)) / (2 * positives * negatives)
