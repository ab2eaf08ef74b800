"""hercules-cluster: what it tells of made-up tuples, on a coarse day.

What a cluster's savings hang on, by made-up tuples.
"""

import numpy as np
import pytest
from rich.progress import Progress

from hebe_lab.studies.hercules import cluster as hercules_cluster
from hebe_lab.studies.hercules.cluster import (
    FIG8_AVAILABLE,
    OTHER_TUPLES,
    Mix,
    fewer_fast_table,
    other_tuples_table,
    why_fig8,
    with_fewer_fast,
    with_other_tuples,
)
from hebe_lab.studies.hercules.fleet import PLAIN, day_curve
from hebe_lab.studies.hercules.schedulers import SteadySavings
from hebe_lab.study import StudyOptions
from tests.lab.studies.study_page import assert_well_told

from .hercules_tuples import EFFORT, EVENLY, FLEET, ON_T2, PAIRS, made_up


@pytest.fixture(scope="module")
def result():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hercules_cluster, "all_pairs", made_up)
        patch.setattr(hercules_cluster, "_LOADS", (0.2, 0.6, 1.0))
        patch.setattr(hercules_cluster, "day_curve", lambda options, interval_s: day_curve(options, 2 * interval_s))
        return hercules_cluster.run(StudyOptions(quick=True), Progress(disable=True))


def test_the_paper_stands_beside_the_savings(result):
    figures = {figure.name: figure for figure in result.figures}
    stated = {
        "hercules.power_saving": (0.237, 0.091),
        "hercules.capacity_saving": (0.477, 0.228),
        "hercules.greedy_power_saving": (0.508, 0.427),
        "hercules.greedy_capacity_saving": (0.758, 0.674),
    }
    for name, papers in stated.items():
        assert (figures[f"{name}.peak"].paper, figures[f"{name}.mean"].paper) == papers
    assert figures["hercules.power_saving.mean"].value > 0
    assert figures["hercules.greedy_power_saving.mean"].value > 0
    assert_well_told(hercules_cluster, result, figures_of_the_paper=6)


def test_a_mix_is_of_servers_or_of_queries():
    shares = {"RMC1": 0.25, "DIN": 0.75}
    assert Mix("by worth", shares).direction(PAIRS).tolist() == [0.25 * ON_T2["RMC1"], 0.75 * ON_T2["DIN"]]
    assert Mix("by queries", shares, by_worth=False).direction(PAIRS).tolist() == [0.25, 0.75]


SAVED = SteadySavings(0.2, 0.1, 0.4, 0.3, 0.05)


@pytest.fixture
def asked(monkeypatch):
    """Fleets and loads whose savings are asked for; no plan is made."""
    calls = []

    def savings(fleet, load_qps, _effort):
        calls.append((fleet, load_qps))
        return SAVED

    monkeypatch.setattr(hercules_cluster, "savings_at", savings)
    monkeypatch.setattr(hercules_cluster, "largest_oblivious_qps", lambda _, direction, __: direction)
    return calls


def test_accelerated_servers_alone_have_other_tuples_the_same_each_time(asked):
    assert with_other_tuples(FLEET, EVENLY, EFFORT, 3) == [SAVED] * 3
    with_other_tuples(FLEET, EVENLY, EFFORT, 3)
    factors = np.array([fleet.qps / FLEET.qps for fleet, _ in asked])
    np.testing.assert_array_equal(factors[:3], factors[3:])
    plain = np.array([kind in PLAIN for kind in FLEET.server_types])
    assert (factors[..., plain] == 1.0).all()
    assert factors.min() >= 1 / OTHER_TUPLES
    assert factors.max() <= OTHER_TUPLES
    assert len(np.unique(factors[:3][..., ~plain])) == factors[:3][..., ~plain].size


def test_fast_servers_are_replaced_by_plain_ones(asked):
    peak = np.array([50_000.0, 700.0])
    found = with_fewer_fast(PAIRS, peak, EFFORT)
    assert all(fleet.available.sum() == sum(FIG8_AVAILABLE.values()) for fleet, _ in asked)
    assert [int(fleet.available[fleet.server_types.index("T3")]) for fleet, _ in asked] == list(found)
    shares = [share for share, _ in found.values()]
    assert shares == sorted(shares, reverse=True)
    needed = 1.1 * sum(qps / PAIRS[name, "T3"].best.qps for name, qps in zip(("RMC1", "RMC2"), peak, strict=True))
    assert shares[-1] == pytest.approx(min(found) / needed)
    assert with_fewer_fast(PAIRS, peak / 1000, EFFORT)[2][0] == 1.0, "more than they can carry is all of it"


def test_what_the_changes_come_to_is_told():
    others = [SAVED, SteadySavings(0.3, 0.1, 0.4, 0.3, 0.05), SteadySavings(0.6, 0.1, 0.4, 0.3, 0.05)]
    table = other_tuples_table(SAVED, others)
    assert table.rows[0][1:] == ["20.0%", "20.0%", "30.0%", "60.0%"]
    fewer = {15: (0.5, SAVED), 5: (0.2, SteadySavings(0.2, 0.1, 0.4, 0.3, 0.08))}
    assert fewer_fast_table(fewer).rows[1] == [5, "20%", "40.0%", "8.0%", "20.0%"]
    assert why_fig8(fewer).endswith("it saves 5.0% with all T3, and at most 8.0% with fewer.")
