"""hercules-evolution: what it tells of made-up tuples, on a coarse day."""

import pytest
from rich.progress import Progress
from tests.lab.studies.study_page import assert_well_told

from hebe_lab.studies.hercules import evolution as hercules_evolution
from hebe_lab.studies.hercules.evolution import Growth
from hebe_lab.studies.hercules.fleet import LIGHT_RMC2, MODELS, day_curve
from hebe_lab.study import StudyOptions

from .hercules_tuples import ON_T2, made_up

CAUSES = {
    "nothing: as in the catalog": Growth(0.9, 0.9, 0.5, 0.5),
    "RMC1 of 20 lookups, not 80": Growth(0.9, 0.9, 0.6, 0.6),
    "RMC2 gets no queries": Growth(1.5, 1.4, 4.25, 4.0),
}


@pytest.fixture(scope="module")
def result():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hercules_evolution, "all_pairs", made_up)
        patch.setattr(hercules_evolution, "growth_causes", lambda *_: CAUSES)
        patch.setattr(hercules_evolution, "day_curve", lambda options, interval_s: day_curve(options, 2 * interval_s))
        return hercules_evolution.run(StudyOptions(quick=True), Progress(disable=True))


def test_the_paper_s_growth_stands_beside_ours(result):
    assert {figure.paper for figure in result.figures if figure.name.endswith(".servers.peak")} == {2.27}
    assert_well_told(hercules_evolution, result, figures_of_the_paper=6)


def test_growth_is_that_of_what_queries_cost(result):
    figures = {figure.name: figure.value for figure in result.figures}
    # On plain servers a query of the early models takes 1/(3 * 40) + ... servers, of the late ones less.
    early, late = (sum(1 / ON_T2[name] for name in names) for names in (MODELS[:3], MODELS[3:]))
    assert figures["hercules.evolution.end_servers.peak"] == pytest.approx(late / early, rel=0.25)
    light = sum(1 / ON_T2[name] for name in ("RMC1", LIGHT_RMC2, "RMC3"))
    assert figures["hercules.evolution_light.end_servers.peak"] == pytest.approx(late / light, rel=0.25)
    assert 0 < figures["hercules.evolution.accelerated_saving.mean.least"] < 1


def test_the_change_by_which_growth_is_greatest_is_told(result):
    causes = next(table for table in result.tables if table.title.startswith("What growth"))
    assert [row[0] for row in causes.rows] == ["the paper (of days)", *CAUSES]
    (words,) = (block for block in result.content if isinstance(block, str) and block.startswith("Why ours differs"))
    assert "Most is changed by this one: RMC2 gets no queries. Then servers grow 1.50 times" in words
    assert "what does not touch RMC2 leaves the end at 0.60 to 0.60 times" in words
