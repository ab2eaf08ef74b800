"""Everything that tritonclient's four clients can ask of a server, answered as Triton would."""

from __future__ import annotations

import gzip
import inspect
import json
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import grpc as grpc_core
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

import hebe
from tests.integration.conftest import Served

from .served import TOLERANCE, Inputs, binary_body, draw, post, triton_inputs

MODULES = {
    "http": tritonclient.http,
    "http.aio": tritonclient.http.aio,
    "grpc": tritonclient.grpc,
    "grpc.aio": tritonclient.grpc.aio,
}


@dataclass
class Client:
    """One of the four, its answers as plain values: `await ask("get_model_config", "ranker")`."""

    module: ModuleType
    client: Any

    @property
    def over_grpc(self) -> bool:
        return "grpc" in self.module.__name__

    async def ask(self, method: str, *args: Any, **options: Any) -> Any:
        """Call `method`; gRPC's messages as JSON, which the protocol makes alike."""
        if self.over_grpc and method.startswith(("get_", "update_")):
            options["as_json"] = True
        answer = getattr(self.client, method)(*args, **options)
        return await answer if inspect.isawaitable(answer) else answer

    async def infer(self, model: str, inputs: Inputs, **options: Any) -> Any:
        return await self.ask("infer", model, triton_inputs(self.module, inputs), **options)

    async def error(self, method: str, *args: Any, **options: Any) -> tuple[str, str]:
        """(status, message) of a call that must fail."""
        with pytest.raises(InferenceServerException) as caught:
            await self.ask(method, *args, **options)
        return str(caught.value.status()).removeprefix("StatusCode."), caught.value.message()


@pytest.fixture(params=list(MODULES))
async def client(request: pytest.FixtureRequest, served: Served) -> AsyncIterator[Client]:
    module = MODULES[request.param]
    made = Client(module, module.InferenceServerClient(served.grpc if "grpc" in request.param else served.http))
    yield made
    await made.ask("close")


def status_of(client: Client, http: int, grpc: str) -> str:
    return grpc if client.over_grpc else str(http)


async def test_health(client: Client):
    assert await client.ask("is_server_live") is True
    assert await client.ask("is_server_ready") is True
    assert await client.ask("is_model_ready", "ranker") is True
    assert await client.ask("is_model_ready", "ranker", "1") is True


async def test_unknown_models_are_not_ready(client: Client):
    assert await client.ask("is_model_ready", "nobody") is False
    assert await client.ask("is_model_ready", "ranker", "9") is False


async def test_metadata(client: Client, served: Served):
    server = await client.ask("get_server_metadata")
    assert server["name"] == "hebe"
    assert server["version"] == hebe.__version__
    assert {"binary_tensor_data", "model_repository", "statistics"} <= set(server["extensions"])
    for version in ("", "1"):
        model = await client.ask("get_model_metadata", "ranker", version)
        assert (model["name"], model["versions"], model["platform"]) == ("ranker", ["1"], "hebe")
        inputs = {
            entry["name"]: (entry["datatype"], [int(size) for size in entry["shape"]]) for entry in model["inputs"]
        }
        assert inputs == {
            "user": ("INT64", [-1, 1]),
            "history": ("INT64", [-1, 5]),
            "ad": ("INT64", [-1, 2]),
            "dense": ("FP32", [-1, 4]),
        }
        assert [(entry["name"], entry["datatype"]) for entry in model["outputs"]] == [("score", "FP32")]
    assert (
        len((await client.ask("get_model_metadata", "dlrm-rmc1"))["inputs"])
        == len(served.spec("dlrm-rmc1").features) + 1
    )


