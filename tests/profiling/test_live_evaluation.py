"""A small model, measured for a moment: what is asked of it, in what form it is told. Not how fast it is."""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from hebe.embeddings.cache.cache_table import CacheTable
from hebe.embeddings.memory.table_memory import RowFormat
from hebe.load_generator.error import LoadError
from hebe.load_generator.queries.query_pool import QueryPool
from hebe.load_generator.search.qps_search import QpsSearch, Workload
from hebe.load_generator.search.rate_search import Phase
from hebe.machine import this_server
from hebe.machine.cgroups import ControlGroupLimits
from hebe.machine.meters.cache_allocation import CacheAllocationError
from hebe.machine.meters.memory_bandwidth import CacheWays
from hebe.machine.meters.processor import ProcessorUse
from hebe.machine.pinning import available_cores
from hebe.models.architectures.build import build_dense_net
from hebe.models.architectures.ranking_model import initial_rows
from hebe.models.catalog import entry
from hebe.models.repository.repository import ModelRepository
from hebe.planning.server_split.search import Reached
from hebe.profiling import live_evaluation
from hebe.profiling.error import MeasurementError, ProfilingError, StartFailed
from hebe.profiling.evaluator import Effort
from hebe.profiling.files.points import ScalabilityPoint
from hebe.profiling.live_evaluation import LiveEvaluator, live_evaluator
from hebe.runtime.executors.gil_free_executor import UnlockedExecutor
from hebe.runtime.loaded_model import LoadedModel, LoadOptions
from hebe.server_configuration import Lane, Placement
from hebe.serving.engine.driver import NodeDriver
from hebe.serving.requests.errors import QueryFailed
from hebe.spec import EmbeddingTableSpec, FeatureSpec, ModelSpec, Pooling, SlaTarget
from hebe.workload.arrivals import PoissonArrivals, TraceArrivals
from hebe.workload.key_skew import UniformKeys
from hebe.workload.query_sizes import FixedSizes
from hebe.workload.rate_trace import RateTrace
from tests.embeddings.example_tiers import config_of

WHOLE = (Lane(Placement.MODEL_ON_HOST, 1, 1, 32),)
MOMENT = Effort(probe_s=0.02, warm_up_s=0.0, rounds=2, resolution=0.5, highest_qps=200.0)
WORKLOAD = Workload(FixedSizes(8))
IN_REACH = SlaTarget(30_000, 90)
"""Of any machine, however busy it is."""


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    root = tmp_path_factory.mktemp("repository")
    spec = entry("peers-dlrm", scale=0.01)
    tables = {table.name: initial_rows(spec, table.name, seed=3) for table in spec.tables}
    ModelRepository(root).write(spec, tables, build_dense_net(spec, seed=3).state_dict())
    return root


@pytest.fixture
def moment(monkeypatch):
    monkeypatch.setattr(live_evaluation, "QUICK", MOMENT)


@pytest.mark.usefixtures("moment")
def test_a_model_with_tiers_is_measured(repository, tmp_path):
    options = LoadOptions(hierarchy=config_of(), persistent_dir=tmp_path / "stores")
    with live_evaluator(
        repository, "peers-dlrm", None, WORKLOAD, IN_REACH, quick=True, load_options=options
    ) as evaluator:
        assert evaluator(WHOLE).qps > 0


