"""What a simulation of a pool runs, by what was asked for and what a plan says."""

import tomllib
from pathlib import Path

import pytest
import tomli_w

from hebe.capacity import plan_pool
from hebe.capacity.errors import ArgumentError, MisfitError, PlanFileError
from hebe.capacity.files.pool_plan import PoolPlanFile
from hebe.capacity.files.service_times import read_service_times
from hebe.capacity.pool_simulation import Estimate, simulate_pool
from hebe.simulation.fleet.policy_choice import PolicyChoice, PolicyKind
from hebe.spec import SlaTarget
from tests.examples.pool_files import samples, times_file, write

SIZES = "quantiles:5,10,20,40,100"
PRICES_QPS = {"gpu": 100.0, "cpu": 30.0, "small": 0.0}


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    times_file(tmp_path)


def simulated(**changes):
    asked = {
        "service_times": "times.csv", "pool": {"gpu": 1, "cpu": 4}, "rate_qps": 300.0, "sla_ms": 12.0, "sizes": SIZES,
        "queries": 200, "seeds": 1,
    }  # fmt: skip
    return simulate_pool(**asked | changes)


@pytest.fixture
def of_plan(tmp_path):
    """What asks for a plan's pool as the plan has it."""
    plan = PoolPlanFile(
        "m", SlaTarget(12.0, 95.0), SIZES, 1.2, {"gpu": 1, "cpu": 4, "small": 0},
        {"gpu": 0.5, "cpu": 0.1, "small": 0.05}, PolicyChoice(PolicyKind.SPLITTING, prices_qps=PRICES_QPS),
        (tmp_path / "times.csv",), tmp_path / "prices.csv", {}, {},
    )  # fmt: skip
    path = tmp_path / "pool.toml"
    path.write_text(tomli_w.dumps(plan.to_dict(path)))
    return {"service_times": None, "plan": path, "pool": None, "sla_ms": None, "sizes": None}


def test_a_pool_by_itself_is_matched_at_p99():
    made = simulated()
    assert (made.policy.kind, made.sla, made.partitions) == (PolicyKind.MATCHING, SlaTarget(12.0, 99.0), 1)
    assert made.times.table.types == ("gpu", "cpu")
    assert made.queries == (200,)
    assert made.capacity is None


def test_types_without_a_server_are_left_out():
    assert simulated(pool={"cpu": 2, "gpu": 0, "small": 1}).times.table.types == ("cpu", "small")


def test_a_plan_says_all_that_is_not_asked_for(of_plan):
    made = simulated(**of_plan)
    assert made.counts == (1, 4)
    assert made.policy.prices_qps == PRICES_QPS, "the plan's own"
    assert (made.sla, made.stream.sizes, made.shift) == (SlaTarget(12.0, 95.0), SIZES, None)
    asked = simulated(**of_plan | {"sla_ms": 20.0, "policy": "clockwork"}, percentile=90.0)
    assert (asked.policy.kind, asked.sla) == (PolicyKind.CLOCKWORK, SlaTarget(20.0, 90.0))


def test_another_model_than_the_plan_s_has_its_own_prices_and_partitions(of_plan, tmp_path):
    slower = [f"other,{line.split(',', 1)[1]}" for line in samples(types=("cpu", "gpu"), seed=1)[1:]]
    write(tmp_path / "times.csv", [*samples(), *slower])
    of_plan["plan"].write_text(of_plan["plan"].read_text().replace("[policy]", "[policy]\npartitions = 2"))
    own, other = (simulated(**of_plan, model=model) for model in ("m", "other"))
    assert (own.policy.prices_qps, own.partitions) == (PRICES_QPS, 2)
    assert (other.times.model, other.policy.kind, other.partitions) == ("other", PolicyKind.SPLITTING, 1)
    assert set(other.policy.prices_qps) == {"gpu", "cpu"}
    assert other.policy.prices_qps["gpu"] != PRICES_QPS["gpu"]


def test_prices_fit_the_pool_that_is_asked_for_in_a_plan_s_place(of_plan):
    made = simulated(**of_plan | {"pool": {"gpu": 1, "small": 3}})
    assert made.policy.kind is PolicyKind.SPLITTING
    assert set(made.policy.prices_qps) == {"gpu", "small"}
    assert min(made.policy.prices_qps.values()) > 0


def test_sizes_that_are_not_the_plan_s_are_seen(of_plan):
    assert simulated(**of_plan | {"sizes": "fixed:50"}, queries=2000).shift.queries == 1000


@pytest.mark.parametrize(("policy", "partitions"), [("matching", 2), ("fcfs", 1)])
def test_large_pools_are_dealt_where_decisions_take_long(policy, partitions):
    large = {"pool": {"gpu": 100, "cpu": 150}, "policy": policy, "queries": 300}
    assert simulated(**large).partitions == partitions
    assert simulated(**large, partitions=3).partitions == 3


