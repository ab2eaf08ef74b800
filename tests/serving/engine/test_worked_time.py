import pytest

from hebe.serving.engine.combining_queue import WorkedTime


def test_threads_that_run_at_a_time_count_once():
    worked = WorkedTime()
    worked.begin(0, 1.0)
    worked.begin(1, 2.0)
    worked.end(0, 3.0)
    worked.begin(0, 4.0)
    worked.end(1, 5.0)
    worked.end(0, 6.0)
    assert worked.until(8.0) == pytest.approx(5.0)


def test_time_without_a_batch_does_not_count_and_a_batch_that_runs_does():
    worked = WorkedTime()
    assert worked.until(1.0) == 0.0
    worked.begin(0, 1.0)
    assert worked.until(1.5) == pytest.approx(0.5)
    worked.end(0, 2.0)
    worked.begin(0, 5.0)
    assert worked.until(5.25) == pytest.approx(1.25)


def test_one_batch_after_another_is_one_time_and_an_end_counts_once():
    worked = WorkedTime()
    worked.begin(0, 1.0)
    worked.begin(0, 2.0)
    worked.end(0, 3.0)
    worked.end(0, 4.0)
    assert worked.until(5.0) == pytest.approx(2.0)
