"""Op times of a small model on this machine."""

from rich.progress import Progress

from hebe.machine.pinning import available_cores
from hebe_lab.studies.hercules import idle as hercules_idle_runs
from hebe_lab.studies.hercules.idle import speedup_of_two, timed_ops


def test_op_times_of_a_small_model(tmp_path):
    times, speedup = timed_ops("dlrm-rmc1", 1 << 19, 4, 1, tmp_path, Progress(disable=True))
    assert times.items == 4
    assert min(times.sparse_s, times.dense_s) > 0
    assert 0 == times.idle_share(1) < times.idle_share(4) < 0.75
    assert speedup is None if len(available_cores()) < 2 else speedup > 0
    assert not list(tmp_path.iterdir())


def test_one_core_has_no_second_op_worker(monkeypatch):
    monkeypatch.setattr(hercules_idle_runs, "available_cores", lambda: (0,))
    assert speedup_of_two(None, 4, 1) is None, "the model is not even asked"
