"""What configurations of this machine reach: what counts of a measurement, and what is measured in turns.

What a configuration reaches.
"""

from types import SimpleNamespace

import pytest
from rich.progress import Progress

from hebe.load_generator.search.rate_search import Phase
from hebe.models.repository.repository import ModelRepository
from hebe.planning.server_split.search import Reached
from hebe.profiling.error import ProfilingError, StartFailed
from hebe.server_configuration import Lane, Placement
from hebe.spec import SlaTarget
from hebe_lab.saved_parts import KeptParts
from hebe_lab.studies.hercules.cpu import lane, shapes
from hebe_lab.studies.hercules.live import (
    SLACK,
    LiveServer,
    Point,
    _UseWhileFound,
    alternated,
    best_in_turns,
    longer_target,
    make_model,
    measured_by_model,
    size_at,
    winner_in_turns,
)
from hebe_lab.study import StudyOptions

ONE, TWO = shapes(20)


def test_each_model_is_measured_once_and_what_was_kept_is_read(tmp_path):
    asked, progress = [], Progress(disable=True)

    def measure(entry, effort, quick, machine, directory, _progress):
        assert (quick, directory.is_dir()) == (True, True)
        asked.append((entry, machine, effort))
        return Point(float(len(asked)), 10.0, 0.5)

    def run(models):
        options = StudyOptions(quick=True, parts=KeptParts(tmp_path))
        effort = SimpleNamespace(models=models)
        entries = {"A": "dlrm-a", "B": "dlrm-b"}
        return measured_by_model(entries, effort, options, progress, measure, lambda data: Point(**data))

    assert [point.qps for point in run(("A",)).values()] == [1.0]
    found = run(("A", "B"))
    assert {name: point.qps for name, point in found.items()} == {"A": 1.0, "B": 2.0}
    assert [entry for entry, *_ in asked] == ["dlrm-a", "dlrm-b"]


class _Told:
    """More of larger batches; one split does not settle."""

    def __init__(self):
        self.asked = []

    def point(self, configuration):
        self.asked.append(configuration)
        (one,) = configuration
        return None if one.workers == 10 else Point(one.batch_size + len(self.asked), 10.0, 0.5)


def test_each_split_has_its_best_batch_size_measured_anew_in_turns():
    server = _Told()
    candidates = {shape: [(lane(shape, size),) for size in (64, 256)] for shape in (ONE, TWO)}
    found = best_in_turns(server, candidates, 3)
    last = server.asked[-6:]
    assert last == [(lane(ONE, 256),), (lane(TWO, 64),)] * 3
    assert found == {ONE: Point(256 + 7, 10.0, 0.5), TWO: None}


def test_a_candidate_of_two_contenders_is_measured_once_a_turn_and_a_single_one_is_not_chosen_first():
    server, one = _Told(), (lane(ONE, 64),)
    found = best_in_turns(server, {"first": [one], "second": [one]}, 2)
    assert server.asked == [one, one]
    assert found["first"] == found["second"] == Point(65.5, 10.0, 0.5)


class _InTurns:
    """Reaches more each time, but nothing at the third."""

    def __init__(self):
        self.asked = []

    def __call__(self, configuration):
        self.asked.append(configuration)
        return Reached(float(len(self.asked)) if len(self.asked) != 3 else 0.0)


def test_configurations_are_measured_in_turns_and_a_failure_once_more():
    one, other = ((Lane(Placement.MODEL_ON_HOST, count),) for count in (1, 2))
    server = _InTurns()
    assert alternated(server, [one, other, one], 2) == {one: [1.0, 4.0], other: [2.0, 5.0]}
    assert server.asked == [one, other, one, one, other]