@pytest.mark.usefixtures("moment")
def test_configurations_are_measured_one_after_the_other(repository):
    probes = []
    with live_evaluator(
        repository,
        "peers-dlrm",
        None,
        WORKLOAD,
        IN_REACH,
        quick=True,
        on_probe=lambda *one: probes.append(one),
    ) as evaluator:
        with pytest.raises(ValueError, match="no configuration was asked for"):
            _ = evaluator.driver
        said = evaluator.power_source, evaluator.power_estimated
        reached = evaluator(WHOLE)
        assert (reached.power_source, reached.power_estimated) == said, "known before anything was measured"
        assert evaluator.found is not None
        assert reached.qps == evaluator.found.crossing.qps > 0
        assert reached.low_qps <= reached.qps <= reached.high_qps
        assert reached.power_watts > 0
        assert len(probes) == len(evaluator.found.probes) >= 1
        assert reached.bandwidth_bytes_per_s > 0
        assert reached.cpu_share is None or 0 <= reached.cpu_share <= 1
        assert (evaluator.version, len(evaluator.identity) > 10, evaluator.spec.name) == (1, True, "peers-dlrm")
        driver = evaluator.driver
        other = (replace(WHOLE[0], batch_size=8),)
        assert evaluator(other).qps > 0
        assert evaluator.driver is not driver, "nothing that it learned decides about another configuration"
        assert driver.workers == 0
        assert [placed.lane for placed in evaluator.driver.lanes] == list(other)
        evaluator.configure(WHOLE)
        assert evaluator.driver.splits == 2, "one that runs is split anew"
        profile = evaluator.scalability(WHOLE[0])
        assert profile.workers[0] == 1
        assert profile.workers[-1] == len(available_cores())
        assert all(qps > 0 for qps in profile.qps)
        assert profile.cores_per_worker == 1
        tables = sum(table.size_bytes for table in evaluator.spec.tables)
        assert list(profile.memory_bytes) == sorted(profile.memory_bytes), "more workers need as much at least"
        assert tables < profile.memory_bytes[0] < tables + 64e6, "what the process takes by itself is left out"


@pytest.mark.usefixtures("moment")
def test_scalability_says_how_many_cores_its_workers_have(repository):
    """Those of the configuration that it goes by, and of the memory that is resident."""
    point = ScalabilityPoint(10.0, 1e6, True)
    asked = []

    def measure(configuration, _ways):
        asked.append(configuration[0])
        return point

    with live_evaluator(repository, "peers-dlrm", None, WORKLOAD, IN_REACH, cores=(0, 0, 0, 0, 0)) as evaluator:
        profile = evaluator.scalability(replace(WHOLE[0], cores_per_worker=2), measure)
        resident = evaluator.scalability(WHOLE[0], measure).memory_bytes
    assert (profile.workers, profile.cores_per_worker) == ((1, 2), 2)
    assert [lane.cores_per_worker for lane in asked[:2]] == [2, 2]
    assert len(resident) == 4


def test_where_a_batch_s_time_goes(repository):
    with live_evaluator(repository, "peers-dlrm", None, WORKLOAD, IN_REACH) as evaluator:
        use = evaluator.op_use(8)
    assert (use.items, set(use.idle_share)) == (8, {2, 3, 4})
    assert {"embedding lookup", "fully connected"} <= set(use.seconds)
    assert 0 < use.idle_share[2] < use.idle_share[4] < 1


def test_scalability_counts_no_more_cores_than_a_control_group_allows(repository, monkeypatch):
    monkeypatch.setattr(this_server, "control_group_limits", lambda *_: ControlGroupLimits(cores=2.5))
    with live_evaluator(repository, "peers-dlrm", None, WORKLOAD, IN_REACH, cores=(0, 0, 0, 0, 0)) as evaluator:
        profile = evaluator.scalability(WHOLE[0], lambda *_: ScalabilityPoint(10.0, 1e6, True))
    assert profile.workers == (1, 2)


@pytest.mark.parametrize(
    ("runs", "alone_ms", "told"), [([0.0, 80.0], 5.0, 80.0), ([0.0, 0.0], 5.0, 0.0), ([0.0], 31_000.0, 0.0)]
)
def test_a_point_of_scalability_that_reached_nothing_is_measured_once_more(
    repository, monkeypatch, runs, alone_ms, told
):
    """Unless a large query alone is late: then there is nothing to doubt."""
    left = iter(runs)
    monkeypatch.setattr(LiveEvaluator, "__call__", lambda *_: Reached(next(left), 10.0, alone_ms))
    with live_evaluator(repository, "peers-dlrm", None, WORKLOAD, IN_REACH) as evaluator:
        assert evaluator.scalability_point(WHOLE).qps == told
    assert not list(left)


