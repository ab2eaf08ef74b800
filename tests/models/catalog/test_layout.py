import itertools

import pytest

from hebe.models.catalog.layout import behaviours, plain, spread, user_and_item
from hebe.spec import ModelSpec, Pooling, SpecError


def shapes(layout):
    """Per feature: its name, its table's rows and dim, its lookups, whether it is pooled by attention."""
    tables, features = layout
    of = {table.name: table for table in tables}
    return [(f.name, of[f.table].rows, of[f.table].dim, f.lookups, f.pooling is Pooling.ATTENTION) for f in features]


def test_one_figure_of_lookups_is_every_tables_and_several_are_one_each():
    assert shapes(plain([30, 20], 4, 5)) == [("feature0", 30, 4, 5, False), ("feature1", 20, 4, 5, False)]
    assert [lookups for _, _, _, lookups, _ in shapes(plain([30, 20, 10], 4, [3, 1, 2]))] == [3, 1, 2]


@pytest.mark.parametrize("lookups", [[], [1], [1, 2, 3]])
def test_lookups_that_are_not_as_many_as_the_tables_make_no_model(lookups):
    tables, features = plain([30, 20], 4, lookups)
    with pytest.raises(SpecError):
        ModelSpec("m", "dlrm", tables=tables, features=features)


def test_both_halves_of_neumf_have_rows_of_their_own():
    assert shapes(user_and_item(30, 20, 4)) == [
        ("gmf_user", 30, 4, 1, False),
        ("gmf_item", 20, 4, 1, False),
        ("mlp_user", 30, 4, 1, False),
        ("mlp_item", 20, 4, 1, False),
    ]


def test_a_history_reads_the_table_of_its_candidate():
    tables, features = behaviours({"item": 30, "shop": 9}, {"user": 20}, 4, steps=7, lookups=3)
    assert {f.table for f in features} == {table.name for table in tables} == {"item", "shop", "user"}
    assert shapes((tables, features)) == [
        ("user", 20, 4, 3, False),
        ("item", 30, 4, 1, False),
        ("shop", 9, 4, 1, False),
        ("item_history", 30, 4, 7, True),
        ("shop_history", 9, 4, 7, True),
    ]


@pytest.mark.parametrize(("least", "most", "count"), [(1, 5, 5), (1_000_000, 5_000_000, 10), (10, 20, 2), (3, 3, 4)])
def test_a_range_is_spread_evenly_with_both_of_its_ends(least, most, count):
    values = spread(least, most, count)
    assert (len(values), values[0], values[-1]) == (count, least, most)
    gaps = [later - earlier for earlier, later in itertools.pairwise(values)]
    assert max(gaps) - min(gaps) <= 1
