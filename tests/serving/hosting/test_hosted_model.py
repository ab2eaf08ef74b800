"""A version in memory by a driver of the test's own: what the front ends are told of it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import structlog

from hebe.machine.pinning import PlacedLane, PlacedServer
from hebe.query import KeyCounts, Query, QueryResult
from hebe.scheduling.node.node import NodeConfig
from hebe.server_configuration import Lane, Placement
from hebe.serving.hosting.hosted_model import HostedModel
from hebe.serving.hosting.profile_in_use import ProfileInUse
from tests.serving.conftest import RANKER
from tests.serving.profiled import PIPELINE, served
from tests.serving.tier_states import KINDS, tiers_state

WHOLE = Lane(Placement.MODEL_ON_HOST, 2, 1, 16)


class Model:
    """A loaded model whose tiers are as the test says."""

    spec, version, identity = RANKER, 3, "ab12"

    def __init__(self, log):
        self.hierarchy = SimpleNamespace(tiers=None)
        self.tiers_state = None
        self.can_answer = True
        self.close = lambda: log.append("model closed")

    def random_query(self, items):
        return Query(0, items, 0.0, features={"user": np.zeros((items, 1), np.int64)})


class Driver:
    """Of two workers; `log` says in which order things were asked of it."""

    config = NodeConfig(16, fuse=False, max_wait_s=0.005, sla_s=0.05, percentile=95.0)

    def __init__(self):
        self.log = []
        self.model = Model(self.log)
        self.lanes = (PlacedLane(WHOLE, ((0,), (1,))),)
        self.workers = self.configured_workers = 2
        self.fails, self.failing_s = False, None
        self.idle = True
        self.last_id = 6
        self.keys = KeyCounts()

    @property
    def healthy(self):
        return self.workers == self.configured_workers and not self.fails

    async def infer(self, query):
        return QueryResult(query.query_id, np.zeros((1, 1), np.float32), 0.01, 0.0, 0.0, 0.0, self.keys)

    def new_query_id(self):
        self.last_id += 1
        return self.last_id

    def reconfigure(self, lanes, *, threads, gives_way):
        self.log.append((lanes, threads, gives_way))
        self.lanes = lanes

    def close(self):
        self.log.append("driver closed")


@pytest.fixture
def driver():
    return Driver()


def hosted(driver, **options):
    return HostedModel(driver, 64, **{"tier_kinds": {}, **options})


def test_a_model_that_runs_is_ready_and_in_no_trouble(driver):
    model = hosted(driver)
    assert (model.ready, model.runs, model.trouble, model.trouble_s) == (True, True, "", None)
    assert (model.tiered, model.tells_of_keys, model.tiers, model.degraded) == (False, False, None, ())
    assert (model.version, model.identity, model.sla_s) == (3, "ab12", 0.05)
    assert model.idle
    driver.idle = False
    assert not model.idle


def test_the_trouble_named_is_what_keeps_it_from_answering(driver):
    model = hosted(driver, tier_kinds=KINDS)
    driver.model.hierarchy.tiers = object()
    driver.model.tiers_state = tiers_state(redis=False)
    assert model.tiered
    assert model.tells_of_keys
    assert (model.ready, model.trouble, model.degraded) == (True, "", ("volatile_db",)), "the other tier has the rows"
    driver.model.tiers_state = tiers_state(redis=False, rocksdb=False)
    driver.model.can_answer = False
    assert not model.ready
    assert model.trouble == "no tier has its rows: volatile_db and persistent_db cannot be asked"
    assert model.trouble_s == 60.0, "since the last of them is left alone"
    assert model.runs, "which is no fault of its workers"
    driver.fails, driver.failing_s = True, 3.0
    assert model.trouble_s == 3.0
    assert (model.runs, model.fails, model.trouble) == (False, True, "its last batches all failed")
    driver.workers = 1
    assert (model.trouble, model.trouble_s) == ("1 of its workers have ended", None)


def test_a_profile_is_its_own_only_while_it_is_split_as_that_says(driver):
    profile = ProfileInUse(served())
    model = hosted(driver, profile=profile)
    assert model.profile is None
    lanes = tuple(PlacedLane(lane, ((0,),)) for lane in PIPELINE)
    model.split_anew(PlacedServer(lanes, threads=2, gives_way=False))
    assert driver.log == [(lanes, 2, False)]
    assert (model.configuration, model.lanes) == (PIPELINE, lanes)
    assert model.profile is profile
    driver.lanes = (PlacedLane(WHOLE, ((0,), (1,))),)
    assert model.profile is None


def test_the_batch_size_is_that_of_the_workers_that_take_queries(driver):
    accelerator = Lane(Placement.SPARSE_ON_HOST, 1, 1, 256, 1)
    driver.lanes = (PlacedLane(accelerator, ((0,),)), PlacedLane(WHOLE, ((1,), (2,))))
    assert hosted(driver).batch_size == 256


def test_whether_queries_share_batches_is_said_by_the_server_or_by_an_accelerator_that_takes_them(driver):
    model = hosted(driver)
    assert (model.fuses, model.max_wait_s) == (False, 0.005)
    for fused_items in (0, 512):
        alone = Lane(Placement.HOT_SPARSE_ON_ACCELERATOR, 0, 1, 256, 1, fused_items)
        driver.lanes = (PlacedLane(alone, (), ((0,),)),)
        assert model.fuses is (fused_items > 0)


def test_a_query_to_warm_up_with_is_a_batch_and_has_an_id_that_no_other_has(driver):
    model = hosted(driver)
    first, second = model.warm_up_query(), model.warm_up_query()
    assert first.items == second.items == 16
    assert (first.query_id, second.query_id, model.new_query_id()) == (7, 8, 9)


def test_it_is_closed_when_its_workers_are(driver):
    hosted(driver).close()
    assert driver.log == ["driver closed", "model closed"]


async def test_a_model_whose_answers_are_mostly_default_vectors_is_not_ready_until_nobody_asks_any_more(driver):
    now_s = 100.0
    model = hosted(driver, clock=lambda: now_s)
    driver.keys = KeyCounts(100, 90, cut=90)

    async def ask(*, counted=True):
        await model.infer(Query(1, 1, now_s, counted=counted))

    for _ in range(30):
        await ask()
    assert model.ready, "it has no tiers: its keys are not late"
    driver.model.hierarchy.tiers = object()
    for _ in range(30):
        await ask(counted=False)
    assert (model.ready, model.defaulted_share) == (True, None), "its own queries say nothing of those of others"
    with structlog.testing.capture_logs() as logs:
        for _ in range(30):
            await ask()
        assert (model.ready, model.defaulted_share) == (False, 0.9)
        now_s += 4.0
        assert model.trouble.startswith("in the last 10 s 90% of the keys of its answers got default vectors")
        assert "--sla-ms" in model.trouble
        assert model.trouble_s == 4.0
        driver.keys = KeyCounts(100)
        now_s += 6.0
        assert (model.ready, model.trouble, model.trouble_s) == (True, "", None)
    assert [entry["log_level"] for entry in logs] == ["warning", "info"]
