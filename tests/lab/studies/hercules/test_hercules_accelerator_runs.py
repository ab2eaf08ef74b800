"""Where a query's time goes on the second device; tests/integration has whole runs."""

from types import SimpleNamespace

from hebe.profiling.measurements.query_times import QueryTimes
from hebe_lab.studies.hercules.accelerator import Effort, _loaded, breakdown_of, lane
from hebe_lab.studies.hercules.live import Point

EFFORT = Effort(("RMC3",), 1 << 20, (1,), 1024, (16,), (0.5,), 1.0, 1)


def test_a_breakdown_leaves_out_what_a_case_lacks():
    mean = breakdown_of([QueryTimes(0.001, 0.0, 0.002, 0.003), QueryTimes(0.003, 0.0, 0.002, 0.001)])
    assert mean.by_stage() == {"queueing": 2.0, "loading": 2.0, "inference": 2.0}


def test_what_has_no_throughput_has_no_load_to_take_times_under():
    for point in (None, Point(0.0, 10.0, 0.0)):
        server = SimpleNamespace(point=lambda _, point=point: point, live=None)
        assert _loaded(server, lane(1), EFFORT) == {}