async def test_config(client: Client):
    config = await client.ask("get_model_config", "ranker")
    config = config["config"] if client.over_grpc else config
    assert config["name"] == "ranker"
    assert config["max_batch_size"] == 1500
    assert {entry["name"]: [int(size) for size in entry["dims"]] for entry in config["input"]} == {
        "user": [1],
        "history": [5],
        "ad": [2],
        "dense": [4],
    }
    assert {entry["data_type"] for entry in config["output"]} == {"TYPE_FP32"}
    assert config["parameters"]["rows.history"]["string_value"] == "500"


async def test_statistics_count_what_was_asked(client: Client, rng, served: Served):
    async def statistics(*args: str) -> dict[str, Any]:
        (model,) = (await client.ask("get_inference_statistics", *args))["model_stats"]
        return model

    before = await statistics("ranker", "1")
    for items in (1, 200):  # one is never spread
        await client.infer("ranker", draw(served.spec("ranker"), items, rng))
    with pytest.raises(InferenceServerException):
        await client.infer("ranker", draw(served.spec("one-input"), 1, rng))
    after = await statistics("ranker")
    assert int(after["inference_count"]) - int(before.get("inference_count", 0)) == 201
    assert int(after["execution_count"]) - int(before.get("execution_count", 0)) == 3  # 200 items are two batches
    for kind, count in (("success", 2), ("fail", 1), ("queue", 2), ("compute_infer", 2), ("compute_output", 2)):
        counted = [int(found["inference_stats"][kind].get("count", 0)) for found in (before, after)]
        assert counted[1] - counted[0] == count, kind
    everything = (await client.ask("get_inference_statistics"))["model_stats"]
    assert {model["name"] for model in everything} == set(served.references)


async def test_repository_index_load_and_unload(client: Client, served: Served, rng):
    async def index() -> dict[str, Any]:
        answer = await client.ask("get_model_repository_index")
        return {model["name"]: model for model in (answer["models"] if client.over_grpc else answer)}

    assert {name: model["state"] for name, model in (await index()).items()} == dict.fromkeys(
        served.references, "READY"
    )
    assert (await index())["din"]["version"] == "1"
    inputs = draw(served.spec("one-input"), 5, rng)
    await client.ask("unload_model", "one-input")
    try:
        gone = (await index())["one-input"]
        assert (gone["state"], gone["reason"]) == ("UNAVAILABLE", "unloaded")
        status, message = await client.error("infer", "one-input", triton_inputs(client.module, inputs))
        assert status == status_of(client, 503, "UNAVAILABLE")
        assert message == "model one-input is unavailable: unloaded"
        assert await client.ask("is_server_ready") is True, "what was unloaded on purpose is not missing"
    finally:
        await client.ask("load_model", "one-input")
    assert (await index())["one-input"]["state"] == "READY"
    scores = (await client.infer("one-input", inputs)).as_numpy("score")
    np.testing.assert_allclose(scores, served.references["one-input"].scores(inputs), rtol=0, atol=TOLERANCE)


async def test_a_new_split_outlives_every_later_load_until_the_model_is_unloaded(client: Client, served: Served):
    async def split() -> tuple[int, int]:
        with urllib.request.urlopen(f"{served.process.http_url}/v2/status", timeout=60) as answer:
            (model,) = (each for each in json.load(answer)["models"] if each["name"] == "one-input")
        return model["workers"], model["batch_size"]

    asked = {
        "placement": "model-on-host", "workers": 1, "cores_per_worker": 1, "batch_size": 96,
        "dense_workers": 0, "fused_items": 0,
    }  # fmt: skip
    before = await split()
    try:
        await client.ask("load_model", "one-input", config=json.dumps(asked))
        for _ in range(3):
            assert await split() == (1, 96) != before
            await client.ask("load_model", "one-input")
    finally:
        await client.ask("unload_model", "one-input")
        await client.ask("load_model", "one-input")
    assert await split() == before


async def test_loading_and_unloading_what_is_not_there(client: Client):
    status, message = await client.error("load_model", "nobody")
    assert status == status_of(client, 404, "NOT_FOUND")
    assert "has no model 'nobody'" in message
    status, message = await client.error("unload_model", "nobody")
    assert status == status_of(client, 404, "NOT_FOUND")
    assert "'nobody' is not loaded" in message


