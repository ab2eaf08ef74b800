"""The plan file of a pool: written, read, and what is wrong with one."""

from dataclasses import replace
from pathlib import Path

import pytest
import tomli_w

from hebe.capacity.errors import PlanFileError
from hebe.capacity.files.plan_content import named_in_plan, relative_to_plan
from hebe.capacity.files.pool_plan import PoolPlanFile, pool_words, read_pool_plan
from hebe.simulation.fleet.policy_choice import PolicyChoice, PolicyKind
from hebe.spec import SlaTarget

SPLITTING = PolicyChoice(PolicyKind.SPLITTING, prices_qps={"gpu": 80.5, "cpu": 20.0, "small": 0.0})


@pytest.fixture
def plan(tmp_path):
    return PoolPlanFile(
        "m",
        SlaTarget(12.0, 95.0),
        "fixed:10",
        1.2,
        {"gpu": 1, "cpu": 5, "small": 0},
        {"gpu": 0.5, "cpu": 0.1, "small": 0.05},
        SPLITTING,
        (tmp_path / "times.csv", tmp_path / "more" / "times.csv"),
        tmp_path / "prices.csv",
        {"qps": 250.0},
        {},
        frozenset({"cpu"}),
    )


@pytest.fixture
def path(tmp_path):
    (tmp_path / "plans").mkdir()
    return tmp_path / "plans" / "pool.toml"


@pytest.mark.parametrize("policy", [SPLITTING, PolicyChoice(PolicyKind.THRESHOLD, 300), PolicyChoice(PolicyKind.FCFS)])
def test_what_is_written_is_read(plan, path, policy):
    written = replace(plan, policy=policy)
    path.write_text(tomli_w.dumps(written.to_dict(path)))
    read = read_pool_plan(path)
    resolved = replace(
        read, service_times=tuple(file.resolve() for file in read.service_times), price_file=read.price_file.resolve()
    )
    assert resolved == written
    assert list(read.counts) == ["gpu", "cpu", "small"], "base first"


def test_a_plan_says_into_how_many_fleets_its_pool_is_dealt(plan, path):
    path.write_text(tomli_w.dumps(replace(plan, partitions=3).to_dict(path)))
    assert read_pool_plan(path).partitions == 3
    path.write_text(tomli_w.dumps(plan.to_dict(path)))
    assert read_pool_plan(path).partitions is None, "as in older files"


def test_files_are_named_as_seen_from_the_plan_and_found_through_a_link(plan, path, tmp_path):
    assert plan.to_dict(path)["made_from"] == {
        "service_times": ["../times.csv", "../more/times.csv"], "prices": "../prices.csv",
    }  # fmt: skip
    path.write_text("")
    (tmp_path / "link.toml").symlink_to(path)
    name = relative_to_plan(tmp_path / "times.csv", path)
    assert named_in_plan(name, path).resolve() == tmp_path / "times.csv"
    assert named_in_plan(name, tmp_path / "link.toml").resolve() == tmp_path / "times.csv"


def test_prices_may_be_numbers_in_quotes(plan, path):
    content = plan.to_dict(path)
    content["policy"]["prices_qps"] = {kind: str(price) for kind, price in content["policy"]["prices_qps"].items()}
    path.write_text(tomli_w.dumps(content))
    assert read_pool_plan(path).policy == SPLITTING


