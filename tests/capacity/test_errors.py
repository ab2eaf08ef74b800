"""Errors name parameters, and what checks them."""

import pickle

import numpy as np
import pytest

from hebe.capacity import estimate, plan_colocate, plan_pool, plan_provision, simulate_plan, simulate_pool
from hebe.capacity.errors import (
    ArgumentError,
    MisfitError,
    PlanFileError,
    check_at_least,
    check_choice,
    check_form,
    check_percentile,
    naming,
)
from hebe.planning.error import Parameter, PlanningError
from hebe.simulation.fleet.query_stream import LargestQueryError
from hebe.workload import forms
from hebe.workload.text_errors import RecordingError
from tests.examples.pool_files import times_file


def test_a_message_names_parameters_that_others_may_call_otherwise():
    error = MisfitError(Parameter("queries"), " is 9: more, or ", Parameter("simulate=False"), "; queries count")
    assert (error.field, str(error)) == ("queries", "queries is 9: more, or simulate=False; queries count")
    assert error.message_with({"queries": "-q", "simulate=False": "-n"}) == "-q is 9: more, or -n; queries count"


def test_the_error_of_an_argument_has_field_and_reason_and_one_of_a_file_may_have_none():
    error = ArgumentError("pool", "give one, or ", Parameter("plan"))
    assert (error.field, str(error), error.reason({"plan": "-p"})) == (
        "pool",
        "pool: give one, or plan",
        "give one, or -p",
    )
    assert PlanFileError("a.csv: line 1: qps is missing").field is None


@pytest.mark.parametrize("error", [ArgumentError("pool", "is empty"), MisfitError("a.csv: ", Parameter("most"))])
def test_an_error_comes_back_from_another_process_as_it_was(error):
    back = pickle.loads(pickle.dumps(error))
    assert (type(back), str(back), back.field) == (type(error), str(error), error.field)


def test_planning_s_parameters_get_the_caller_s_names():
    with pytest.raises(PlanningError) as caught, naming({"sla_s": "sla_ms"}):
        raise PlanningError("raise ", Parameter("sla_s"), " or ", Parameter("most"))
    assert (caught.value.field, str(caught.value)) == ("sla_ms", "raise sla_ms or most")


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "1", None])
def test_what_is_no_number_or_out_of_its_limits_is_refused(value):
    for limits in ({"least": 0}, {"more_than": -0.5}):
        with pytest.raises(ArgumentError) as caught:
            check_at_least("seeds", value, **limits)
        assert caught.value.field == "seeds"
    with pytest.raises(ArgumentError):
        check_percentile("percentile", value)


def test_limits_themselves_are_allowed_or_not():
    check_at_least("seeds", 0, least=0)
    with pytest.raises(ArgumentError):
        check_at_least("seeds", 0, more_than=0)
    check_choice("minimise", "power", ["power", "price"])
    with pytest.raises(ArgumentError, match="must be one of power, price"):
        check_choice("minimise", "time", ["power", "price"])


def test_a_form_is_what_it_names_or_an_error_of_its_field():
    assert check_form("sizes", forms.query_sizes, "fixed:3").largest == 3
    with pytest.raises(ArgumentError) as caught:
        check_form("sizes", forms.query_sizes, "fixed")
    assert caught.value.field == "sizes"
    with pytest.raises(RecordingError, match=r"none\.csv"):
        check_form("arrivals", forms.arrivals, "trace:none.csv")


@pytest.mark.parametrize(
    ("function", "given", "field"),
    [
        (plan_pool, {"sizes": 50}, "sizes"),
        (plan_pool, {"most": "gpu=1"}, "most"),
        (plan_pool, {"types": 5}, "types"),
        (plan_pool, {"types": "gpu"}, "types"),
        (plan_pool, {"prices": 5}, "prices"),
        (plan_pool, {"prices": {"gpu": "1"}}, "prices"),
        (plan_pool, {"seeds": 2.5}, "seeds"),
        (plan_pool, {"seed": True}, "seed"),
        (plan_pool, {"budget_per_hour": 10**400}, "budget_per_hour"),
        (plan_pool, {"budget_per_hour": "1"}, "budget_per_hour"),
        (plan_pool, {"budget_per_hour": print}, "budget_per_hour"),
        (plan_pool, {"service_times": 3}, "service_times"),
        (simulate_pool, {"pool": "gpu=1,cpu=2"}, "pool"),
        (simulate_pool, {"arrivals": None}, "arrivals"),
        (simulate_pool, {"policy": 5}, "policy"),
        (simulate_plan, {"plan": 5}, "plan"),
        (plan_provision, {"servers": {"cpu": 8}}, "servers"),
        (plan_colocate, {"server": {"cores": 4}}, "server"),
        (estimate, {"models": "dlrm-rmc1"}, "models"),
        (estimate, {"models": [], "cache_ways": 2.5}, "cache_ways"),
    ],
)
def test_an_argument_of_another_kind_is_named(function, given, field):
    with pytest.raises(ArgumentError) as raised:
        function(**{name: "x" for name in NEEDED[function] if name not in given} | NUMBERS.get(function, {}) | given)
    assert raised.value.field == field
    assert "--" not in str(raised.value)


NEEDED = {
    plan_pool: ("service_times", "prices"),
    plan_provision: ("efficiency", "servers", "loads"),
    plan_colocate: ("profiles", "server", "demand"),
    estimate: ("models", "servers"),
    simulate_pool: ("service_times",),
    simulate_plan: ("plan",),
}
NUMBERS = {plan_pool: {"budget_per_hour": 1.0, "sla_ms": 10.0}}


def test_numbers_of_numpy_are_numbers(tmp_path):
    times = times_file(tmp_path)
    asked = {"queries": np.int64(400), "seeds": np.int32(1), "sizes": "fixed:50", "sla_ms": np.float32(50)}
    made = simulate_pool(times, pool={"gpu": np.int64(2)}, rate_qps=np.float64(20), **asked)
    assert list(made.counts) == [2]
    assert type(made.sla.latency_ms) is float


def test_queries_beyond_the_service_times_are_an_error_of_the_sizes(tmp_path):
    with pytest.raises(LargestQueryError) as raised:
        simulate_pool(times_file(tmp_path), pool={"gpu": 1}, rate_qps=20, sla_ms=50, sizes="fixed:1000")
    assert raised.value.field == "sizes"
    assert "--" not in str(raised.value)