async def test_ids_are_echoed_and_versions_told(client: Client, served: Served, rng):
    inputs = draw(served.spec("ranker"), 4, rng)
    for request_id, version in (("", ""), ("query-17", "1"), ('"ünïcode"\n', "")):
        result = await client.infer("ranker", inputs, request_id=request_id, model_version=version)
        answer = result.get_response(as_json=True) if client.over_grpc else result.get_response()
        assert answer.get("id", "") == request_id
        assert (answer["model_name"], answer["model_version"]) == ("ranker", "1")
        assert result.as_numpy("score").shape == (4, 1)


async def test_requested_outputs(client: Client, served: Served, rng):
    inputs = draw(served.spec("one-input"), 6, rng)
    wanted = served.references["one-input"].scores(inputs)
    forms = [{}] if client.over_grpc else [{"binary_data": True}, {"binary_data": False}]
    for form in forms:
        outputs = [client.module.InferRequestedOutput("score", **form)]
        result = await client.infer("one-input", inputs, outputs=outputs)
        np.testing.assert_allclose(result.as_numpy("score"), wanted, rtol=0, atol=TOLERANCE)
        answer = result.get_response(as_json=True) if client.over_grpc else result.get_response()
        assert [[int(size) for size in output["shape"]] for output in answer["outputs"]] == [[6, 2]]
        if form == {"binary_data": False}:
            assert len(answer["outputs"][0]["data"]) == 12
    outputs = [client.module.InferRequestedOutput("click")]
    status, message = await client.error("infer", "one-input", triton_inputs(client.module, inputs), outputs=outputs)
    assert status == status_of(client, 400, "INVALID_ARGUMENT")
    assert message == "output 'click' is unknown; the only output is 'score'"


@pytest.mark.parametrize("client", ["http", "http.aio"], indirect=True)
async def test_json_tensors_in_and_out_give_the_same_float32s(client: Client, served: Served, rng):
    inputs = draw(served.spec("ranker"), 200, rng)
    binary = (await client.infer("ranker", inputs)).as_numpy("score")
    outputs = [client.module.InferRequestedOutput("score", binary_data=False)]
    as_json = triton_inputs(client.module, inputs, binary_data=False)
    result = await client.ask("infer", "ranker", as_json, outputs=outputs)
    np.testing.assert_array_equal(result.as_numpy("score"), binary)
    document = await client.ask("get_model_config", "dlrm-rmc1")
    assert len(json.dumps(document)) > 1024, "http.aio asks for gzip, and could not read it here"


