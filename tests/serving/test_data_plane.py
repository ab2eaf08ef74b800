"""What is the same whatever the protocol: options, refusals, counting, forgetting."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest

from hebe.serving.data_plane import DataPlane
from hebe.serving.requests.errors import ErrorKind, InvalidInput, QueryFailed, QueryRefused, RequestError, UnknownModel
from hebe.serving.requests.infer_request import DEFAULT_PRIORITY, InferRequest
from hebe.serving.requests.tensors import WireTensor
from hebe.serving.statistics import Statistics


@pytest.fixture
def plane(fake_host):
    plane = DataPlane(fake_host, Statistics())
    for model in fake_host.hosted:
        plane.model_loaded(model)
    return plane


def stop_clock(plane):
    """So that a deadline of 2 ms is there until the model is asked."""
    plane.clock = lambda: 100.0


def request(plane, *, model="lone", version="", **fields):
    tensors = [WireTensor("thing", "INT64", (2, 2), np.array([1, 2, 3, 4]))]
    return InferRequest(model, version, "id", tensors, plane.clock(), **fields)


def counters(plane, name="lone"):
    return plane.statistics.find(name)[0]


async def test_an_answer_is_counted_with_its_batch(plane, scores_of):
    answer = await plane.infer(request(plane))
    model = plane.host.models["lone"]
    np.testing.assert_array_equal(answer.scores, scores_of(model.spec, model.queries[0]))
    assert (answer.model, answer.version, answer.request_id, answer.parameters) == ("lone", 1, "id", {})
    assert (counters(plane).success.count, counters(plane).items_answered, counters(plane).executions) == (1, 2, 1)
    assert counters(plane).query_items.sum == counters(plane).batch_items.sum == 2


async def test_a_request_waits_from_when_it_was_decoded(plane):
    asked = request(plane)
    asked.arrival_s -= 5.0  # that long its body took to come
    await plane.infer(asked)
    counted = counters(plane)
    assert counted.queue.seconds < 1.0
    assert counted.stage_s["queue"].sum >= 5.0, "of the stages, whose sum is the latency, it is the first"


@pytest.mark.parametrize(
    ("transport_s", "parameters", "deadline_s"),
    [
        (math.inf, {}, math.inf),
        (math.inf, {"timeout": 0}, math.inf),
        (math.inf, {"timeout": 2_000_000}, 2.0),
        (5.0, {"timeout": 2_000_000}, 2.0),
        (5.0, {"timeout": 9_000_000}, 5.0),
        (5.0, {}, 5.0),
        (50.0, {}, math.inf),
        (50.0, {"timeout": 20_000_000}, 20.0),
    ],
)
async def test_the_nearer_deadline_counts(plane, transport_s, parameters, deadline_s):
    plane.host.models["lone"].sla_s = 10.0
    asked = request(plane, parameters=parameters)
    asked.deadline_s = asked.arrival_s + transport_s
    await plane.infer(asked)
    query = plane.host.models["lone"].queries[-1]
    assert query.deadline_s - query.arrival_s == pytest.approx(deadline_s)


async def test_parameters_of_other_servers_are_ignored(plane):
    await plane.infer(request(plane, parameters={"sequence_id": 0, "triton_x": "y", "headers": {}, "priority": 7}))
    assert plane.host.models["lone"].queries[-1].priority == 7


@pytest.mark.parametrize("parameters", [{}, {"timeout": 9_000_000}, {"priority": 0}])
async def test_who_names_no_priority_has_the_default_one_which_one_is_more_urgent_than(plane, parameters):
    await plane.infer(request(plane, parameters=parameters))
    assert plane.host.models["lone"].queries[-1].priority == DEFAULT_PRIORITY > 1


@pytest.mark.parametrize(
    ("transport_s", "parameters", "late"),
    [
        (math.inf, {}, 1),
        (math.inf, {"timeout": 10_000_000}, 1),
        (math.inf, {"timeout": 10**400}, 0),  # no number of microseconds: invalid
        (math.inf, {"timeout": 2_000}, 0),
        (0.002, {}, 0),
    ],
)
async def test_a_refusal_counts_as_late_unless_the_request_was_in_a_hurry(plane, transport_s, parameters, late):
    plane.host.models["lone"].fault = QueryRefused("deadline", "too late")
    stop_clock(plane)
    hurried = request(plane, parameters=parameters)
    hurried.deadline_s = hurried.arrival_s + transport_s
    with pytest.raises(RequestError):
        await plane.infer(hurried)
    assert counters(plane).refused_late == late


@pytest.mark.parametrize(
    ("fault", "failures"),
    [
        (QueryFailed("its batch failed"), 1),
        (ValueError("nobody thought of it"), 1),
        (QueryRefused("no_worker", "no worker is up"), 1),
        (QueryRefused("deadline", "too late"), 0),
        (InvalidInput("wrong"), 0),
    ],
)
async def test_what_the_server_is_to_blame_for_counts_as_failed(plane, fault, failures):
    plane.host.models["lone"].fault = fault
    stop_clock(plane)
    with pytest.raises(RequestError):
        await plane.infer(request(plane, parameters={"timeout": 2_000}))
    assert (counters(plane).failures, counters(plane).refused_late) == (failures, 0)


async def test_refusals_are_counted_where_they_belong(plane):
    with pytest.raises(RequestError) as error:
        await plane.infer(request(plane, model="nothing"))
    assert error.value.kind is ErrorKind.NOT_FOUND
    assert plane.statistics.refused == {"not_found": 1}
    plane.host.models["lone"].fault = QueryRefused("queue_full", "full")
    with pytest.raises(RequestError) as error:
        await plane.infer(request(plane))
    assert error.value.kind is ErrorKind.OVERLOADED
    with pytest.raises(RequestError):
        await plane.infer(request(plane, outputs=["logit"]))
    assert counters(plane).refused == {"queue_full": 1, "invalid": 1}
    assert (counters(plane).fail.count, counters(plane).success.count) == (2, 0)


async def test_a_cancelled_request_is_counted_and_withdrawn(plane):
    model = plane.host.models["lone"]
    model.delay_s = 10.0
    task = asyncio.ensure_future(plane.infer(request(plane)))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert model.cancelled == 1
    assert counters(plane).refused == {"cancelled": 1}


async def test_an_unloaded_model_leaves_nothing_behind(plane):
    await plane.infer(request(plane))
    model = plane.host.models["lone"]
    plane.model_unloaded(model)
    assert counters(plane).success.count == 1, "the version is still hosted: it was loaded again"
    del plane.host.models["lone"]
    plane.model_unloaded(model)
    assert not plane.statistics.find("lone")
    assert plane.statistics.find("ranker")


async def test_a_version_loaded_again_is_decoded_by_its_new_specification(plane):
    await plane.infer(request(plane))
    model = plane.host.models["lone"]
    model.spec = type(model.spec).from_dict(
        model.spec.to_dict() | {"tables": [{"name": "things", "rows": 3, "dim": 4}]}
    )
    with pytest.raises(RequestError, match=r"key 3 of item 1 is out of range; keys must lie in 0\.\.2"):
        await plane.infer(request(plane))


async def test_scores_are_finite_or_an_error_that_says_what_is_to_blame(plane):
    model = plane.host.models["lone"]
    model.not_finite = {1: -math.inf}
    with pytest.raises(RequestError) as error:
        await plane.infer(request(plane))
    assert (error.value.kind, error.value.reason) == (ErrorKind.INTERNAL, "not_finite")
    assert error.value.message.startswith("score -inf of item 1 is not finite: the model's weights or rows are not")
    assert counters(plane).refused == {"not_finite": 1}
    assert counters(plane).failures == 1
    assert (counters(plane).success.count, counters(plane).items_answered) == (0, 0)
    model.not_finite = {}
    await plane.infer(request(plane))


@pytest.mark.parametrize(
    ("value", "kind"), [(2e9, ErrorKind.INVALID), (-2e9, ErrorKind.INVALID), (1e9, ErrorKind.INTERNAL)]
)
async def test_only_large_inputs_are_to_blame(plane, value, kind):
    plane.host.models["ranker"].not_finite = {0: math.nan}
    dense = np.array([[0.5, value], [0.0, 1e30]], np.float32)
    tensors = [
        WireTensor("user", "INT64", (2, 1), np.array([1, 2])),
        WireTensor("history", "INT64", (2, 3), np.arange(6)),
        WireTensor("dense", "FP32", (2, 2), dense.reshape(-1)),
    ]
    with pytest.raises(RequestError) as error:
        await plane.infer(InferRequest("ranker", "", "", tensors, plane.clock()))
    assert error.value.kind is kind
    assert ("value -2e+09 of item 0, column 1" in error.value.message) == (value == -2e9)
    assert plane.statistics.find("ranker")[0].failures == (kind is ErrorKind.INTERNAL)


def test_a_refusal_is_counted_once(plane):
    error = RequestError(ErrorKind.TOO_LARGE, "too large")
    plane.count_refused(error)
    plane.count_refused(error)
    assert plane.statistics.refused == {"too_large": 1}


def test_a_refusal_is_counted_on_the_model_that_it_names_if_there_is_one(plane):
    for model, version in (("lone", ""), ("lone", "1"), ("lone", "2"), ("invented", ""), ("", "")):
        asked = InferRequest(model, version, "", (), plane.clock())
        plane.count_refused(RequestError(ErrorKind.RATE_LIMITED, "too often"), asked)
    assert counters(plane).refused == {"rate_limited": 2}
    assert (counters(plane).fail.count, counters(plane).refused_late) == (2, 0)
    assert plane.statistics.refused == {"rate_limited": 3}
    assert [found.name for found in plane.statistics.find()] == ["lone", "ranker"]


def test_requests_may_have_the_fields_that_the_largest_model_needs(plane):
    """Two for each input, of which a feature that is jagged has two, and some for all that is said once."""
    assert plane.most_fields == 2 * (2 * 2 + 1) + 64


def test_inputs_of_a_request(plane):
    assert (plane.decoder("ranker", "").most_inputs, plane.decoder("lone", "1").most_inputs) == (2 * 2 + 1, 2)
    with pytest.raises(UnknownModel):
        plane.decoder("nothing", "")


def test_elements_of_an_input(plane):
    assert plane.decoder("lone", "").most_values == plane.decoder("lone", "1").most_values == 2 * 64
    with pytest.raises(UnknownModel):
        plane.decoder("nothing", "")


async def test_who_is_refused_is_left_alone_where_workers_give_way_to_the_front_end(plane, monkeypatch):
    monkeypatch.setattr(plane._pace, "refused", lambda workers: 0.1 * workers)
    model = plane.host.models["lone"]
    model.fault = QueryRefused("deadline", "too late")
    for workers, rest_s in [(0, 0.0), (1, 0.1), (3, pytest.approx(0.3))]:
        model.workers_beside_front_end = workers
        with pytest.raises(RequestError) as refused:
            await plane.infer(request(plane))
        assert refused.value.rest_s == rest_s
    model.fault, counted = None, []
    monkeypatch.setattr(plane._pace, "answered", lambda: counted.append(1))
    await plane.infer(request(plane))
    assert counted == [1]
