"""Triton's own clients, unmodified, over both protocols."""

from __future__ import annotations

import asyncio
import json
import queue

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.utils import InferenceServerException

from hebe.serving.http1.messages import HttpLimits

# Closes a second time, on whichever thread collects garbage, which gevent does not survive.
del tritonclient.http.InferenceServerClient.__del__

ITEMS = 6
KEYS = np.random.default_rng(0)
USER = KEYS.integers(0, 1000, (ITEMS, 1))
HISTORY = KEYS.integers(0, 50, (ITEMS, 3))
DENSE = KEYS.random((ITEMS, 2), dtype=np.float32)
SYNCHRONOUS = pytest.mark.parametrize("package", [tritonclient.http, tritonclient.grpc])
ASYNCHRONOUS = pytest.mark.parametrize("package", [tritonclient.http.aio, tritonclient.grpc.aio])


def is_http(package):
    return "http" in package.__name__


def url_of(front_ends, package):
    return front_ends.http_url if is_http(package) else front_ends.grpc_url


def inputs(package, binary=True, times=1):
    tensors = []
    for name, once in (("user", USER), ("history", HISTORY), ("dense", DENSE)):
        array = np.tile(once, (times, 1))
        tensor = package.InferInput(name, list(array.shape), "FP32" if array.dtype == np.float32 else "INT64")
        tensor.set_data_from_numpy(array, **({"binary_data": binary} if is_http(package) else {}))
        tensors.append(tensor)
    return tensors


def expected(front_ends, scores_of, times=1):
    model = front_ends.host.models["ranker"]
    query = model.queries[-1]
    np.testing.assert_array_equal(query.features["user"], np.tile(USER, (times, 1)))
    np.testing.assert_array_equal(query.features["history"], np.tile(HISTORY, (times, 1)))
    np.testing.assert_array_equal(query.dense, np.tile(DENSE, (times, 1)))
    return scores_of(model.spec, query)


@pytest.fixture
def client(front_ends, package):
    with package.InferenceServerClient(url_of(front_ends, package)) as client:
        yield client


@SYNCHRONOUS
def test_everything_that_a_client_can_ask(client, front_ends, package):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("ranker", "1")
    options = {} if is_http(package) else {"as_json": True}
    assert client.get_server_metadata(**options)["name"] == "hebe"
    assert [i["name"] for i in client.get_model_metadata("ranker", **options)["inputs"]] == ["user", "history", "dense"]
    config = client.get_model_config("ranker", **options)
    assert (config if is_http(package) else config["config"])["max_batch_size"] == 64
    client.unload_model("lone")
    assert not client.is_model_ready("lone")
    client.load_model("lone")
    assert client.is_model_ready("lone")
    index = client.get_model_repository_index(**options)
    assert [m["name"] for m in (index if is_http(package) else index["models"])] == ["lone", "ranker"]
    assert not client.get_system_shared_memory_status(**options)
    assert not client.get_cuda_shared_memory_status(**options)
    client.unregister_system_shared_memory()
    client.unregister_cuda_shared_memory("r")
    assert client.get_trace_settings(**options)
    assert client.get_log_settings(**options)
    with pytest.raises(InferenceServerException, match="shared memory is not supported"):
        client.register_system_shared_memory("r", "/r", 64)
    front_ends.host.ready = False
    assert not client.is_server_ready()


@SYNCHRONOUS
def test_inference(client, front_ends, package, scores_of):
    result = client.infer("ranker", inputs(package), request_id="q1", priority=2, timeout=5_000_000)
    np.testing.assert_array_equal(result.as_numpy("score"), expected(front_ends, scores_of))
    response = result.get_response()
    assert (response["id"] if is_http(package) else response.id) == "q1"
    query = front_ends.host.models["ranker"].queries[-1]
    assert query.priority == 2
    assert query.deadline_s - query.arrival_s == pytest.approx(5.0)
    outputs = [package.InferRequestedOutput("score")]
    assert client.infer("ranker", inputs(package), outputs=outputs).as_numpy("score").shape == (ITEMS, 1)


@SYNCHRONOUS
def test_errors_reach_the_client(client, package):
    with pytest.raises(InferenceServerException, match="not loaded"):
        client.infer("nothing", inputs(package))
    with pytest.raises(InferenceServerException, match="missing: history, dense"):
        client.infer("ranker", inputs(package)[:1])


@SYNCHRONOUS
def test_statistics(client, package):
    client.infer("ranker", inputs(package))
    options = {} if is_http(package) else {"as_json": True}
    statistics = client.get_inference_statistics("ranker", **options)["model_stats"][0]
    assert int(statistics["inference_count"]) == ITEMS
    assert len(client.get_inference_statistics(**options)["model_stats"]) == 2


@SYNCHRONOUS
def test_many_at_once(client, package):
    if is_http(package):
        answers = [client.async_infer("ranker", inputs(package), request_id=str(n)) for n in range(20)]
        ids = [answer.get_result().get_response()["id"] for answer in answers]
    else:
        done = queue.Queue()
        for number in range(20):
            client.async_infer(
                "ranker", inputs(package), lambda result, error: done.put((result, error)), request_id=str(number)
            )
        results = [done.get(timeout=10) for _ in range(20)]
        assert not any(error for _, error in results)
        ids = [result.get_response().id for result, _ in results]
    assert sorted(ids, key=int) == [str(n) for n in range(20)]


