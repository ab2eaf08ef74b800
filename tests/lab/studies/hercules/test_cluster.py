"""hercules-cluster: what it tells of made-up tuples, on a coarse day."""

import pytest
from rich.progress import Progress
from tests.lab.studies.study_page import assert_well_told

from hebe_lab.studies.hercules import cluster as hercules_cluster
from hebe_lab.studies.hercules.cluster import Mix
from hebe_lab.studies.hercules.fleet import day_curve
from hebe_lab.study import StudyOptions

from .hercules_tuples import ON_T2, PAIRS, made_up


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
