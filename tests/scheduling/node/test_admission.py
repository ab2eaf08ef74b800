from __future__ import annotations

import numpy as np
import pytest

from hebe.scheduling.node.admission import DeadlineAdmission


def test_admits_what_is_predicted_in_time_and_refuses_the_rest():
    admission = DeadlineAdmission(95.0)
    assert admission.admits(0.01, 0.02, 0.0, idle=False)
    assert not admission.admits(0.03, 0.02, 0.0, idle=False)


@pytest.mark.parametrize("percentile", [90.0, 95.0, 99.0])
def test_the_margin_settles_at_the_percentile_of_the_prediction_error(percentile):
    rng = np.random.default_rng(7)
    admission = DeadlineAdmission(percentile, step_share=0.01)
    errors = rng.exponential(0.01, 40_000)
    for error_s in errors:
        admission.observe(0.02, 0.02 + error_s)
    covered = np.mean(errors <= admission.margin_s)
    assert covered == pytest.approx(percentile / 100, abs=0.03)


def test_the_margin_is_never_negative():
    admission = DeadlineAdmission(95.0)
    for _ in range(1000):
        admission.observe(0.02, 0.001)
    assert admission.margin_s == 0.0


def test_what_does_not_fit_is_the_time_with_the_margin_but_for_what_finds_no_work():
    admission = DeadlineAdmission(95.0)
    admission.margin_s = 0.02
    assert not admission.admits(0.01, 0.02, 0.0, idle=False)
    assert admission.likely_within_s(0.01, idle=False) == pytest.approx(0.03)
    assert admission.admits(0.01, 0.02, 0.0, idle=True)
    assert admission.likely_within_s(0.01, idle=True) == pytest.approx(0.01)


def test_an_idle_server_probes_now_and_then():
    admission = DeadlineAdmission(95.0)
    answers = [admission.admits(1.0, 0.1, 0.01 * number, idle=True) for number in range(64)]
    assert [number for number, admitted in enumerate(answers) if admitted] == [15, 31, 47, 63]
    assert not any(admission.admits(1.0, 0.1, 10.0, idle=False) for _ in range(64))


def test_an_idle_server_that_is_seldom_asked_probes_after_a_second():
    admission = DeadlineAdmission(95.0)
    answers = [admission.admits(1.0, 0.1, 5.0 + 0.4 * number, idle=True) for number in range(8)]
    assert [number for number, admitted in enumerate(answers) if admitted] == [3, 7]
