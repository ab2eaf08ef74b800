"""What `hebe simulate` knows of the models of a plan: their service times, SLA targets and query sizes."""

from dataclasses import replace

import pytest

from hebe.capacity.errors import MisfitError, PlanFileError
from hebe.capacity.files.service_times import read_service_times
from hebe.capacity.planned_models import FleetPlanRequest, ModelTimes, model_times, read_models
from hebe.spec import SlaTarget
from hebe.workload.text_errors import WorkloadError
from tests.examples.pool_files import times_file
from tests.examples.server_profiles import profile_file


def request(plan="day.toml", **changes):
    asked = FleetPlanRequest((), plan, 1.0, None, None, None, "poisson", None, 1, 0)
    return replace(asked, **changes)


def test_service_times_are_those_given_or_the_profiles_that_the_plan_was_made_from(tmp_path):
    folder = profile_file(tmp_path / "profiles" / "m.json").parent
    times = times_file(tmp_path)
    assert model_times(request(), None, folder) == ModelTimes((folder,))
    assert model_times(request(service_times=(times,)), None, folder) == ModelTimes((times,))
    with pytest.raises(
        PlanFileError, match=r"times\.csv, which it was made from, has throughputs and no service times"
    ):
        model_times(request(), None, times)
    with pytest.raises(PlanFileError, match=r"day\.toml: it does not say from what it was made: give files of service"):
        model_times(request(), None, None)


def test_of_profiles_sla_and_sizes_are_what_they_were_made_for(tmp_path):
    load = "sizes quantiles:5,10,20, arrivals poisson, keys uniform, seed 0"
    profile_file(tmp_path / "a.json", model="a", sla=SlaTarget(30.0, 90.0), load=load)
    profile_file(tmp_path / "b.json", model="b", sla=SlaTarget(40.0, 95.0), load="as it comes")
    known = read_models(request(), ModelTimes((tmp_path,)), {"a": ["cpu"], "b": None})
    assert (known["a"].sla, known["a"].sizes) == (SlaTarget(30.0, 90.0), "quantiles:5,10,20")
    assert (known["b"].sla, known["b"].sizes) == (SlaTarget(40.0, 95.0), "production")
    assert known["a"].largest == len(known["a"].size_weights) == 20
    assert known["a"].times.table.types == ("cpu",)
    changed = read_models(
        request(sla_ms={"a": 50.0}, percentile=80.0, sizes="fixed:7"),
        ModelTimes((tmp_path,)),
        {"a": ["cpu"], "b": ["cpu"]},
    )
    assert [one.sla for one in changed.values()] == [SlaTarget(50.0, 80.0), SlaTarget(40.0, 80.0)]
    assert {one.sizes for one in changed.values()} == {"fixed:7"}
    assert [one.profiled_sla for one in changed.values()] == [SlaTarget(30.0, 90.0), SlaTarget(40.0, 95.0)]


def test_without_profiles_a_bound_is_needed(tmp_path):
    times = times_file(tmp_path)
    asked = request(sizes="fixed:10")
    with pytest.raises(PlanFileError, match="no SLA target of m: give sla_ms=ms for all models"):
        read_models(asked, ModelTimes((times,)), {"m": ["gpu"]})
    known = read_models(replace(asked, sla_ms=25.0), ModelTimes((times,)), {"m": ["cpu", "gpu"]})
    assert (known["m"].sla, known["m"].profiled_sla) == (SlaTarget(25.0, 99.0), None)
    assert known["m"].times.table.types == ("cpu", "gpu")


FAULTS = {
    "SLA of no model": ({"sla_ms": {"x": 9.0}}, {"m": ["gpu"]}, "sla_ms: the plan has no model x: there are m"),
    "no such model": ({"sla_ms": 25.0}, {"x": ["gpu"]}, "holds no model x: there are m"),
    "no such type": ({"sla_ms": 25.0}, {"m": ["tpu"]}, "no service times of m on tpu, which the plan uses for m"),
    "sizes beyond": ({"sla_ms": 25.0, "sizes": "fixed:200"}, {"m": ["gpu"]}, "queries of 200 items, but service times"),
    "SLA too short": ({"sla_ms": 1.0}, {"m": ["gpu"]}, "below the fastest service time of m"),
}


@pytest.mark.parametrize(("changes", "types", "message"), FAULTS.values(), ids=FAULTS)
def test_what_does_not_fit_is_named(tmp_path, changes, types, message):
    asked = replace(request(sizes="fixed:10"), **changes)
    with pytest.raises((PlanFileError, WorkloadError)) as fault:
        read_models(asked, ModelTimes((times_file(tmp_path),)), types)
    assert message in str(fault.value)


def test_profiles_for_unlike_targets_need_one(tmp_path):
    profile_file(tmp_path / "cpu.json", sla=SlaTarget(30.0, 95.0))
    profile_file(tmp_path / "gpu.json", server="gpu", sla=SlaTarget(40.0, 95.0))
    types = {"m": ["cpu", "gpu"]}
    with pytest.raises(
        PlanFileError, match="m was profiled for unlike SLA targets: p95 within 30 ms, p95 within 40 ms"
    ):
        read_models(request(sizes="fixed:10"), ModelTimes((tmp_path,)), types)
    asked = request(sizes="fixed:10", sla_ms=35.0, percentile=95.0)
    known = read_models(asked, ModelTimes((tmp_path,)), types)["m"]
    assert (known.sla, known.profiled_sla) == (SlaTarget(35.0, 95.0), None)


def test_service_times_may_be_data_by_model(tmp_path):
    times = read_service_times([times_file(tmp_path)], "m")
    asked = request(sizes="fixed:10", sla_ms=25.0)
    for given in (times, times.table):
        known = read_models(asked, model_times(asked, {"m": given}, None), {"m": ["cpu"]})
        assert known["m"].times.table.types == ("cpu",)
    with pytest.raises(MisfitError) as caught:
        read_models(asked, model_times(asked, {"m": times}, None), {"other": None})
    assert caught.value.field == "service_times"
