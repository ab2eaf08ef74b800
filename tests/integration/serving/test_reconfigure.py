"""A server that is split in all ways, one after the other, while queries come: none is lost, and none is wrong."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from hebe.load_generator.discovery import get_json
from hebe.load_generator.target import Target, parse_endpoint
from hebe.machine.pinning import PlacedLane, available_cores, place_lanes
from hebe.runtime.accelerator import Accelerator
from hebe.runtime.loaded_model import LoadedModel
from hebe.scheduling.node.node import NodeConfig
from hebe.server_configuration import Lane, Placement, to_dict
from hebe.serving.engine.driver import NodeDriver, clock
from hebe.serving.requests.errors import QueryRefused
from hebe.workload.key_frequencies import key_frequencies
from hebe.workload.key_skew import ReuseKeys

from .served import (
    PATIENCE_S,
    TOLERANCE,
    HebeServe,
    Reference,
    draw,
    eventually,
    hebe_serve,
    small_dlrm,
    store,
    triton_inputs,
)

WAYS = [
    (Lane(Placement.PIPELINE_ON_HOST, 1, 1, 32, 1),),
    (Lane(Placement.MODEL_ON_HOST, 1, 2, 64),),
    (Lane(Placement.SPARSE_ON_HOST, 1, 1, 16, 1, 128),),
    (Lane(Placement.HOT_SPARSE_ON_ACCELERATOR, 1, 1, 32, 1, 64),),
    (Lane(Placement.HOT_SPARSE_ON_ACCELERATOR, 0, 1, 16, 2),),
    (Lane(Placement.PIPELINE_ON_HOST, 1, 1, 8, 1), Lane(Placement.MODEL_ON_HOST, 1, 1, 64)),
    (Lane(Placement.MODEL_ON_HOST, 2, 1, 64),),
]
CLIENTS = 6
QUERIES_EACH = 40
"""At least, in each configuration."""


def placed(configuration) -> tuple[PlacedLane, ...]:
    """On the cores that there are, some twice if they are too few."""
    cores = available_cores()
    return place_lanes(configuration, cores * -(-sum(lane.cores for lane in configuration) // len(cores)))


@pytest.fixture
def model(tmp_path):
    store(tmp_path / "models", small_dlrm("ranker"))
    loaded = LoadedModel.load(tmp_path / "models", "ranker")
    yield loaded
    loaded.close()


@pytest.fixture
def driver(model):
    accelerator = Accelerator(model.spec.table_bytes // 3, lambda: key_frequencies(model.spec, ReuseKeys()))
    config = NodeConfig(64, sla_s=60.0)
    driver = NodeDriver(model, config, placed(WAYS[-1]), max_items=300, accelerator=accelerator)
    yield driver
    driver.close()


async def test_no_query_is_lost_or_wrong_while_a_server_is_split_anew(model, driver):
    sizes = np.random.default_rng(0).integers(1, 300, 40)
    queries = [model.random_query(int(items), seed) for seed, items in enumerate(sizes)]
    expected = [model.predict(query.features, query.dense) for query in queries]
    answered, over = 0, asyncio.Event()

    async def client(first: int) -> None:
        nonlocal answered
        for number in itertools.count(first):
            if over.is_set():
                return
            query = queries[number % len(queries)]
            own = replace(query, query_id=driver.new_query_id(), arrival_s=clock())
            result = await driver.infer(own)
            np.testing.assert_allclose(result.scores, expected[number % len(queries)], atol=1e-5)
            assert result.keys.total == query.items * model.spec.lookups_per_item
            answered += 1

    clients = [asyncio.ensure_future(client(first)) for first in range(CLIENTS)]
    for way in WAYS:
        await asyncio.to_thread(driver.reconfigure, placed(way))
        assert driver.healthy
        assert driver.workers == driver.configured_workers == sum(lane.workers + lane.dense_workers for lane in way)
        assert [each.lane for each in driver.lanes] == list(way)
        enough = answered + QUERIES_EACH
        while answered < enough:
            done = [each for each in clients if each.done()]
            assert not done, done[0].exception()
            await asyncio.sleep(0.005)
    over.set()
    await asyncio.gather(*clients)


async def test_a_worker_whose_batch_was_told_of_out_of_turn_is_given_its_next_one(model, driver):
    """The event loop hears of batches while another thread has its turn, and comes to them itself in a later call."""
    query = model.random_query(300)

    def asked() -> asyncio.Future:
        return asyncio.ensure_future(driver.infer(replace(query, query_id=driver.new_query_id(), arrival_s=clock())))

    answers = [asked() for _ in range(4)]
    await asyncio.sleep(0)  # both workers have a batch, and more wait
    turns, give_up_s = driver._turns, clock() + PATIENCE_S
    with turns._turn:
        while len(turns._told) < 2:
            assert clock() < give_up_s
            time.sleep(0.001)
            driver._reports.hear()
    answers.append(asked())
    scores = [result.scores for result in await asyncio.wait_for(asyncio.gather(*answers), PATIENCE_S)]
    np.testing.assert_allclose(scores, [model.predict(query.features, query.dense)] * 5, atol=1e-5)
    assert driver.idle


async def test_a_split_that_fails_leaves_the_server_as_it_was(model, driver, monkeypatch, threads_begun):
    query = model.random_query(20)
    before = threads_begun()

    def fail(*_, **__):
        raise ValueError("no scores")

    monkeypatch.setattr(model, "warm_up", fail)
    with pytest.raises(ValueError, match="no scores"):
        driver.reconfigure(placed(WAYS[0]))
    assert threads_begun() == before
    assert [each.lane for each in driver.lanes] == list(WAYS[-1])
    result = await driver.infer(replace(query, query_id=driver.new_query_id(), arrival_s=clock()))
    np.testing.assert_allclose(result.scores, model.predict(query.features, query.dense), atol=1e-5)


async def test_without_any_lane_queries_are_refused_until_there_is_one_again(model, driver):
    query = model.random_query(20)
    driver.reconfigure(())
    with pytest.raises(QueryRefused, match="no worker is up"):
        await driver.infer(replace(query, query_id=driver.new_query_id(), arrival_s=clock()))
    driver.reconfigure(placed(WAYS[1]))
    result = await driver.infer(replace(query, query_id=driver.new_query_id(), arrival_s=clock()))
    assert result.latency_s > 0


def test_an_operator_splits_a_server_anew_by_triton_s_own_request(tmp_path):
    """Over both protocols, while clients ask; what cannot be is refused in words, and changes nothing."""
    spec = small_dlrm("ranker")
    store(tmp_path / "models", spec)
    inputs = draw(spec, 40, np.random.default_rng(3))
    expected = Reference(tmp_path / "models", "ranker").scores(inputs)
    over, answered, wrong = threading.Event(), [], []

    def ask() -> None:
        with tritonclient.http.InferenceServerClient(server.http) as client:
            while not over.is_set():
                scores = client.infer("ranker", triton_inputs(tritonclient.http, inputs)).as_numpy("score")
                answered.append(1)
                if not np.allclose(scores, expected, atol=TOLERANCE):
                    wrong.append(scores)

    ways = [way for way in WAYS if sum(lane.cores for lane in way) <= len(available_cores()) and not has_hot_rows(way)]
    assert any(lane.placement.on_accelerator for way in ways for lane in way)
    with hebe_serve(tmp_path / "models", tmp_path / "log") as server, ThreadPoolExecutor(2) as clients:
        server.wait_until_ready()
        asking = [clients.submit(ask) for _ in range(2)]
        try:
            for number, way in enumerate(ways):
                module, where = ((tritonclient.http, server.http), (tritonclient.grpc, server.grpc))[number % 2]
                with module.InferenceServerClient(where) as operator:
                    operator.load_model("ranker", config=json.dumps(to_dict(way)))
                assert configuration_of(server) == to_dict(way)
                enough = len(answered) + 20
                eventually(lambda enough=enough: len(answered) >= enough or ended(asking), "answers")
                assert not ended(asking), ended(asking)[0].result()
            with tritonclient.http.InferenceServerClient(server.http) as operator:
                for lane, message in (
                    (Lane(Placement.MODEL_ON_HOST, 1000, 1, 64), "takes 1000 cores.*it runs as before"),
                    (Lane(Placement.HOT_SPARSE_ON_ACCELERATOR, 0, 1, 64, 1), "not known which rows are hot.*as before"),
                    (Lane(Placement.MODEL_ON_HOST, 1, 1, 1_000_000), "at most 8192"),
                ):
                    with pytest.raises(InferenceServerException, match=message):
                        operator.load_model("ranker", config=json.dumps(to_dict((lane,))))
                with pytest.raises(InferenceServerException, match="unknown setting 'speed'"):
                    operator.load_model("ranker", config=json.dumps({"speed": 11}))
            assert configuration_of(server) == to_dict(ways[-1])
            store(tmp_path / "models", spec)
            with tritonclient.http.InferenceServerClient(server.http) as operator:
                operator.load_model("ranker")
                assert operator.get_model_metadata("ranker")["versions"] == ["2"]
            assert configuration_of(server) == to_dict(ways[-1]), "a new version is run as the one before was"
        finally:
            over.set()
        for each in asking:
            each.result()
    assert not wrong


def ended(clients: list[Future[None]]) -> list[Future[None]]:
    return [client for client in clients if client.done()]


def has_hot_rows(way) -> bool:
    return any(lane.placement is Placement.HOT_SPARSE_ON_ACCELERATOR for lane in way)


def configuration_of(server: HebeServe) -> dict:
    code, document = get_json(Target(parse_endpoint(server.http, "http"), ""), "/v2/status", "")
    assert code == 200
    return document["models"][0]["configuration"]
