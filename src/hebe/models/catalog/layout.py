"""Tables and features of the usual shapes, so that an entry reads like its line in the paper's table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hebe.spec import EmbeddingTableSpec, FeatureSpec, Pooling

Layout = tuple[tuple[EmbeddingTableSpec, ...], tuple[FeatureSpec, ...]]


def plain(rows: Sequence[int], dim: int, lookups: int | Sequence[int]) -> Layout:
    """One table and one sum-pooled feature for each of `rows`: tables `table0`..., features `feature0`..."""
    counts = [lookups] * len(rows) if isinstance(lookups, int) else lookups
    tables = tuple(EmbeddingTableSpec(f"table{i}", count, dim) for i, count in enumerate(rows))
    features = tuple(FeatureSpec(f"feature{i}", f"table{i}", count, Pooling.SUM) for i, count in enumerate(counts))
    return tables, features


def user_and_item(users: int, items: int, dim: int) -> Layout:
    """NeuMF's four tables: a user's and an item's row for each of its halves."""
    rows = {"gmf_user": users, "gmf_item": items, "mlp_user": users, "mlp_item": items}
    tables = tuple(EmbeddingTableSpec(name, count, dim) for name, count in rows.items())
    return tables, tuple(FeatureSpec(name, name, 1, Pooling.SUM) for name in rows)


def behaviours(items: Mapping[str, int], others: Mapping[str, int], dim: int, steps: int, lookups: int = 1) -> Layout:
    """Candidate and behaviour sequence over the same tables, and other features.

    `items` names the parts of an item and their tables' rows: part `item` gives a table `item`, a candidate feature
    `item` and a sequence `item_history` of at most `steps`. `others` are sum-pooled features of `lookups` rows.
    """
    tables = tuple(EmbeddingTableSpec(name, rows, dim) for name, rows in {**others, **items}.items())
    features = [FeatureSpec(name, name, lookups, Pooling.SUM) for name in others]
    features += [FeatureSpec(name, name, 1, Pooling.SUM) for name in items]
    features += [FeatureSpec(f"{name}_history", name, steps, Pooling.ATTENTION) for name in items]
    return tables, tuple(features)


def spread(least: int, most: int, count: int) -> list[int]:
    """`count` values evenly spaced from `least` to `most`, for a range that a paper states without its values."""
    return [round(least + (most - least) * i / (count - 1)) for i in range(count)]