@pytest.mark.parametrize("client", ["http"], indirect=True)  # http.aio fails to import gzip
async def test_compressed_requests(client: Client, served: Served, rng):
    inputs = draw(served.spec("ranker"), 300, rng)
    wanted = served.references["ranker"].scores(inputs)
    for coding in ("gzip", "deflate"):
        for binary in (True, False):
            tensors = triton_inputs(client.module, inputs, binary_data=binary)
            result = await client.ask("infer", "ranker", tensors, request_compression_algorithm=coding)
            np.testing.assert_allclose(result.as_numpy("score"), wanted, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("client", ["http", "http.aio"], indirect=True)
async def test_compressed_answers(client: Client, served: Served, rng):
    inputs = draw(served.spec("ranker"), 300, rng)
    wanted = served.references["ranker"].scores(inputs)
    for coding in ("gzip", "deflate"):
        outputs = [client.module.InferRequestedOutput("score", binary_data=False)]
        result = await client.infer("ranker", inputs, outputs=outputs, response_compression_algorithm=coding)
        np.testing.assert_allclose(result.as_numpy("score"), wanted, rtol=0, atol=TOLERANCE)


def test_gzip_is_used_where_it_is_asked_for(served: Served, rng):
    inputs = draw(served.spec("ranker"), 300, rng)
    body, header_length = binary_body(inputs)
    headers = {
        "Content-Encoding": "gzip",
        "Accept-Encoding": "gzip",
        "Inference-Header-Content-Length": str(header_length),
    }
    status, answered, packed = post(served.http, "/v2/models/ranker/infer", gzip.compress(body), headers)
    assert (status, answered["content-encoding"]) == (200, "gzip")
    scores = json.loads(gzip.decompress(packed))["outputs"][0]["data"]
    np.testing.assert_allclose(
        np.reshape(scores, (300, 1)), served.references["ranker"].scores(inputs), rtol=0, atol=TOLERANCE
    )


@pytest.mark.parametrize("client", ["grpc", "grpc.aio"], indirect=True)
async def test_grpc_compression(client: Client, served: Served, rng):
    inputs = draw(served.spec("ranker"), 300, rng)
    result = await client.infer("ranker", inputs, compression_algorithm="gzip")
    np.testing.assert_allclose(
        result.as_numpy("score"), served.references["ranker"].scores(inputs), rtol=0, atol=TOLERANCE
    )


async def test_a_timeout_that_cannot_be_met(client: Client, served: Served, rng):
    inputs = triton_inputs(client.module, draw(served.spec("ranker"), 4, rng))
    status, message = await client.error("infer", "ranker", inputs, timeout=1)
    assert status == status_of(client, 408, "DEADLINE_EXCEEDED")
    assert "deadline" in message
    result = await client.ask("infer", "ranker", inputs, timeout=600_000_000, priority=3)
    assert result.as_numpy("score").shape == (4, 1)


async def test_parameters_of_the_wrong_kind(client: Client, served: Served, rng):
    inputs = triton_inputs(client.module, draw(served.spec("ranker"), 4, rng))
    status, message = await client.error("infer", "ranker", inputs, sequence_id=7, sequence_start=True)
    assert status == status_of(client, 400, "INVALID_ARGUMENT")
    assert "keep no state" in message
    result = await client.ask("infer", "ranker", inputs, parameters={"experiment": "b"})
    assert result.as_numpy("score").shape == (4, 1), "parameters that are not ours are let pass"


async def test_errors_name_what_is_wrong(client: Client, served: Served, rng):
    spec = served.spec("ranker")
    good = draw(spec, 4, rng).arrays
    invalid = status_of(client, 400, "INVALID_ARGUMENT")
    wrong: list[tuple[dict[str, np.ndarray], str]] = [
        (good | {"user": good["user"] + 10**6}, "input 'user': key "),
        (good | {"user": good["user"].astype(np.int32)}, "input 'user': datatype is INT32; it must be INT64"),
        (good | {"ad": good["history"]}, "input 'ad': shape is [4, 5]; it must be [items, 2]"),
        (good | {"dense": good["dense"][:2]}, "input 'dense': has 2 item(s); input 'user' has 4"),
        ({name: array for name, array in good.items() if name != "dense"}, "input(s) missing: dense"),
        (good | {"colour": good["user"]}, "input 'colour' is unknown to model ranker; its inputs are user, history"),
    ]
    for arrays, message in wrong:
        got = await client.error("infer", "ranker", triton_inputs(client.module, Inputs(4, arrays)))
        assert got[0] == invalid
        assert message in got[1]
    missing = status_of(client, 404, "NOT_FOUND")
    inputs = triton_inputs(client.module, Inputs(4, good))
    status, message = await client.error("infer", "nobody", inputs)
    assert (status, "model 'nobody' is not loaded" in message) == (missing, True)
    status, message = await client.error("infer", "ranker", inputs, model_version="7")
    assert (status, "no version '7'" in message) == (missing, True)
    status, _ = await client.error("get_model_metadata", "nobody")
    assert status == missing
    status, _ = await client.error("get_model_config", "nobody")
    assert status == missing
    assert (await client.ask("infer", "ranker", inputs)).as_numpy("score").shape == (4, 1)


async def test_settings_and_shared_memory_are_read_only(client: Client):
    assert await client.ask("get_trace_settings")
    assert await client.ask("get_log_settings")
    regions = await client.ask("get_system_shared_memory_status")
    assert regions in ([], {})
    status, message = await client.error("register_system_shared_memory", "region", "/region", 64)
    assert status == status_of(client, 501, "UNIMPLEMENTED")
    assert "shared memory is not supported" in message


def test_raw_body_of_a_model_with_one_input(served: Served, rng):
    """Header length 0: no JSON at all."""
    inputs = draw(served.spec("one-input"), 9, rng)
    headers = {"Inference-Header-Content-Length": "0"}
    body = inputs.arrays["thing"].tobytes()
    status, answered, content = post(served.http, "/v2/models/one-input/infer", body, headers)
    assert status == 200
    length = int(answered["inference-header-content-length"])
    assert json.loads(content[:length])["outputs"][0]["shape"] == [9, 2]
    np.testing.assert_allclose(
        np.frombuffer(content[length:], "<f4").reshape(9, 2),
        served.references["one-input"].scores(inputs),
        rtol=0,
        atol=TOLERANCE,
    )


def test_typed_contents_over_grpc(served: Served, rng):
    """Keys in `int64_contents` and `int_contents`, dense in `fp32_contents`; scores come back typed as well."""
    inputs = draw(served.spec("ranker"), 7, rng, jagged=("history",))
    inputs.arrays["history.lengths"] = inputs.arrays["history.lengths"].astype(np.int32)
    request = service_pb2.ModelInferRequest(model_name="ranker", id="typed")
    for name, array in inputs.arrays.items():
        datatype, field = {
            "int64": ("INT64", "int64_contents"),
            "int32": ("INT32", "int_contents"),
            "float32": ("FP32", "fp32_contents"),
        }[array.dtype.name]
        tensor = request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        getattr(tensor.contents, field).extend(array.reshape(-1).tolist())
    with grpc_core.insecure_channel(served.grpc) as channel:
        answer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request)
    assert answer.id == "typed"
    assert not answer.raw_output_contents
    np.testing.assert_allclose(
        np.reshape(answer.outputs[0].contents.fp32_contents, (7, 1)),
        served.references["ranker"].scores(inputs),
        rtol=0,
        atol=TOLERANCE,
    )


