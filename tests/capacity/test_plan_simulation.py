"""A plan file of any kind."""

import pytest
import tomli_w

from hebe.capacity import simulate_plan
from hebe.capacity.colocation_simulation import ColocationSimulated
from hebe.capacity.errors import ArgumentError, PlanFileError
from hebe.capacity.files.pool_plan import PoolPlanFile
from hebe.capacity.pool_simulation import SimulationMade
from hebe.simulation.fleet.policy_choice import PolicyChoice, PolicyKind
from hebe.spec import SlaTarget
from tests.examples import colocation_files
from tests.examples.pool_files import times_file


@pytest.fixture
def pool(tmp_path):
    plan = PoolPlanFile(
        "m", SlaTarget(12.0, 95.0), "fixed:10", 1.2, {"gpu": 1, "cpu": 4}, {"gpu": 0.5, "cpu": 0.1},
        PolicyChoice(PolicyKind.MATCHING), (times_file(tmp_path),), tmp_path / "prices.csv", {}, {},
    )  # fmt: skip
    path = tmp_path / "pool.toml"
    path.write_text(tomli_w.dumps(plan.to_dict(path)))
    return path


def test_the_kind_of_plan_says_what_is_simulated(pool, tmp_path):
    made = simulate_plan(pool, rate_qps=300.0, queries=200, seeds=1)
    assert isinstance(made, SimulationMade)
    assert (made.counts, made.sla) == ((1, 4), SlaTarget(12.0, 95.0))
    shared = simulate_plan(
        colocation_files.plan_file(tmp_path), colocation_files.times_file(tmp_path, name="alone.csv"),
        sla_ms={"filter": 5.0, "ranker": 300.0}, percentile=95.0, sizes="fixed:10", queries=500, seeds=1,
    )  # fmt: skip
    assert isinstance(shared, ColocationSimulated)


def test_what_does_not_go_with_the_kind_is_named(pool, tmp_path):
    for field, value in (("load_factor", 1.0), ("sla_ms", {"m": 9.0})):
        with pytest.raises(ArgumentError) as caught:
            simulate_plan(pool, **{field: value})
        assert caught.value.field == field
    (tmp_path / "other.toml").write_text('kind = "other"')
    with pytest.raises(PlanFileError, match="must be a plan to simulate"):
        simulate_plan(tmp_path / "other.toml")