@pytest.mark.usefixtures("moment")
def test_fewer_ways_of_the_cache_are_measured_where_it_can_be_shared_out(repository, monkeypatch):
    given = []

    @contextmanager
    def limited(ways):
        given.append(ways)
        yield
        given.append(None)

    monkeypatch.setattr(live_evaluation, "cache_ways", lambda: CacheWays(11, 2))
    monkeypatch.setattr(live_evaluation, "limited_to_ways", limited)
    with live_evaluator(repository, "peers-dlrm", None, WORKLOAD, IN_REACH, quick=True, cores=(0,)) as evaluator:
        profile = evaluator.scalability(WHOLE[0])
        assert given == [2, None, 4, None, 8, None]
        assert profile.cache_ways == (2, 4, 8, 11)
        (row,) = profile.qps_by_cache_ways
        assert len(row) == 4
        assert row[-1] == profile.qps[-1]

        def refused(_ways):
            raise CacheAllocationError("it takes root")

        monkeypatch.setattr(live_evaluation, "limited_to_ways", refused)
        profile = evaluator.scalability(WHOLE[0])
        assert profile.cache_ways == (11,)
        assert profile.qps_by_cache_ways == ((profile.qps[-1],),)


@pytest.mark.usefixtures("moment")
@pytest.mark.parametrize("admission", [False, True])
def test_an_sla_out_of_reach_is_told_with_what_a_query_takes_alone(repository, admission):
    """Also where all of them are refused under load, so that none has a latency."""
    with live_evaluator(
        repository, "peers-dlrm", None, WORKLOAD, SlaTarget(1e-3, 90), quick=True, admission=admission
    ) as one:
        reached = one(WHOLE)
        answers = [probe.report.latencies.answers for probe in one.found.probes]
    assert reached.qps == 0
    assert 1e-3 < reached.tail_latency_ms < 60_000
    assert all(answers) != admission, "in one of its probes at least"


@pytest.mark.usefixtures("moment")
def test_what_does_not_answer_even_a_query_alone_is_told_as_such(repository, monkeypatch):
    def failing(*_):
        raise QueryFailed("its worker is gone")

    monkeypatch.setattr(live_evaluation, "times_alone", failing)
    with live_evaluator(repository, "peers-dlrm", None, WORKLOAD, SlaTarget(1e-3, 90), quick=True) as one:
        assert one(WHOLE).tail_latency_ms == math.inf


@pytest.mark.usefixtures("moment")
def test_one_round_before_the_time_was_up_is_no_measurement_and_two_are_one(repository, monkeypatch):
    with live_evaluator(repository, "peers-dlrm", None, WORKLOAD, IN_REACH, quick=True) as evaluator:
        whole = evaluator(WHOLE)
        found = evaluator.found
        assert not found.interrupted
        monkeypatch.setattr(evaluator, "_search", lambda: replace(found, interrupted=True, rounds=1))
        with pytest.raises(ProfilingError, match=r"did not settle within 180 s"):
            evaluator(WHOLE)
        monkeypatch.setattr(evaluator, "_search", lambda: replace(found, interrupted=True, rounds=2))
        assert evaluator(WHOLE).qps == whole.qps


def test_a_measurement_that_does_not_settle_is_given_up(repository, monkeypatch):
    monkeypatch.setattr(live_evaluation, "QUICK", replace(MOMENT, longest_s=0.0))
    with (
        live_evaluator(repository, "peers-dlrm", None, WORKLOAD, IN_REACH, quick=True) as evaluator,
        pytest.raises(ProfilingError, match=r"did not settle within 0 s.*is the machine busy"),
    ):
        evaluator(WHOLE)


@pytest.mark.usefixtures("moment")
def test_workers_that_cannot_start_are_told_with_the_configuration_and_why(repository, monkeypatch):
    def warm_up(*_):
        raise ValueError("model peers-dlrm: a score is not finite")

    monkeypatch.setattr(LoadedModel, "warm_up", warm_up)
    with live_evaluator(repository, "peers-dlrm", None, WORKLOAD, IN_REACH, quick=True) as evaluator:
        for ask in (lambda: evaluator(WHOLE), lambda: evaluator.busy_profiles(WHOLE[0], [8])):
            with pytest.raises(StartFailed, match=r"model-on-host.*: its workers cannot start: model .* not finite$"):
                ask()