def test_streams_answer_in_order_and_survive_an_error(served: Served, rng):
    """tritonclient's bidirectional stream."""
    asked = [draw(served.spec("ranker"), items, rng) for items in (1, 300, 2, 40)]
    bad = draw(served.spec("one-input"), 1, rng)
    answers: list[tuple[Any, Any]] = []
    with tritonclient.grpc.InferenceServerClient(served.grpc) as client:
        client.start_stream(callback=lambda result, error: answers.append((result, error)))
        for number, inputs in enumerate([*asked[:2], bad, *asked[2:]]):
            client.async_stream_infer("ranker", triton_inputs(tritonclient.grpc, inputs), request_id=str(number))
        client.stop_stream()
    assert [error is not None for _, error in answers] == [False, False, True, False, False]
    assert "'thing' is unknown" in answers[2][1].message()
    for inputs, (result, _) in zip(asked, [*answers[:2], *answers[3:]], strict=True):
        np.testing.assert_allclose(
            result.as_numpy("score"), served.references["ranker"].scores(inputs), rtol=0, atol=TOLERANCE
        )


def test_grpc_health_service(served: Served):
    with grpc_core.insecure_channel(served.grpc) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "inference.GRPCInferenceService", "ranker"):
            answer = health.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        watch = health.Watch(health_pb2.HealthCheckRequest(service="nobody"))
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        watch.cancel()
