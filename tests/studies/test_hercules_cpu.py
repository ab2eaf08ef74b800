"""hercules-cpu: what it tells of given points, the analytic server's, and how a split's best batch size is found."""

import pytest

from hebe.report.figures import FigureFile
from hebe.spec import SlaTarget
from hebe.studies import hercules_cpu
from hebe.studies.hercules_cpu import Effort, gains, lane, modelled_points, scaled, shapes, told
from hebe.studies.hercules_live import best_in_turns
from hebe.studies.hercules_point import Point
from hebe.studies.page import study_page

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
    file = FigureFile.here("hercules-cpu", "hebe study hercules-cpu", 1.0, True, result.figures)
    page = study_page(hercules_cpu.DESCRIPTION, file, result).render()
    assert page.count("<svg") == 2
    assert "1 x 2 against 2 x 1" in page
    assert "Power is a guess." in page


def test_a_machine_of_one_core_is_left_out():
    result = told(points(1.3), {}, EFFORT)
    assert all(".live." not in figure.name for figure in result.figures)
    assert any(isinstance(block, str) and "one core" in block for block in result.content)


def test_two_cores_a_worker_help_rmc1_on_the_analytic_server_most_under_a_short_target():
    found = gains(modelled_points(), lambda point: point.qps)
    assert found[min(found)] > found[max(found)] > 1.0


def test_targets_are_scaled_and_keep_their_percentile():
    assert scaled(SlaTarget(20.0, 99.0), 0.333) == SlaTarget(6.66, 99.0)


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