@pytest.mark.usefixtures("moment")
@pytest.mark.parametrize("fault", [LoadError("the server answers no more"), QueryFailed("out of rows")])
def test_whatever_a_measurement_fails_with_names_the_configuration(repository, monkeypatch, fault):
    def fail(*_):
        raise fault

    with live_evaluator(repository, "peers-dlrm", None, WORKLOAD, IN_REACH, quick=True) as evaluator:
        monkeypatch.setattr(evaluator, "_search", fail)
        monkeypatch.setattr(evaluator, "_busy_times", fail)
        for ask in (lambda: evaluator(WHOLE), lambda: evaluator.busy_profiles(WHOLE[0], [8])):
            with pytest.raises(MeasurementError, match=f"{fault}$") as failed:
                ask()
            assert failed.value.configuration == WHOLE


@pytest.mark.parametrize(
    ("lane", "stages"),
    [
        (WHOLE[0], ["whole"]),
        (Lane(Placement.PIPELINE_ON_HOST, 1, 1, 32, 1), ["sparse", "dense"]),
        (Lane(Placement.HOT_SPARSE_ON_ACCELERATOR, 1, 1, 32, 1, 64), ["sparse", "dense"]),
    ],
)
def test_service_times_are_measured_by_stage_alone_and_while_all_workers_are_busy(repository, lane, stages):
    cores = available_cores() * 2
    with live_evaluator(repository, "peers-dlrm", None, WORKLOAD, None, quick=True, cores=cores) as evaluator:
        profiles = evaluator.latency_profiles((lane,))
        busy = evaluator.busy_profiles(lane, [4, 16, 32])
    assert list(profiles) == stages
    for stage, profile in profiles.items():
        most = lane.fused_items if stage == "dense" and lane.fused_items else lane.batch_size
        assert profile.batch_sizes[-1] == most
        assert min(profile.service_s) > 0
    assert list(busy) == stages
    for profile in busy.values():
        assert profile.batch_sizes == (4, 16, 32)
        assert min(profile.service_s) > 0


