from types import SimpleNamespace

import pytest
from rich.progress import Progress

from hebe.cli.terminal.server_process import ServerProcessError
from hebe.latency import LatencyRecorder
from hebe.load_generator.load_report import LoadReport
from hebe.machine.pinning import available_cores
from hebe.spec import SlaTarget
from hebe_lab.bench.serving import overload
from hebe_lab.bench.serving.closed_loop import ClosedLoopResult
from hebe_lab.bench.serving.overload import _LADDER, _OVERLOAD, figures_of, retrying_figure

SLA = SlaTarget(20.0, 95.0)


def report(in_time, items_in_time, late=0, refused=0, duration_s=1.0):
    latencies, lag, refusals = LatencyRecorder(SLA), LatencyRecorder(), LatencyRecorder()
    latencies.record_many([0.01] * in_time)
    latencies.record_many([0.03] * late)
    latencies.refuse("503", refused)
    lag.record(0.0)
    refusals.record_many([0.002] * max(refused, 1))
    answered = in_time + late
    return LoadReport(
        100.0, duration_s, 0.0, latencies, answered, 1, lag, 0.1, 0, 1, "", {}, refusals, items_in_time=items_in_time
    )


def figures(reports, beyond):
    return {figure.name: figure for figure in figures_of(".m", 100.0, reports, beyond, 1000, 1010)}


def test_the_ladder_reaches_as_far_as_the_load_that_it_is_held_against():
    assert max(_LADDER) == _OVERLOAD
    assert set(_LADDER) >= {1.0, 1.2, 1.5}


def test_the_peak_is_looked_for_beyond_saturation_too_and_items_are_counted_beside_answers():
    ladder = {
        0.5: report(50, 10_000),
        1.0: report(95, 20_000, late=5),
        # Small queries are let in, large ones are not: more answers, fewer items.
        1.5: report(120, 15_000, refused=30),
        2.0: report(110, 12_000, refused=90),
    }
    found = figures(ladder, report(1080, 110_000, late=20, refused=900, duration_s=10.0))
    assert found["overload.goodput.m"].value == pytest.approx(108 / 120)
    assert "peak at 1.5 x saturation" in found["overload.goodput.m"].note
    assert "900 of 2000 refused in 10 s" in found["overload.goodput.m"].note
    assert found["overload.goodput_items.m"].value == pytest.approx(11_000 / 20_000)
    assert "11,000 of 20,000 items/s within 20 ms (peak at 1 x saturation)" in found["overload.goodput_items.m"].note
    assert found["overload.attainment_of_admitted.m"].value == pytest.approx(1080 / 1100)
    assert found["overload.memory_growth.m"].value == pytest.approx(1.01)


def test_a_server_that_answers_nothing_in_time_has_no_share_of_its_peak():
    with pytest.raises(RuntimeError, match="no query was answered within 20 ms"):
        figures({1.0: report(0, 0, late=10)}, report(0, 0, late=10))


def test_of_callers_who_ask_again_at_once_answers_count_and_refusals_are_told():
    found = retrying_figure(
        ".m", ClosedLoopResult(80.0, 50.0, 90.0, 800, 0, 0), ClosedLoopResult(60.0, 90.0, 300.0, 600, 5000, 0), 10.0
    )
    assert (found.name, found.value) == ("overload.retrying.m", 0.75)
    assert "60.0 a second beside 500 refusals" in found.note


@pytest.mark.parametrize("lasts", [0, 1, len(_LADDER), len(_LADDER) + 1])
def test_a_server_that_dies_under_the_load_gives_no_figures(monkeypatch, tmp_path, lasts):
    """After so many runs as it `lasts`: in the closed loop, in the ladder, in the long run."""
    runs = []

    class Server:
        http_url = "http://127.0.0.1:1"

        def __init__(self, *_):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def check(self):
            if len(runs) > lasts:
                raise ServerProcessError("the server ended with exit status -9")

        @property
        def resident_bytes(self):
            self.check()  # as a real one does
            return 1000

    monkeypatch.setattr(overload, "ServerProcess", Server)
    monkeypatch.setattr(overload, "run_load", lambda *_: runs.append(report(50, 10_000)) or runs[-1])
    monkeypatch.setattr(overload, "closed_loop", lambda *_: runs.append(SimpleNamespace(throughput_qps=9.0)) or runs[0])
    with pytest.raises(ServerProcessError):
        overload._measure("", tmp_path, tmp_path, available_cores()[:1], 1.0, 1.0, Progress(disable=True))
    assert len(runs) == lasts + 1
