from zlib import crc32

import numpy as np
import pytest

from hebe.spec import EmbeddingTableSpec, FeatureSpec, ModelSpec, Pooling
from hebe.workload.key_frequencies import key_frequencies
from hebe.workload.key_skew import ReuseKeys, UniformKeys

SPEC = ModelSpec(
    "m",
    "din",
    (EmbeddingTableSpec("items", 300, 4), EmbeddingTableSpec("users", 100, 4)),
    (
        FeatureSpec("item", "items", 1, Pooling.SUM),
        FeatureSpec("history", "items", 20, Pooling.ATTENTION),
        FeatureSpec("user", "users", 2, Pooling.SUM),
    ),
)


def test_lookups_of_all_features_of_a_table_are_expected_together():
    frequencies = key_frequencies(SPEC, UniformKeys())
    np.testing.assert_allclose(frequencies["items"], np.full(300, 21 / 300))
    np.testing.assert_allclose(frequencies["users"], np.full(100, 2 / 100))


def test_keys_drawn_as_the_load_generator_does_are_as_frequent_as_expected():
    frequencies, rng, items = key_frequencies(SPEC, ReuseKeys()), np.random.default_rng(0), 40_000
    counts = np.zeros(300)
    for name, lookups in (("item", 1), ("history", 20)):
        counts += np.bincount(ReuseKeys().draw(300, lookups * items, rng, crc32(name.encode())), minlength=300)
    expected = items * frequencies["items"]
    assert frequencies["items"].sum() == pytest.approx(21)
    assert (np.abs(counts - expected) < 6 * np.sqrt(expected)).all()
