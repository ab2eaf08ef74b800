"""hercules-evolution: what it tells of made-up tuples, on a coarse day.

What Hercules' evolution hangs on, by made-up tuples.
"""

import numpy as np
import pytest
from rich.progress import Progress

from hebe_lab.studies.hercules import evolution as hercules_evolution
from hebe_lab.studies.hercules.evolution import BASELINE, EVEN, Growth, growth_causes, largest_loads, saving_causes
from hebe_lab.studies.hercules.fleet import LATE, LIGHT_RMC2, MODELS, PLAIN, day_curve, fleet_of
from hebe_lab.studies.hercules.schedulers import largest_load_qps
from hebe_lab.study import StudyOptions
from tests.lab.studies.study_page import assert_well_told

from .hercules_tuples import ON_T2, PAIRS, made_up, made_up_changes

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


ON_PLAIN = fleet_of(PAIRS, MODELS, PLAIN)


RATE = 0.1


def test_growth_is_told_for_each_change(monkeypatch):
    monkeypatch.setattr(hercules_evolution, "changed_pairs", made_up_changes)
    causes = growth_causes(PAIRS, RATE, True, Progress(disable=True))
    ends = {what: growth.end_servers for what, growth in causes.items()}
    nothing = ends.pop("nothing: as in the catalog")
    assert ends["RMC2 of 20 lookups, not 120"] > 1.5 * nothing
    assert ends["RMC2 gets no queries"] > 5 * nothing
    assert ends["keys drawn evenly, not skewed"] == pytest.approx(nothing, rel=0.01)


def test_loads_are_as_high_as_the_fleet_carries_at_every_step():
    steps = (0.0, 0.5, 1.0)
    loads = largest_loads(ON_PLAIN, steps, RATE)
    assert [load.sum() for load in loads] == pytest.approx([loads[0].sum()] * 3), "only the mix changes"
    late = np.array([name in LATE for name in MODELS])
    assert [load[late].sum() / load.sum() for load in loads] == pytest.approx(steps)
    carried = [largest_load_qps(ON_PLAIN, load, RATE).sum() / load.sum() for load in loads]
    assert min(carried) == pytest.approx(1 / hercules_evolution.MARGIN)


def test_a_model_that_gets_no_queries_has_no_load():
    (load,) = largest_loads(ON_PLAIN, (0.2,), RATE, {**EVEN, "RMC1": 0.5, "RMC2": 0.0, "RMC3": 0.5})
    assert load[MODELS.index("RMC2")] == 0
    assert load[MODELS.index("RMC1")] == pytest.approx(load[MODELS.index("RMC3")])


def test_what_scheduling_gains_and_more_servers_save_power():
    found = saving_causes(PAIRS, (0.0, 1.0), RATE)
    for least, greatest in found.values():
        assert 0 <= least <= greatest < 1
    for changed in (BASELINE, "half as many accelerated servers"):
        assert found[changed][1] < found["nothing"][1]
