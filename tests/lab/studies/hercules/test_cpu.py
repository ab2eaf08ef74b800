"""hercules-cpu: what it tells of given points, and the analytic server's.

hercules-cpu's measurements of this machine: which splits under which targets, with nothing measured.
"""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from rich.progress import Progress

from hebe.spec import SlaTarget
from hebe_lab.studies.hercules import cpu as hercules_cpu
from hebe_lab.studies.hercules.cpu import Effort, gains, lane, measured_here, modelled_points, scaled, shapes, told
from hebe_lab.studies.hercules.live import Point
from tests.lab.studies.study_page import page_of

EFFORT = Effort(1 << 20, (1.0,), (256,), 1)


ONE, TWO = shapes(20)


def points(gain):
    one = {20.0: Point(100.0, 50.0, 0.9), 40.0: Point(200.0, 50.0, 0.95), 5.0: Point(0.0, 20.0, 0.0), 6.0: None}
    two = {20.0: Point(100.0 * gain, 40.0, 0.8), 40.0: Point(200.0, 50.0, 0.8), 5.0: Point(9.0, 20.0, 0.1), 6.0: None}
    return {ONE: one, TWO: two}


def test_what_given_points_come_to():
    result = told(points(1.3), {(2, 1): points(1.3)[ONE], (1, 2): points(0.5)[TWO]}, EFFORT, "Power is a guess.")
    values = {figure.name: figure for figure in result.figures}
    assert values["hercules.cpu.t2.qps_gain"].value == pytest.approx(1.3)
    assert values["hercules.cpu.t2.qps_gain"].paper == 1.35
    assert "at 20 ms" in values["hercules.cpu.t2.qps_gain"].note
    assert values["hercules.cpu.t2.qps_per_watt_gain"].value == pytest.approx(1.3 * 50 / 40)
    assert values["hercules.cpu.live.qps_gain"].value == pytest.approx(1.0)
    rows = {row[0]: row for row in result.tables[0].rows}
    assert rows[5.0] == [5.0, "out of reach", None, None, 9.0, pytest.approx(0.45), "10%", None]
    assert rows[6.0] == [6.0, *[None] * 7]
    assert rows[20.0][-1] == pytest.approx(1.3)
    page = page_of(hercules_cpu, result)
    assert page.count("<svg") == 2
    assert "1 x 2 against 2 x 1" in page
    assert "Power is a guess." in page


def test_what_is_per_watt_is_marked_where_watts_were_estimated():
    here = {ONE: {20.0: Point(100.0, 50.0, 0.9)}, TWO: {20.0: Point(80.0, 50.0, 0.9, power_estimated=True)}}
    result = told(points(1.3), here, EFFORT)
    marked = {figure.name for figure in result.figures if figure.note.endswith("; watts estimated")}
    assert marked == {"hercules.cpu.live.qps_per_watt_gain"}
    modelled, live = result.tables
    assert "per watt" in modelled.columns
    assert "per watt" not in live.columns
    assert live.columns.count("per watt; watts estimated") == 2


def test_a_machine_of_one_core_is_left_out():
    result = told(points(1.3), {}, EFFORT)
    assert all(".live." not in figure.name for figure in result.figures)
    assert any(isinstance(block, str) and "one core" in block for block in result.content)


def test_two_cores_a_worker_help_rmc1_on_the_analytic_server_most_under_a_short_target():
    found = gains(modelled_points(), lambda point: point.qps)
    assert found[min(found)] > found[max(found)] > 1.0


def test_targets_are_scaled_and_keep_their_percentile():
    assert scaled(SlaTarget(20.0, 99.0), 0.333) == SlaTarget(6.66, 99.0)


SPLITS = [(2, 1), (1, 2)]


@pytest.fixture
def asked(monkeypatch):
    """SLA targets and candidates that are measured under them; a split of one worker does not settle."""
    calls = []

    @contextmanager
    def server(_repository, _name, sla, _effort, **_):
        yield SimpleNamespace(machine_words=f"Under {sla.latency_ms:g} ms.", sla=sla)

    def in_turns(server, candidates, repeats):
        calls.append((server.sla, candidates, repeats))
        return {(n, o): Point(server.sla.latency_ms * n, 10.0, 0.5) if n > 1 else None for n, o in candidates}

    monkeypatch.setattr(hercules_cpu, "make_model", lambda *_: None)
    monkeypatch.setattr(hercules_cpu, "patient_machine", lambda *_: None)
    monkeypatch.setattr(hercules_cpu, "target_within_reach", lambda *_, **__: SlaTarget(20.0, 99.0))
    monkeypatch.setattr(hercules_cpu, "live_server", server)
    monkeypatch.setattr(hercules_cpu, "best_in_turns", in_turns)
    return calls


def test_every_split_is_measured_with_every_batch_size_under_every_target(asked, tmp_path):
    progress = Progress(disable=True)
    found, words = measured_here(SPLITS, Effort(1 << 20, (0.5, 2.0), (64, 256), 3), True, tmp_path, progress)
    assert [sla.latency_ms for sla, _, _ in asked] == [10.0, 40.0]
    for sla, candidates, repeats in asked:
        assert (sla.percentile, repeats) == (99.0, 3)
        assert candidates == {shape: [(lane(shape, 64),), (lane(shape, 256),)] for shape in SPLITS}
    assert found[2, 1] == {10.0: Point(20.0, 10.0, 0.5), 40.0: Point(80.0, 10.0, 0.5)}
    assert found[1, 2] == {10.0: None, 40.0: None}
    assert words == "Under 40 ms."
    assert not progress.tasks