def of(place, value):
    """A change of the content: `value` at a place of two names, or none there."""

    def change(content):
        first, second = place
        part = content if first is None else content[first]
        if value is None:
            del part[second]
        else:
            part[second] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (of((None, "kind"), "fleet"), "kind 'fleet', version 1: must be the plan of a pool"),
        (of((None, "version"), 9), "version 9: must be the plan of a pool"),
        (of(("sla", "latency_ms"), float("nan")), "sla: latency_ms is nan"),
        (of(("sla", "latency_ms"), None), "sla: latency_ms is missing"),
        (of(("sla", "percentile"), 100.0), "sla: "),
        (of((None, "sla"), None), "[sla] is missing"),
        (of((None, "policy"), "fcfs"), "[policy] is missing"),
        (of((None, "query_sizes"), "garbage"), "query_sizes: query sizes 'garbage': must be one of"),
        (of(("policy", "name"), "guess"), "policy 'guess': must be one of fcfs, threshold, clockwork, matching, split"),
        (of(("policy", "name"), "threshold"), "policy: threshold_items is missing"),
        (of(("policy", "prices_qps"), None), "policy: prices_qps is None: must give a price for each server type"),
        (of(("policy", "prices_qps"), {"gpu": 1.0, "cpu": 1.0}), "policy: prices_qps of small is missing"),
        (of(("policy", "prices_qps"), {"gpu": 0, "cpu": 0, "small": 0}), "at least one must be more than 0"),
        (of(("policy", "prices_qps"), {"gpu": -1, "cpu": 0, "small": 0}), "policy: prices_qps of gpu is -1"),
        (of((None, "server"), []), "[[server]] is missing: must give the count of each server type"),
        (of((None, "server"), 2 * [{"server_type": "a", "count": 1, "price_per_hour": 1}]),
         "server 2: server_type a is given twice"),
        (of((None, "server"), [{"server_type": "a", "count": -1, "price_per_hour": 1}]), "server 1: count is -1"),
        (of((None, "server"), [{"server_type": "a", "count": 1.5, "price_per_hour": 1}]), "server 1: count is 1.5"),
        (of((None, "server"), {"a": 1}), "server: must hold tables only, [[server]]"),
        (of((None, "server"), [{"server_type": "a", "count": 1, "price_per_hour": 1, "workers": 4}]),
         "server 1: unknown field 'workers': known are server_type, count, price_per_hour"),
        (of((None, "server"), [{"server_type": "a", "count": 1, "price_per_hour": 1, "estimated": 2}]),
         "server 1: estimated is 2: must be true or false"),
        (of((None, "partition"), 4), "unknown field 'partition': known are kind, version, "),
        (of(("made_from", "loads"), "x.csv"), "made_from: unknown field 'loads': known are service_times, prices"),
        (of(("sla", "percentil"), 95), "sla: unknown field 'percentil': known are latency_ms, percentile"),
        (of(("policy", "parts"), 4), "policy: unknown field 'parts': known are name, "),
        (of(("predicted", "qpd"), 4), "predicted: unknown field 'qpd': known are price_per_hour, bound_qps, qps, "),
        (of((None, "proposal"), [{"name": "x"}, {"count": 4}]), "proposal 2: unknown field 'count': known are name, "),
        (of(("policy", "partitions"), 0), "policy: partitions is 0: must be at least 1"),
        (of(("policy", "partitions"), 1.5), "policy: partitions is 1.5"),
        (of(("made_from", "service_times"), []), "made_from: service_times is []: must be a list of files"),
        (of(("made_from", "prices"), None), "made_from: prices is missing"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_plan_is_named(plan, path, change, message):
    content = plan.to_dict(path)
    change(content)
    path.write_text(tomli_w.dumps(content))
    with pytest.raises(PlanFileError) as fault:
        read_pool_plan(path)
    assert str(fault.value).startswith(str(path))
    assert message in str(fault.value)


def test_what_is_no_toml_cannot_be_read(path):
    path.write_text("kind = ")
    with pytest.raises(PlanFileError, match=r"pool\.toml: cannot be read"):
        read_pool_plan(path)
    with pytest.raises(PlanFileError, match=r"none\.toml: cannot be read: No such file"):
        read_pool_plan(Path("none.toml"))


def test_a_pool_is_worded_without_the_types_that_it_lacks():
    assert pool_words(("gpu", "cpu", "small"), (1, 13, 0)) == "gpu=1, cpu=13"
