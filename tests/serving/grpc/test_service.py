"""The protocol over gRPC, with messages written by hand."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from types import SimpleNamespace

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from structlog.testing import capture_logs

from hebe.serving.access.auth import Gate
from hebe.serving.grpc.protocol import SERVICE, message, methods
from hebe.serving.grpc.service import _unless_gone
from hebe.serving.http1.messages import HttpLimits
from hebe.serving.requests.errors import LoadFailed, QueryFailed, QueryRefused
from tests.serving.grpc_calls import ARRAYS, DENSE, ITEMS, USER, Client, Code, infer_request, refused, wait_until


@pytest.fixture
def client(front_ends):
    client = Client(front_ends.grpc_url)
    yield client
    client.channel.close()


def expected(front_ends, scores_of):
    model = front_ends.host.models["ranker"]
    return scores_of(model.spec, model.queries[-1])


def test_raw_in_and_out(client, front_ends, scores_of):
    response = client("ModelInfer", infer_request(id="seven"))
    assert (response.model_name, response.model_version, response.id) == ("ranker", "1", "seven")
    (output,) = response.outputs
    assert (output.name, output.datatype, list(output.shape)) == ("score", "FP32", [ITEMS, 1])
    scores = np.frombuffer(response.raw_output_contents[0], np.float32)
    np.testing.assert_array_equal(scores[:, None], expected(front_ends, scores_of))


def test_typed_in_and_out(client, front_ends, scores_of):
    arrays = {
        "user": USER,
        "dense": DENSE,
        "history.values": np.array([5, 6, 7]),
        "history.lengths": np.array([1, 0, 2], np.int32),
    }
    response = client("ModelInfer", infer_request(arrays, raw=False, model_version="1"))
    assert not response.raw_output_contents
    scores = np.float32(response.outputs[0].contents.fp32_contents)
    np.testing.assert_array_equal(scores[:, None], expected(front_ends, scores_of))
    assert front_ends.host.models["ranker"].queries[-1].features["history"].offsets.tolist() == [0, 1, 1, 3]


def test_health_and_metadata(client, front_ends):
    assert client("ServerLive").live
    assert client("ServerReady").ready
    assert client("ModelReady", message("ModelReadyRequest")(name="ranker")).ready
    assert client("ServerMetadata").name == "hebe"
    metadata = client("ModelMetadata", message("ModelMetadataRequest")(name="ranker"))
    assert [(t.name, t.datatype, list(t.shape)) for t in metadata.inputs] == [
        ("user", "INT64", [-1, 1]),
        ("history", "INT64", [-1, 3]),
        ("dense", "FP32", [-1, 2]),
    ]
    config = client("ModelConfig", message("ModelConfigRequest")(name="ranker")).config
    assert config.max_batch_size == 64
    assert config.WhichOneof("scheduling_choice") == "dynamic_batching"
    front_ends.host.ready = False
    front_ends.host.models["ranker"].trouble = "its last batches all failed"
    assert not client("ServerReady").ready
    assert not client("ModelReady", message("ModelReadyRequest")(name="ranker")).ready
    assert not client("ModelReady", message("ModelReadyRequest")(name="nothing")).ready
    code, text = refused(client, "ModelMetadata", message("ModelMetadataRequest")(name="ranker", version="9"))
    assert (code, text) == (Code.NOT_FOUND, "model ranker has no version '9'")


def test_statistics(client):
    client("ModelInfer", infer_request())
    (stats,) = client("ModelStatistics", message("ModelStatisticsRequest")(name="ranker")).model_stats
    assert (stats.name, stats.inference_count, stats.execution_count) == ("ranker", ITEMS, 1)
    assert stats.inference_stats.success.count == 1
    assert len(client("ModelStatistics").model_stats) == 2


def test_the_repository(client, front_ends):
    client("RepositoryModelUnload", message("RepositoryModelUnloadRequest")(model_name="lone"))
    index = client("RepositoryIndex").models
    assert [(m.name, m.state) for m in index] == [("lone", "UNAVAILABLE"), ("ranker", "READY")]
    assert len(client("RepositoryIndex", message("RepositoryIndexRequest")(ready=True)).models) == 1
    load = message("RepositoryModelLoadRequest")(model_name="lone")
    load.parameters["version"].int64_param = 3
    client("RepositoryModelLoad", load)
    assert front_ends.host.loads == [("lone", 3)]
    load.parameters["files"].string_param = "{}"
    code, text = refused(client, "RepositoryModelLoad", load)
    assert (code, "parameter 'files' of load is not supported" in text) == (Code.INVALID_ARGUMENT, True)
    for change in ("Load", "Unload"):
        request = message(f"RepositoryModel{change}Request")(model_name="none")
        assert refused(client, f"RepositoryModel{change}", request)[0] is Code.NOT_FOUND


@pytest.mark.parametrize("method", ["RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"])
def test_there_is_no_other_repository(client, front_ends, method):
    request = methods()[method][0](repository_name="/other")
    if method != "RepositoryIndex":
        request.model_name = "lone"
    code, text = refused(client, method, request)
    assert (code, text.partition(";")[0]) == (Code.INVALID_ARGUMENT, "field 'repository_name' is '/other'")
    assert "lone" in front_ends.host.models
    assert not front_ends.host.loads


def test_a_path_that_is_not_utf8_is_told_as_far_as_it_can_be(client, front_ends):
    """Where gRPC is given what it cannot send, the call never ends."""

    async def load(name, version):  # noqa: ARG001
        raise LoadFailed("/mod\udce8les/lone: truncated")

    front_ends.host.load = load
    code, text = refused(client, "RepositoryModelLoad", message("RepositoryModelLoadRequest")(model_name="lone"))
    assert (code, text) == (Code.INVALID_ARGUMENT, "/mod\\udce8les/lone: truncated")


def test_settings_and_shared_memory(client):
    assert client("TraceSetting").settings["trace_level"].value == ["OFF"]
    assert client("TraceSetting", message("TraceSettingRequest")(model_name="ranker")).settings
    nobody = message("TraceSettingRequest")(model_name="nobody")
    assert refused(client, "TraceSetting", nobody)[0] is Code.NOT_FOUND
    assert client("LogSettings").settings["log_info"].bool_param
    for method in ("TraceSetting", "LogSettings"):
        request = message(f"{method}Request")()
        request.settings["x"].SetInParent()
        assert refused(client, method, request)[0] is Code.UNIMPLEMENTED
    for kind in ("System", "Cuda"):
        assert not client(f"{kind}SharedMemoryStatus").regions
        client(f"{kind}SharedMemoryUnregister")
        code, text = refused(client, f"{kind}SharedMemoryRegister")
        assert code is Code.UNIMPLEMENTED
        assert "shared memory is not supported" in text


@pytest.mark.parametrize(
    ("fault", "code", "pushback"),
    [
        (QueryRefused("deadline", "overloaded", 0.25), Code.UNAVAILABLE, "250"),
        (QueryRefused("queue_full", "full"), Code.UNAVAILABLE, None),
        (QueryRefused("expired", "too late"), Code.UNAVAILABLE, None),
        (QueryRefused("expired", "too late", timed_out=True), Code.DEADLINE_EXCEEDED, None),
        (QueryRefused("shutting_down", "bye"), Code.UNAVAILABLE, None),
        (QueryFailed("worker 1 died"), Code.INTERNAL, None),
    ],
)
def test_refusals_have_their_code(client, front_ends, fault, code, pushback):
    front_ends.host.models["ranker"].fault = fault
    with pytest.raises(grpc.RpcError) as error:
        client("ModelInfer", infer_request())
    assert (error.value.code(), error.value.details()) == (code, str(fault))
    assert dict(error.value.trailing_metadata()).get("grpc-retry-pushback-ms") == pushback


@pytest.mark.parametrize("stream", [False, True])
def test_who_is_refused_too_often_hears_of_it_later(client, front_ends, stream, monkeypatch):
    model = front_ends.host.models["ranker"]
    model.workers_beside_front_end, model.fault = 2, QueryRefused("deadline", "overloaded")
    monkeypatch.setattr(front_ends.data_plane._pace, "refused", lambda workers: 0.15 * workers)
    began_s = time.monotonic()
    if stream:
        assert [answer.error_message for answer in client.stream([infer_request()])] == ["overloaded"]
    else:
        assert refused(client, "ModelInfer", infer_request())[0] is Code.UNAVAILABLE
    assert time.monotonic() - began_s >= 0.3


def test_an_unforeseen_fault_tells_nothing_of_the_inside(client, front_ends):
    front_ends.host.models["ranker"].fault = ZeroDivisionError("secret detail")
    code, text = refused(client, "ModelInfer", infer_request())
    assert (code, "secret" in text) == (Code.INTERNAL, False)


def shared_memory(entry):
    entry.parameters["shared_memory_region"].string_param = "r"


def edit(change, **options):
    request = infer_request(**options)
    change(request)
    return request


MALFORMED = [
    (edit(lambda r: r.ClearField("inputs")), "there are 0 inputs"),
    (edit(lambda r: r.ClearField("inputs"), raw=False), "field 'inputs' is empty"),
    (edit(lambda r: r.raw_input_contents.pop()), "'raw_input_contents' has 2 element(s); there are 3 inputs"),
    (edit(lambda r: r.raw_input_contents.append(b"")), "'raw_input_contents' has 4 element(s)"),
    (edit(lambda r: r.inputs[0].contents.int64_contents.append(1)), "has both contents and raw_input_contents"),
    (edit(lambda r: r.inputs[0].contents.int64_contents.append(1), raw=False), "data has 4 element(s)"),
    (edit(lambda r: r.inputs[0].contents.int_contents.append(1), raw=False), "INT64 belongs in int64_contents"),
    (edit(lambda r: setattr(r.inputs[0], "datatype", "BYTES"), raw=False), "datatype 'BYTES' is not supported"),
    (edit(lambda r: setattr(r.inputs[0], "datatype", "INT32")), "INT32 of shape [3, 1] needs 12"),
    (edit(lambda r: setattr(r.inputs[0], "name", "nobody")), "input 'nobody' is unknown"),
    (edit(lambda r: r.inputs[0].shape.append(-1)), "not negative"),
    (edit(lambda r: shared_memory(r.inputs[0])), "asks for shared memory"),
    (edit(lambda r: shared_memory(r.outputs.add(name="score"))), "asks for shared memory"),
    (edit(lambda r: r.outputs.add(name="logit")), "output 'logit' is unknown"),
    (edit(lambda r: r.outputs.add(name="score").parameters["classification"].SetInParent()), "'classification'"),
    (edit(lambda r: setattr(r.parameters["timeout"], "string_param", "1")), "parameter 'timeout' is '1'"),
    (edit(lambda r: r.parameters["priority"].SetInParent()), "parameter 'priority' is None"),
    (edit(lambda r: setattr(r.parameters["sequence_id"], "int64_param", 4)), "keep no state"),
]


@pytest.mark.parametrize(("request_", "text"), MALFORMED)
def test_malformed_requests_name_what_is_wrong(client, request_, text):
    code, got = refused(client, "ModelInfer", request_)
    assert code is Code.INVALID_ARGUMENT
    assert text in got
    client("ModelInfer", infer_request())


@pytest.mark.parametrize("method", [name for name in methods() if name != "ModelStreamInfer"])
def test_bytes_that_are_no_message(client, method):
    code, text = refused(client, method, data=b"\xff\xff\xff\xff")
    assert code is Code.INVALID_ARGUMENT
    assert "not a " in text


def test_unknown_methods_and_models(client):
    call = client.channel.unary_unary(f"/{SERVICE}/Nothing")
    assert refused(call, b"")[0] is Code.UNIMPLEMENTED
    assert refused(client, "ModelInfer", infer_request(model="nothing"))[0] is Code.NOT_FOUND


def test_whatever_is_refused_is_counted_once_by_its_reason(serve_with):
    front_ends = serve_with(limits=HttpLimits(max_request_bytes=2000))
    client, refusals = Client(front_ends.grpc_url), front_ends.data_plane.statistics.refused
    unknown = client.channel.unary_unary(f"/{SERVICE}/Nothing")
    elsewhere = client.channel.unary_unary("/other.Service/Method")
    empty = client.channel.stream_unary(f"/{SERVICE}/ModelInfer")
    for ask, reason in (
        (lambda: client("ModelInfer", data=b"\xff"), "invalid"),
        (lambda: client("ModelMetadata", data=b"\xff"), "invalid"),
        (lambda: client("ModelInfer", infer_request(model="nothing")), "not_found"),
        (lambda: client("ModelMetadata", message("ModelMetadataRequest")(name="nothing")), "not_found"),
        (lambda: unknown(b""), "unsupported"),
        (lambda: elsewhere(b""), "unsupported"),
        (lambda: client("CudaSharedMemoryRegister"), "unsupported"),
        (lambda: client("ModelInfer", data=bytes(3000)), "no_message"),
        (lambda: empty(iter(())), "no_message"),
    ):
        refusals.clear()
        assert refused(ask)[0] is not Code.UNKNOWN
        wait_until(lambda: refusals)
        assert refusals == {reason: 1}
    refusals.clear()
    assert list(client.stream([b"\xff", infer_request(model="nothing")]))
    assert refusals == {"invalid": 1, "not_found": 1}
    assert not any(model.refused for model in front_ends.data_plane.statistics.find())
    client.channel.close()


def test_the_log_names_the_limit_of_a_message_that_is_too_large(serve_with):
    front_ends = serve_with(limits=HttpLimits(max_request_bytes=2000))
    client = Client(front_ends.grpc_url)
    with capture_logs() as logged:
        assert refused(client, "ModelInfer", data=bytes(3000))[0] is Code.RESOURCE_EXHAUSTED
        wait_until(lambda: logged)
    client.channel.close()
    (line,) = logged
    assert "one beyond the limit of 2,000 bytes" in line["message"]


def test_what_asks_a_model_for_scores_is_counted_on_it(client, front_ends):
    statistics = front_ends.data_plane.statistics
    assert refused(client, "ModelInfer", infer_request({}))[0] is Code.INVALID_ARGUMENT
    assert list(client.stream([infer_request({})]))
    assert statistics.find("ranker")[0].refused == {"invalid": 2}
    assert refused(client, "ModelInfer", infer_request({}, model_version="7"))[0] is Code.NOT_FOUND
    assert statistics.refused == {"not_found": 1}
    assert [model.name for model in statistics.find()] == ["lone", "ranker"]


async def test_a_client_that_has_gone_is_no_error_of_the_server():
    """gRPC logs what else it is raised, with a stack trace; and what it says itself, unless it knows why already."""

    async def act(_requests, context):
        await context.abort()

    async def abort(fault):
        raise fault

    for fault, raised in ((grpc.aio.InternalError("gone"), asyncio.CancelledError), (grpc.aio.AbortError(), None)):
        context = SimpleNamespace(abort=partial(abort, fault))
        with pytest.raises(raised or type(fault)):
            await _unless_gone(act)(None, context)


def test_scores_that_are_not_finite_are_the_same_error_as_over_http(client, front_ends):
    model = front_ends.host.models["ranker"]
    model.not_finite = {1: float("inf")}
    for raw in (True, False):
        code, text = refused(client, "ModelInfer", infer_request(raw=raw))
        assert code is Code.INTERNAL
        assert text.startswith("score inf of item 1 is not finite: the model's weights or rows are not")
    code, text = refused(client, "ModelInfer", infer_request(ARRAYS | {"dense": DENSE + np.float32(3e38)}))
    assert (code, text.startswith("input 'dense': value 3e+38 of item 1, column 0")) == (Code.INVALID_ARGUMENT, True)
    model.not_finite = {}
    client("ModelInfer", infer_request())


def test_messages_fit_into_trailers(client):
    """However much of what a client wrote they quote: gRPC writes each byte that is not ASCII as three."""
    name = "\U0001f600" * 50_000
    for method, request in (
        ("ModelInfer", infer_request(model=name)),
        ("ModelInfer", infer_request({name: USER})),
        ("ModelMetadata", message("ModelMetadataRequest")(name=name)),
        ("RepositoryModelLoad", message("RepositoryModelLoadRequest")(model_name=name)),
    ):
        code, text = refused(client, method, request)
        assert code in (Code.NOT_FOUND, Code.INVALID_ARGUMENT)
        assert name[:50] in text
        assert len(text.encode()) <= 1000


def test_compressed_messages(client, front_ends):
    client("ModelInfer", infer_request(), compression=grpc.Compression.Gzip)
    assert front_ends.host.models["ranker"].queries[-1].items == ITEMS


def test_timeout_priority_and_the_calls_own_deadline_reach_the_query(client, front_ends):
    request = infer_request()
    request.parameters["timeout"].int64_param = 2_000_000
    request.parameters["priority"].uint64_param = 2
    client("ModelInfer", request, timeout=10)
    model = front_ends.host.models["ranker"]
    query = model.queries[-1]
    assert query.deadline_s - query.arrival_s == pytest.approx(2.0)
    assert query.priority == 2
    model.sla_s = 5.0
    client("ModelInfer", infer_request(), timeout=1)
    query = model.queries[-1]
    assert 0.5 < query.deadline_s - query.arrival_s < 1.5
    client("ModelInfer", infer_request(), timeout=None)
    assert model.queries[-1].deadline_s == float("inf")


def test_a_calls_own_deadline_gives_no_more_time_than_the_models_bound(client, front_ends):
    """Clients set one of half a minute for safety; who wants to wait that long says so with `timeout`."""
    model = front_ends.host.models["ranker"]
    model.sla_s = 0.5
    for parameters in ({}, {"priority": 1}):
        request = infer_request()
        for name, value in parameters.items():
            request.parameters[name].uint64_param = value
        client("ModelInfer", request, timeout=30)
        assert model.queries[-1].deadline_s == float("inf"), "none of its own: the bound holds"
    request.parameters["timeout"].int64_param = 60_000_000
    client("ModelInfer", request, timeout=30)
    query = model.queries[-1]
    assert 25 < query.deadline_s - query.arrival_s < 30.5, "the nearer one"


def test_a_call_that_is_given_up_withdraws_its_query(client, front_ends):
    model = front_ends.host.models["ranker"]
    model.delay_s = 3600.0
    infer = client.channel.unary_unary(f"/{SERVICE}/ModelInfer")
    call = infer.future(infer_request().SerializeToString(), timeout=60)
    wait_until(lambda: model.queries)
    call.cancel()
    wait_until(lambda: model.cancelled == 1)
    assert refused(client, "ModelInfer", infer_request(), timeout=0.1)[0] is Code.DEADLINE_EXCEEDED
    wait_until(lambda: model.cancelled == len(model.queries))  # the second may have been too late to become one


def test_a_stream_answers_in_order_and_survives_errors(client, front_ends):
    model = front_ends.host.models["ranker"]
    requests = [infer_request(id=str(number)) for number in range(100)]
    requests[10] = infer_request({"user": USER}, id="10")
    requests[20] = b"\xff\xff"
    requests[30] = infer_request(model="nothing", id="30")
    responses = list(client.stream(requests))
    assert [r.infer_response.id for r in responses] == [str(n) if n != 20 else "" for n in range(100)]
    failed = {number: r.error_message for number, r in enumerate(responses) if r.error_message}
    assert set(failed) == {10, 20, 30}
    assert failed[10] == "input(s) missing: history, dense"
    assert responses[0].infer_response.parameters["triton_final_response"].bool_param
    assert len(model.queries) == 97


def test_requests_of_one_stream_run_side_by_side(client, front_ends):
    model = front_ends.host.models["ranker"]
    model.delay_s = 0.2
    answers = client.stream([infer_request() for _ in range(20)])
    next(answers)
    assert len(model.queries) == 20, "the last one has begun before the first one is answered"
    assert len(list(answers)) == 19


def test_a_stream_that_is_given_up_withdraws_its_queries(client, front_ends):
    model = front_ends.host.models["ranker"]
    model.delay_s = 10.0
    call = client.stream([infer_request() for _ in range(5)])
    wait_until(lambda: len(model.queries) == 5)
    call.cancel()
    wait_until(lambda: model.cancelled == 5)


def test_tokens_guard_everything_but_health(serve_with):
    front_ends = serve_with(gate=Gate(["secret"]))
    stranger = Client(front_ends.grpc_url)
    assert stranger("ServerLive").live
    assert stranger("ServerReady").ready
    health = health_pb2_grpc.HealthStub(stranger.channel)
    assert health.Check(health_pb2.HealthCheckRequest()).status == health_pb2.HealthCheckResponse.SERVING
    for method in set(methods()) - {"ServerLive", "ServerReady", "ModelStreamInfer"}:
        assert refused(stranger, method)[0] is Code.UNAUTHENTICATED
    assert refused(lambda: list(stranger.stream([infer_request()])))[0] is Code.UNAUTHENTICATED
    stranger.channel.close()
    friend = Client(front_ends.grpc_url, [("authorization", "Bearer secret")])
    friend("ModelInfer", infer_request())
    assert len(list(friend.stream([infer_request()] * 3))) == 3
    friend.channel.close()


def test_of_single_models_health_is_told_with_a_token(serve_with):
    """As over HTTP; else whoever guesses names learns which models there are."""
    front_ends = serve_with(gate=Gate(["secret"]))
    client = Client(front_ends.grpc_url)
    health = health_pb2_grpc.HealthStub(client.channel)
    token = [("authorization", "Bearer secret")]
    for service in ("ranker", "nothing"):
        request = health_pb2.HealthCheckRequest(service=service)
        assert refused(health.Check, request)[0] is Code.UNAUTHENTICATED
        assert refused(next, health.Watch(request, timeout=10))[0] is Code.UNAUTHENTICATED
        watch = health.Watch(request, timeout=10, metadata=token)
        known = service == "ranker"
        status = health_pb2.HealthCheckResponse
        assert next(watch).status == (status.SERVING if known else status.SERVICE_UNKNOWN)
        watch.cancel()
    request = health_pb2.HealthCheckRequest(service=SERVICE)
    assert health.Check(request).status == health_pb2.HealthCheckResponse.SERVING
    request.service = "ranker"
    assert health.Check(request, metadata=token).status == health_pb2.HealthCheckResponse.SERVING
    client.channel.close()


def test_the_standard_health_service(client, front_ends):
    health = health_pb2_grpc.HealthStub(client.channel)
    status = health_pb2.HealthCheckResponse

    def check(service):
        return health.Check(health_pb2.HealthCheckRequest(service=service)).status

    assert check("") == check(SERVICE) == check("ranker") == status.SERVING
    assert refused(check, "nothing")[0] is Code.NOT_FOUND
    watch = health.Watch(health_pb2.HealthCheckRequest(service=""), timeout=10)
    assert next(watch).status == status.SERVING
    front_ends.host.ready = False
    assert next(watch).status == status.NOT_SERVING
    watch.cancel()
    assert check("") == status.NOT_SERVING
    unknown = health.Watch(health_pb2.HealthCheckRequest(service="nothing"), timeout=10)
    assert next(unknown).status == status.SERVICE_UNKNOWN
    unknown.cancel()
    del front_ends.host.models["lone"]
    assert check("lone") == status.NOT_SERVING
