"""AUC by ranks against the definition: all pairs of a positive and a negative."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hebe.models.training.auc import roc_auc


def all_pairs(labels, scores) -> float:
    pairs = list(zip(labels, scores, strict=True))
    positive = [score for label, score in pairs if label]
    negative = [score for label, score in pairs if not label]
    won = sum((p > n) + 0.5 * (p == n) for p in positive for n in negative)
    return won / (len(positive) * len(negative))


@given(st.lists(st.tuples(st.booleans(), st.integers(-4, 4)), min_size=1, max_size=60))
def test_equals_the_count_over_all_pairs(pairs):
    labels, scores = (list(values) for values in zip(*pairs, strict=True))
    auc = roc_auc(labels, scores)
    if all(labels) or not any(labels):
        assert math.isnan(auc)
    else:
        assert auc == all_pairs(labels, scores)


def test_many_float_scores():
    draw = np.random.default_rng(0)
    labels = draw.random(700) < 0.3
    scores = (draw.normal(size=700) + labels).astype(np.float32)
    assert roc_auc(labels.astype(np.float32), scores) == all_pairs(labels.tolist(), scores.tolist())


@pytest.mark.parametrize(
    ("labels", "scores", "message"),
    [([0, 1], [0.5], "one shape"), ([0, 2], [0.5, 0.6], "0 or 1"), ([0, 1], [0.5, math.nan], "NaN")],
)
def test_bad_input(labels, scores, message):
    with pytest.raises(ValueError, match=message):
        roc_auc(labels, scores)
