"""What is shown of estimates: of pairs that were made up."""

import json

import pytest

from hebe.capacity.files.server_specs import server_named
from hebe.capacity.server_estimates import EstimateMade
from hebe.cli.estimate.results import NOTE, document, server_types
from hebe.models import catalog
from hebe.profile import EfficiencyTuple, LatencyProfile
from hebe.server_configuration import Lane, Placement
from hebe.simulation.analytic.server_estimate import Estimate, EstimateCase, QueryTimes
from hebe.spec import SlaTarget
from hebe.workload import forms
from tests.cli.shown import shown

LANE = Lane(Placement.MODEL_ON_HOST, workers=4, batch_size=64)
LATENCY = LatencyProfile((1, 64), (1e-3, 8e-3), (0.0, 0.0))


def made(server="r5n.large", qps=200.0, times_qps=200.0, **changes):
    case = EstimateCase(
        server_named(server),
        catalog.entry("kairos-ncf", None, 1.0),
        SlaTarget(60.0, 95.0),
        forms.query_sizes("fixed:1"),
    )
    times = None if times_qps is None else QueryTimes(LANE, times_qps, LATENCY, 4)
    efficiency = EfficiencyTuple("kairos-ncf", server, qps, 100.0, {}, estimated=True)
    return EstimateMade(case, Estimate(efficiency, (LANE,), times=times, **changes))


def test_a_pair_is_told_with_its_throughput_and_how_far_off_such_figures_are():
    text = shown(document([made()]))
    assert "kairos-ncf r5n.large 200 100 2 " in text
    assert "model-on-host" in text
    assert text.rstrip().endswith(NOTE)


def test_what_cannot_be_served_says_why_and_has_no_power():
    text = shown(document([made(qps=0.0, times_qps=None, reason="its tables take 90 GB")]))
    assert "kairos-ncf r5n.large 0 cannot serve it: its tables take 90 GB" in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"times_qps": None}, "kairos-ncf on r5n.large: no service times: where a query's time is one number by its"),
        (
            {"times_qps": 150.0},
            "150 queries/s. In the best configuration a query's time is not one number by its size.",
        ),
        ({"server": "T2"}, None),
        ({"not_shared": "it states no cache"}, "r5n.large: no scalability: it states no cache."),
    ],
)
def test_what_planning_cannot_rest_on_is_said(changes, words):
    text = shown(document([made(**changes)]))
    told = text.split(NOTE)[1].strip()
    assert (words in told) if words is not None else not told


def test_json_has_each_pair_with_its_target():
    (told,) = json.loads(json.dumps(document([made()]).data))["estimates"]
    assert (told["model"], told["qps"], told["sla_ms"], told["percentile"]) == ("kairos-ncf", 200.0, 60.0, 95.0)
    assert told["service_times"]["workers"] == 4
    assert told["service_times"]["service_s"] == [1e-3, 8e-3]
    assert document([made(times_qps=None)]).data["estimates"][0]["service_times"] is None


def test_power_of_a_type_with_an_accelerator_is_that_of_both():
    server = server_named("g4dn.xlarge")
    text = shown(server_types([server]))
    assert server.accelerator.name in text
    assert f" {server.idle_power_watts + server.accelerator.idle_power_watts:g} " in text
