"""A model of two features and numbers, to read requests for."""

from __future__ import annotations

from hebe.serving.requests.query_decoder import QueryDecoder
from hebe.spec import EmbeddingTableSpec, FeatureSpec, ModelSpec, Pooling

MAX_ITEMS = 20
SPEC = ModelSpec(
    name="m",
    architecture="dlrm",
    tables=(EmbeddingTableSpec("a", 100, 4), EmbeddingTableSpec("b", 7, 4)),
    features=(FeatureSpec("one", "a", 1, Pooling.SUM), FeatureSpec("three", "b", 3, Pooling.MEAN)),
    dense_dim=2,
)
DECODER = QueryDecoder(SPEC, MAX_ITEMS)