def test_a_plan_s_pool_is_dealt_as_the_plan_says(of_plan):
    """Its figures are those of so many partitions."""
    content = of_plan["plan"].read_text()
    of_plan["plan"].write_text(content.replace("[policy]", "[policy]\npartitions = 2"))
    assert simulated(**of_plan).partitions == 2
    assert simulated(**of_plan, partitions=1).partitions == 1
    for change in ({"pool": {"gpu": 1, "cpu": 4}}, {"policy": "splitting"}):
        assert simulated(**of_plan | change).partitions == 1, "as suits what is asked for in its place"
    of_plan["plan"].write_text(content.replace("[policy]", "[policy]\npartitions = 6"))
    with pytest.raises(PlanFileError, match=r"pool\.toml: policy: partitions is 6: the pool has 5 workers to deal"):
        simulated(**of_plan)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pool": {"gpu": 1}, "partitions": 2}, "partitions is 2: the pool has 1 workers to deal"),
        ({"pool": {"tpu": 1}}, "no service times of m on tpu, which the pool has"),
    ],
)
def test_pools_that_cannot_be_simulated_are_refused(changes, message):
    with pytest.raises(PlanFileError, match=message):
        simulated(**changes)


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (0, "has no server: must have at least one"),
        (1_000_000, "has 1,000,000 servers: at most 10,000 are simulated"),
    ],
)
def test_a_pool_of_no_server_or_too_many_is_a_wrong_argument_but_not_in_a_plan(count, message, of_plan):
    with pytest.raises(ArgumentError, match=message) as fault:
        simulated(pool={"gpu": count})
    assert fault.value.field == "pool"
    plan = of_plan["plan"]
    content = tomllib.loads(plan.read_text())
    content["server"] = [{"server_type": "gpu", "count": count, "price_per_hour": 1.0}]
    content["policy"] = {"name": "fcfs"}
    plan.write_text(tomli_w.dumps(content))
    with pytest.raises(PlanFileError, match=rf"\[\[server\]\]: {message}"):
        simulated(**of_plan)


def test_a_search_runs_at_the_rate_that_it_found():
    made = simulated(rate_qps=None, queries=400, percentile=90.0)
    assert made.capacity.value > 0
    assert made.runs[0].rate_qps == made.capacity.by_run[0]
    assert made.attainment.value >= 0.9
    assert "A run lasts" in made.remarks[0]


def test_an_estimate_has_an_interval_where_there_are_several_runs():
    assert Estimate.of([3.0]) == Estimate(3.0, None, None, (3.0,))
    several = Estimate.of([2.0, 4.0])
    assert several.low < several.value == 3.0 < several.high


@pytest.mark.parametrize(
    ("changes", "error", "field"),
    [
        ({"pool": None}, ArgumentError, "pool"),
        ({"pool": {"gpu": 1.5}}, ArgumentError, "pool"),
        ({"service_times": None}, ArgumentError, "service_times"),
        ({"sla_ms": None}, ArgumentError, "sla_ms"),
        ({"sla_ms": 0}, ArgumentError, "sla_ms"),
        ({"sla_ms": 0.1}, MisfitError, "sla_ms"),
        ({"policy": "best"}, ArgumentError, "policy"),
        ({"rate_qps": -1.0}, ArgumentError, "rate_qps"),
        ({"percentile": 0}, ArgumentError, "percentile"),
        ({"partitions": 0}, ArgumentError, "partitions"),
        ({"arrivals": "often"}, ArgumentError, "arrivals"),
        ({"queries": 3}, MisfitError, "queries"),
    ],
)
def test_what_is_wrong_is_named_by_parameter(changes, error, field):
    with pytest.raises(error) as caught:
        simulated(**changes)
    assert (type(caught.value), caught.value.field) == (error, field)


def test_data_in_place_of_files_does_the_same():
    times = read_service_times([Path("times.csv")], None)
    latency_ms = [simulated(service_times=given).latency_ms.tolist() for given in ("times.csv", times, times.table)]
    assert latency_ms[0] == latency_ms[1] == latency_ms[2]


@pytest.mark.usefixtures("few_budgets")
def test_a_plan_is_simulated_as_it_was_made_and_as_it_is_read_back(tmp_path):
    made = plan_pool(
        "times.csv", {"gpu": 0.5, "cpu": 0.1}, 1.2, 12.0, percentile=95.0, sizes=SIZES, simulate=False, queries=200
    )
    path = tmp_path / "made.toml"
    path.write_text(tomli_w.dumps(made.as_file().to_dict(path)))
    runs = [simulate_pool(plan=plan, rate_qps=300.0, queries=200) for plan in (made, made.as_file(), path)]
    assert runs[0].counts == (12,) == made.chosen.counts[1:]
    assert [run.latency_ms.tolist() for run in runs[1:]] == [runs[0].latency_ms.tolist()] * 2
