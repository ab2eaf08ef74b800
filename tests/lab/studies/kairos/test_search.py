"""kairos-search on generated measurements: what holds whatever the numbers are."""

import numpy as np
import pytest
from rich.progress import Progress

from hebe_lab.studies.kairos import search as kairos_search
from tests.lab.studies.small_kairos import assert_told_of_measurements, is_within_budget, small


@pytest.fixture(scope="module")
def result(kairos_options):
    with small(
        kairos_search,
        EFFORTS=[kairos_search._Effort(("rm2",), 100, 1, 3, kairos_search.SCHEMES, tuple(kairos_search.SEARCHES))] * 3,
    ):
        return kairos_search.run(kairos_options, Progress(disable=True))


def test_the_study_tells_what_it_measured(result):
    assert_told_of_measurements(kairos_search, result)


def test_searches_count_pools_of_the_budget(result):
    by_policy, by_search = result.tables
    assert len(by_policy.rows) == len(kairos_search.SCHEMES)
    for row in by_policy.rows:
        assert is_within_budget(row[6])
        assert 1 <= row[2] < 200
    assert all(float(cell) >= 1 for row in by_search.rows for cell in row[1:])


def test_one_seed_has_no_spread(result):
    figures = {figure.name: figure for figure in result.figures}
    one = figures["kairos.fig11.gene_over_kairos_plus.rm2"]
    assert (one.runs, one.low, one.high) == (1, None, None)
    assert one.note.endswith("; one seed")
    three = figures["kairos.fig11.rand_over_kairos_plus.rm2"]
    assert three.runs == 3
    assert three.low <= three.value <= three.high
    assert three.note.endswith("; median and range of seeds")


def test_a_search_ends_where_it_has_measured_a_pool_as_good_as_the_best():
    values = {(1,): 50.0, (2,): 99.5, (3,): 100.0}

    def in_their_order(pools, evaluate, _rng):
        for pool in pools.tolist():
            evaluate(tuple(pool))

    pools = np.array(list(values))
    assert kairos_search._until_found(in_their_order, pools, values.get, 100.0, 0) == (50.0, 99.5)
    assert kairos_search._until_found(in_their_order, pools[:1], values.get, 100.0, 0) == (50.0,)
