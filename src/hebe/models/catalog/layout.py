"""Tables and features of the usual shapes, so that an entry reads like its line in the paper's table."""

from __future__ import annotations

from collections.abc import Sequence

from hebe.spec import EmbeddingTableSpec, FeatureSpec, Pooling

Layout = tuple[tuple[EmbeddingTableSpec, ...], tuple[FeatureSpec, ...]]


def plain(rows: Sequence[int], dim: int, lookups: int | Sequence[int]) -> Layout:
    """One table and one sum-pooled feature for each of `rows`: tables `table0`..., features `feature0`..."""
    counts = [lookups] * len(rows) if isinstance(lookups, int) else lookups
    return (
        tuple(EmbeddingTableSpec(f"table{i}", count, dim) for i, count in enumerate(rows)),
        tuple(FeatureSpec(f"feature{i}", f"table{i}", count, Pooling.SUM) for i, count in enumerate(counts)),
    )


def spread(least: int, most: int, count: int) -> list[int]:
    """`count` values evenly spaced from `least` to `most`, for a range that a paper states without its values."""
    return [round(least + (most - least) * i / (count - 1)) for i in range(count)]
