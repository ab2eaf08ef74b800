"""hercules-idle: what it tells of given times, and what the analytic server idles.

Op times of a small model on this machine.
"""

import pytest
from rich.progress import Progress

from hebe.machine.pinning import available_cores
from hebe_lab.studies.hercules import idle as hercules_idle
from hebe_lab.studies.hercules.fleet import ENTRIES
from hebe_lab.studies.hercules.idle import WORKERS, Effort, Idle, modelled_idle, speedup_of_two, timed_ops, told
from tests.lab.studies.study_page import page_of


def idle(lookup_s, dense_s, growth, speedup=None):
    seconds = {"embedding lookup": lookup_s, "fully connected": dense_s, "attention": 0.0}
    shares = {count: growth * (count - 1) for count in WORKERS}
    return Idle(seconds, shares, {count: share / 2 for count, share in shares.items()}, speedup)


def test_what_given_times_come_to():
    found = {"RMC1": idle(0.006, 0.002, 0.1, 1.35), "DIEN": idle(0.001, 0.003, 0.25)}
    result = told(found, Effort(1 << 20, 3))
    values = {figure.name: figure for figure in result.figures}
    assert values["hercules.idle.least"].value == pytest.approx(0.1)
    assert (values["hercules.idle.greatest"].value, values["hercules.idle.greatest"].paper) == (0.75, 0.74)
    assert values["hercules.idle.rmc1.workers_3"].value == pytest.approx(0.2)
    assert values["hercules.idle.lookup_share.rmc1"].value == pytest.approx(0.75)
    assert values["hercules.idle.over_schedule.rmc1"].value == pytest.approx(1.35 / 1.8)
    shares, shared_out, times = result.tables
    assert shared_out.rows == [["RMC1", "1.80", "1.35"]], "DIEN's was not measured"
    assert shares.rows[0] == ["RMC1", "10%", "20%", "30%", "5%", "10%", "15%"]
    assert times.rows[1] == ["DIEN", pytest.approx(4.0), "25.0%", "75.0%", None]
    page = page_of(hercules_idle, result)
    assert page.count("<svg") == 2
    assert "1 MiB" in page


def test_element_wise_ops_and_others_are_told_together():
    merged = hercules_idle._without_other({"recurrent": 1.0, "element-wise": 0.25, "other": 0.5})
    assert merged == {"recurrent": 1.0, "element-wise and other": 0.75}


def test_the_analytic_server_idles_more_with_more_op_workers():
    for name in ENTRIES:
        shares = modelled_idle(name)
        assert shares[1] == pytest.approx(0.0)
        assert shares[1] < shares[2] < shares[3] < shares[4] <= 0.75 + 1e-9


def test_op_times_of_a_small_model(tmp_path):
    times, speedup = timed_ops("dlrm-rmc1", 1 << 19, 4, 1, tmp_path, Progress(disable=True))
    assert times.items == 4
    assert min(times.sparse_s, times.dense_s) > 0
    assert 0 == times.idle_share(1) < times.idle_share(4) < 0.75
    assert speedup is None if len(available_cores()) < 2 else speedup > 0
    assert not list(tmp_path.iterdir())


def test_one_core_has_no_second_op_worker(monkeypatch):
    monkeypatch.setattr(hercules_idle, "available_cores", lambda: (0,))
    assert speedup_of_two(None, 4, 1) is None, "the model is not even asked"