@SYNCHRONOUS
@pytest.mark.parametrize("jagged", [False, True])
def test_the_largest_query_that_the_configuration_tells_is_taken(serve_with, package, jagged):
    front_ends = serve_with(limits=HttpLimits(max_request_bytes=8000))
    with package.InferenceServerClient(url_of(front_ends, package)) as client:
        options = {} if is_http(package) else {"as_json": True}
        config = client.get_model_config("ranker", **options)
        items = (config if is_http(package) else config["config"])["max_batch_size"]
        arrays = {"dense": np.zeros((items, 2), np.float32)}
        for name, lookups in (("user", 1), ("history", 3)):
            if jagged:
                arrays[f"{name}.values"] = np.zeros(items * lookups, np.int64)
                arrays[f"{name}.lengths"] = np.full(items, lookups)
            else:
                arrays[name] = np.zeros((items, lookups), np.int64)
        tensors = [
            package.InferInput(name, list(array.shape), "FP32" if name == "dense" else "INT64").set_data_from_numpy(
                array
            )
            for name, array in arrays.items()
        ]
        assert client.infer("ranker", tensors, request_id="q" * 1000).as_numpy("score").shape == (items, 1)
    assert 30 < items < 64


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
@pytest.mark.parametrize("coding", [None, "gzip", "deflate"])
def test_every_form_of_http_body(front_ends, monkeypatch, scores_of, binary_in, binary_out, coding):
    package, times = tritonclient.http, 10
    monkeypatch.setattr("hebe.serving.http.routes.MIN_COMPRESS_BYTES", 256)
    with package.InferenceServerClient(front_ends.http_url) as client:
        answers, post = [], client._post
        monkeypatch.setattr(client, "_post", lambda **asked: answers.append(post(**asked)) or answers[-1])
        result = client.infer(
            "ranker",
            inputs(package, binary_in, times),
            outputs=[package.InferRequestedOutput("score", binary_data=binary_out)],
            request_compression_algorithm=coding,
            response_compression_algorithm=coding,
        )
        np.testing.assert_array_equal(result.as_numpy("score"), expected(front_ends, scores_of, times))
        assert [answer.get("content-encoding") for answer in answers] == [coding]


@pytest.mark.parametrize("asked", [None, "gzip", "deflate"])
async def test_asyncio_clients_take_raw_scores_in_any_coding(front_ends, monkeypatch, scores_of, asked):
    package, times = tritonclient.http.aio, 10
    monkeypatch.setattr("hebe.serving.http.routes.MIN_COMPRESS_BYTES", 256)
    async with package.InferenceServerClient(front_ends.http_url) as client:
        options = {"response_compression_algorithm": asked}
        result = await client.infer("ranker", inputs(package, times=times), **options)
        np.testing.assert_array_equal(result.as_numpy("score"), expected(front_ends, scores_of, times))


def test_a_grpc_stream(front_ends):
    package = tritonclient.grpc
    results = queue.Queue()
    with package.InferenceServerClient(front_ends.grpc_url) as client:
        client.start_stream(lambda result, error: results.put((result, error)))
        for number in range(10):
            client.async_stream_infer("ranker", inputs(package)[: 1 if number == 5 else 3], request_id=str(number))
        answers = [results.get(timeout=10) for _ in range(10)]
        client.stop_stream()
    assert "missing" in str(answers[5][1])
    assert [r.get_response().id for r, error in answers if error is None] == list("012346789")


@ASYNCHRONOUS
async def test_asyncio_clients(front_ends, package, scores_of):
    async with package.InferenceServerClient(url_of(front_ends, package)) as client:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("ranker")
        assert (await client.get_model_metadata("ranker")) is not None
        assert (await client.get_inference_statistics("ranker")) is not None
        results = await asyncio.gather(*(client.infer("ranker", inputs(package)) for _ in range(10)))
        for result in results:
            np.testing.assert_array_equal(result.as_numpy("score"), expected(front_ends, scores_of))
        with pytest.raises(InferenceServerException, match="not loaded"):
            await client.infer("nothing", inputs(package))


async def test_an_asyncio_grpc_stream(front_ends):
    package = tritonclient.grpc.aio

    async def requests():
        for number in range(5):
            yield {"model_name": "ranker", "inputs": inputs(package), "request_id": str(number)}

    ids = []
    async with package.InferenceServerClient(front_ends.grpc_url) as client:
        async for result, error in client.stream_infer(requests()):
            assert error is None
            ids.append(result.get_response().id)
    assert ids == list("01234")


def test_a_body_made_and_an_answer_read_without_a_connection(front_ends, scores_of):
    package = tritonclient.http.InferenceServerClient
    body, header_length = package.generate_request_body(inputs(tritonclient.http), request_id="x")
    assert json.loads(body[:header_length])["parameters"] == {"binary_data_output": True}
    with tritonclient.http.InferenceServerClient(front_ends.http_url) as client:
        headers = {"Inference-Header-Content-Length": str(header_length)}
        response = client._post("v2/models/ranker/infer", body, headers, None)
        length = int(response.get("Inference-Header-Content-Length"))
        result = package.parse_response_body(response.read(), header_length=length)
    np.testing.assert_array_equal(result.as_numpy("score"), expected(front_ends, scores_of))