def test_who_wins_in_turns_is_the_better_one_by_the_median():
    one, other = ((Lane(Placement.MODEL_ON_HOST, count),) for count in (1, 2))

    def server_of(ones, others):
        runs = {one: iter(ones), other: iter(others)}
        return lambda configuration: Reached(next(runs[configuration]))

    assert winner_in_turns(server_of([5.0, 5.0, 5.0], [6.0, 90.0, 6.0]), one, other) == other
    assert winner_in_turns(server_of([5.0, 5.0, 5.0], [4.0, 90.0, 4.0]), one, other) == one
    assert winner_in_turns(server_of([5.0, 5.0, 5.0], [5.0, 5.0, 5.0]), one, other) == one
    assert winner_in_turns(server_of([], []), one, one) == one


def test_a_target_is_made_longer_only_where_it_must_be():
    assert longer_target(SlaTarget(20.0, 99.0), 20.0 / SLACK) == SlaTarget(20.0, 99.0)
    assert longer_target(SlaTarget(20.0, 99.0), 100.4 / SLACK) == SlaTarget(100.0, 99.0)


class _Evaluator:
    """Each measurement has probes of some cores' use; none settles where there are none."""

    power_estimated = False

    def __init__(self, use):
        self.use = use

    def __call__(self, probes):
        for phase, cores in probes:
            self.use.meter.cores = cores
            self.use(SimpleNamespace(phase=phase), None)
        if not probes:
            raise ProfilingError("it did not settle")
        return Reached(100.0, 40.0, power_estimated=self.power_estimated)


class _Meter:
    cores = 0.0

    def read(self):
        return SimpleNamespace(cores=self.cores)


@pytest.fixture
def server():
    use = _UseWhileFound(_Meter(), [])
    made = LiveServer(_Evaluator(use), use, lambda: made.advanced.append(1))
    made.advanced = []
    return made


def test_the_use_of_the_cores_is_that_of_the_last_phase_s_probes(server):
    busy = [(Phase.ROUND, 0.9), (Phase.ROUND, 0.5), (Phase.ROUND, 0.7)]
    first = next(phase for phase in Phase if phase is not Phase.ROUND)
    assert server.point([(first, 0.1), *busy]) == Point(100.0, 40.0, 0.7)
    assert server.point([(first, 0.1)]) == Point(100.0, 40.0, 0.0), "nothing is left of the measurement before"


def test_a_point_tells_where_watts_were_estimated(server):
    assert not server.point([(Phase.ROUND, 0.9)]).power_estimated
    server.live.power_estimated = True
    assert server.point([(Phase.ROUND, 0.9)]).power_estimated
    points = iter([False, True, False])
    told = SimpleNamespace(point=lambda _configuration: Point(1.0, 10.0, 0.5, next(points)))
    (found,) = best_in_turns(told, {"one": [(lane(ONE, 64),)]}, 3).values()
    assert found.power_estimated, "of one in three turns"


def test_what_does_not_settle_is_no_point_and_reaches_nothing(server):
    assert server.point([]) is None
    assert server([]) == Reached(0.0)
    assert len(server.advanced) == 2


def test_a_split_whose_workers_cannot_start_is_a_fault_and_no_point(server):
    def start(configuration):
        raise StartFailed(configuration, "no memory is left")

    server.live = start
    for ask in (server.point, server):
        with pytest.raises(StartFailed, match="no memory is left"):
            ask((lane(ONE, 64),))


def test_a_model_has_small_tables_and_layers_of_production_size(tmp_path):
    model = ModelRepository(make_model("dlrm-rmc1", 1 << 19, tmp_path, Progress(disable=True))).open("dlrm-rmc1")
    assert model.spec.table_bytes == pytest.approx(1 << 19, rel=0.1)
    assert model.spec.size == "production"


def test_larger_sizes_are_asked_of_higher_percentiles():
    assert 0 < size_at(50.0) < size_at(99.0) <= size_at(100.0)


def test_efficiency_is_what_a_watt_serves_and_nothing_where_none_is_drawn():
    assert Point(100.0, 50.0, 0.5).efficiency == pytest.approx(2.0)
    assert Point(0.0, 50.0, 0.0).efficiency == Point(100.0, 0.0, 0.5).efficiency == 0.0
