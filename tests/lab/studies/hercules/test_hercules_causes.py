"""What Hercules' evolution hangs on, by made-up tuples."""

import numpy as np
import pytest
from rich.progress import Progress

from hebe_lab.studies.hercules import evolution as hercules_causes
from hebe_lab.studies.hercules.evolution import BASELINE, EVEN, growth_causes, largest_loads, saving_causes
from hebe_lab.studies.hercules.fleet import LATE, MODELS, PLAIN, fleet_of
from hebe_lab.studies.hercules.schedulers import largest_load_qps

from .hercules_tuples import PAIRS, made_up_changes

ON_PLAIN = fleet_of(PAIRS, MODELS, PLAIN)
RATE = 0.1


def test_growth_is_told_for_each_change(monkeypatch):
    monkeypatch.setattr(hercules_causes, "changed_pairs", made_up_changes)
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
    assert min(carried) == pytest.approx(1 / hercules_causes.MARGIN)


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
