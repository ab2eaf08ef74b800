"""A plan of servers that models share simulated from Python."""

import pytest

from hebe.capacity import simulate_colocation
from hebe.capacity.errors import ArgumentError, MisfitError
from hebe.capacity.files.colocation_plan import read_colocation_plan
from hebe.simulation.measured.service_table import ServiceTable
from tests.examples.colocation_files import SERVICE_MS, plan_file

TIMES = {
    model: ServiceTable.from_samples({"cpu": {1: [ms / 1e3], 100: [ms / 1e3]}}) for model, ms in SERVICE_MS.items()
}
ASKED = {
    "sla_ms": {"filter": 5.0, "ranker": 300.0}, "percentile": 95.0, "sizes": "fixed:10", "queries": 2000, "seeds": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    return plan_file(tmp_path_factory.mktemp("plan"))


def test_a_plan_holds_as_a_file_and_as_it_was_read(plan):
    made = [simulate_colocation(each, TIMES, **ASKED) for each in (plan, read_colocation_plan(plan))]
    assert [one.all_held for one in made] == [True, True]
    first, second = (one.models[0].tail_ms.value for one in made)
    assert first == second


@pytest.mark.parametrize(
    ("changes", "error", "field"),
    [
        ({"load_factor": 0}, ArgumentError, "load_factor"),
        ({"sla_ms": None}, MisfitError, "sla_ms"),
        ({"percentile": 0}, ArgumentError, "percentile"),
        ({"policy": "best"}, ArgumentError, "policy"),
        ({"service_times": {"filter": TIMES["filter"]}}, MisfitError, "service_times"),
        ({"service_times": None}, MisfitError, "service_times"),
    ],
)
def test_what_is_wrong_is_named_by_parameter(plan, changes, error, field):
    with pytest.raises(error) as caught:
        simulate_colocation(**{"plan": plan, "service_times": TIMES} | ASKED | changes)
    assert (type(caught.value), caught.value.field) == (error, field)
