"""The plan of a day simulated from Python."""

import numpy as np
import pytest
import tomli_w

from hebe.capacity import plan_provision, simulate_plan, simulate_provisioning
from hebe.capacity.errors import ArgumentError, MisfitError
from hebe.capacity.files.entries import ServerOffer
from hebe.capacity.files.loads import Loads
from hebe.capacity.files.provisioning_plan import read_provisioning_plan
from hebe.cli.plan.provision_results import plan_content
from hebe.profile import EfficiencyTuple
from hebe.simulation.measured.service_table import ServiceTable

TIMES = {"rm": ServiceTable.from_samples({"cpu": {1: [9e-3, 10e-3, 11e-3], 8: [9e-3, 10e-3, 11e-3]}})}
ASKED = {"sla_ms": 80.0, "percentile": 90.0, "sizes": "fixed:8", "queries": 400}


@pytest.fixture
def plan(tmp_path):
    """Servers of which each serves 50 queries/s, and a load that rises from 100 to 200."""
    made = plan_provision(
        [EfficiencyTuple("rm", "cpu", 50.0, 100.0)],
        {"cpu": ServerOffer(8, 1.0, 100.0)},
        Loads.evenly({"rm": [100.0, 150.0, 200.0]}, 600.0),
        over_provision=0.1, set_up_s=0.0, baselines=False,
    )  # fmt: skip
    np.testing.assert_array_equal(made.day.servers, [3, 4, 5])
    path = tmp_path / "day.toml"
    path.write_text(tomli_w.dumps(plan_content(made, path)))
    return path


def test_a_planned_day_holds_and_eight_times_its_load_does_not(plan):
    steps = []
    day = simulate_provisioning(plan, TIMES, progress=steps.append, **ASKED)
    assert not day.missed.any()
    assert steps[-1].done == steps[-1].total
    assert simulate_provisioning(plan, TIMES, load_factor=8.0, **ASKED).missed.all()


def test_a_plan_that_was_read_and_any_plan_s_function_do_the_same(plan):
    days = [
        simulate_provisioning(plan, TIMES, **ASKED),
        simulate_provisioning(read_provisioning_plan(plan), TIMES, **ASKED),
    ]
    np.testing.assert_array_equal(days[0].tail_ms, days[1].tail_ms)
    with pytest.raises(ArgumentError) as caught:
        simulate_plan(plan, rate_qps=10.0)
    assert caught.value.field == "rate_qps"
    with pytest.raises(MisfitError) as caught:
        simulate_plan(plan, load_factor=1.0)
    assert caught.value.field == "service_times"


@pytest.mark.parametrize(
    ("changes", "error", "field"),
    [
        ({"load_factor": 0}, ArgumentError, "load_factor"),
        ({"sla_ms": {"rm": -1}}, ArgumentError, "sla_ms"),
        ({"sla_ms": {"other": 9.0}}, MisfitError, "sla_ms"),
        ({"sla_ms": None}, MisfitError, "sla_ms"),
        ({"policy": "splitting"}, ArgumentError, "policy"),
        ({"arrivals": "burst:2:100:1000"}, MisfitError, "arrivals"),
        ({"queries": 2}, MisfitError, "queries"),
        ({"seeds": 0}, ArgumentError, "seeds"),
    ],
)
def test_what_is_wrong_is_named_by_parameter(plan, changes, error, field):
    with pytest.raises(error) as caught:
        simulate_provisioning(plan, TIMES, **ASKED | changes)
    assert (type(caught.value), caught.value.field) == (error, field)
