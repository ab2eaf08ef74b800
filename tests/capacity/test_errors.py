"""Errors name parameters, and what checks them."""

import pickle

import pytest

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
from hebe.workload import forms
from hebe.workload.text_errors import RecordingError


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