class LowKeys:
    """Only the lower half of each table's keys."""

    def draw(self, rows, count, rng, spread_seed):  # noqa: ARG002
        return rng.integers(0, rows // 2, count)


@pytest.mark.usefixtures("moment")
def test_what_is_measured_alone_has_the_keys_of_the_load(repository, monkeypatch):
    asked = []
    ask, rehearse = NodeDriver.infer, UnlockedExecutor.rehearse

    async def infer(driver, query):
        asked.append(query)
        return await ask(driver, query)

    def run(runner, batch):
        asked.extend(part.query for part in batch.sub_queries)
        return rehearse(runner, batch)

    load = Workload(FixedSizes(8), keys=LowKeys())
    with live_evaluator(repository, "peers-dlrm", None, load, SlaTarget(1e-3, 90), quick=True) as evaluator:
        spec = evaluator.spec
        with monkeypatch.context() as alone:
            alone.setattr(UnlockedExecutor, "rehearse", run)
            evaluator.latency_profiles(WHOLE)
        assert len(asked) > 15
        monkeypatch.setattr(NodeDriver, "infer", infer)
        assert evaluator(WHOLE).qps == 0, "so that a large query is asked alone"
    for query in asked:
        for feature in spec.features:
            assert query.features[feature.name].max() < spec.table(feature.table).rows // 2


class SmallPool:
    """A `Workload` whose queries are drawn from so few keys that caches soon know all of them."""

    sizes, arrivals = FixedSizes(8), PoissonArrivals()

    def pool(self, inputs):
        return QueryPool(inputs, UniformKeys(), 8, np.random.default_rng(0), pool_bytes=1 << 20)


def seeming_evaluator(tiers):
    spec = ModelSpec("m", "dlrm", (EmbeddingTableSpec("t", 10**8, 4),), (FeatureSpec("f", "t", 1, Pooling.SUM),))
    model = SimpleNamespace(spec=spec, hierarchy=SimpleNamespace(tiers=tiers))
    evaluator = LiveEvaluator(model, SmallPool(), SlaTarget(50, 95), (0,), MOMENT, None)
    return evaluator, evaluator._pool.items


@pytest.mark.parametrize("tiered", [False, True])
@pytest.mark.parametrize(("stored", "row_bytes"), [(RowFormat.FP32, 16), (RowFormat.FP16, 8), (RowFormat.INT8, 8)])
def test_traffic_is_estimated_from_rows_as_they_are_stored(stored, row_bytes, tiered):
    cache = SimpleNamespace(tables={"t": CacheTable(4, 1, stored)})
    evaluator, _ = seeming_evaluator(tiers=SimpleNamespace(cache=cache) if tiered else None)
    evaluator._model.hierarchy.memory = SimpleNamespace(row_format=RowFormat.FP32 if tiered else stored)
    report = SimpleNamespace(items_in_window=6000, answered_in_window=300)
    found = SimpleNamespace(probes=[SimpleNamespace(report=report)], crossing=SimpleNamespace(qps=50.0))
    assert evaluator._traffic_of_rows(found) == 1000 * row_bytes  # of one lookup an item, four numbers a row
    report.answered_in_window = 0
    assert evaluator._traffic_of_rows(found) is None


def probe_of(items):
    report = SimpleNamespace(items_sent=items)
    return SimpleNamespace(phase=Phase.RAMP, report=report, rate_qps=100.0, passed=True)


def search_runs(monkeypatch, probes):
    """Searches make these probes, and no query."""

    async def nothing():
        pass

    monkeypatch.setattr(LiveEvaluator, "driver", SimpleNamespace())
    monkeypatch.setattr(live_evaluation, "DriverSender", lambda *_: SimpleNamespace(close=nothing))
    monkeypatch.setattr(QpsSearch, "run", probes)


def test_gaps_of_a_recorded_load_are_told(monkeypatch):
    trace = RateTrace(np.array([0.0, 1.0, 2.0]), np.array([1.0, 0.0]), ("load.csv: line 9: a gap",))
    monkeypatch.setattr(SmallPool, "arrivals", TraceArrivals(trace))
    evaluator, _ = seeming_evaluator(tiers=None)
    (remark,) = evaluator.remarks(1e6)
    assert remark.startswith("load.csv: line 9: a gap: no query is sent")


def test_probes_that_name_the_same_keys_again_are_told_of_together(monkeypatch):
    evaluator, items = seeming_evaluator(tiers=object())
    evaluator._best_qps = 100.0  # which a search begins at

    async def probes(_search, _workload, _pool, _sender, _start_qps, _stop, on_probe):
        on_probe(probe_of(items), None)

    search_runs(monkeypatch, probes)
    evaluator._search()
    assert evaluator.remarks(1e6) == (), "of one probe as many as it sent"
    for _ in range(9):
        evaluator._search()
    (remark,) = evaluator.remarks(1e6)
    assert remark.startswith("f: the queries of all probes named at most ")
    assert "hebe load --find-qps --pool-memory" in remark
    resident, _ = seeming_evaluator(tiers=None)
    resident._items_sent = evaluator._items_sent
    assert resident.remarks(1e6) == ()


class Ticks:
    """A processor meter that always reads the same."""

    def __init__(self, ticks=100):
        self.reads, self._ticks = 0, ticks

    def read(self):
        self.reads += 1
        return ProcessorUse(0.0, 0.875, 0.0, 0.0, self._ticks)


@pytest.mark.usefixtures("moment")
@pytest.mark.parametrize(("ticks", "share"), [(100, 0.875), (0, None)])
def test_the_use_of_cores_is_told_where_it_was_counted(repository, ticks, share):
    with live_evaluator(repository, "peers-dlrm", None, WORKLOAD, IN_REACH, quick=True) as evaluator:
        evaluator._processors = Ticks(ticks)
        assert evaluator(WHOLE).cpu_share == share


def test_the_use_of_cores_is_counted_anew_when_the_load_is_close_to_what_is_found(monkeypatch):
    evaluator, _ = seeming_evaluator(tiers=None)
    evaluator._best_qps = 100.0
    evaluator._processors = meter = Ticks()
    reads = []

    async def probes(_search, _workload, _pool, _sender, _start_qps, _stop, on_probe):
        for phase in (Phase.RAMP, Phase.RAMP, Phase.ROUND, Phase.ROUND):
            probe = probe_of(1)
            probe.phase = phase
            on_probe(probe, None)
            reads.append(meter.reads)

    search_runs(monkeypatch, probes)
    evaluator._search()
    assert reads == [1, 1, 2, 2]


def test_probes_that_were_too_short_for_the_percentile_are_told_of():
    evaluator, _ = seeming_evaluator(tiers=None)
    (remark,) = evaluator.remarks(10.0)
    assert remark.startswith("probes were too short for p95")
    assert remark.endswith("(hebe load --find-qps has that option)")
