import os
import time
from multiprocessing import active_children

import pytest
from rich.progress import Progress

from hebe.studies import sweep as sweeping
from hebe.studies.sweep import sweep


@pytest.fixture
def progress():
    return Progress(disable=True)


def test_answers_stand_in_the_order_of_the_cases(progress):
    assert sweep("lengths", len, ["", "a", "bbb", "cc"], progress) == [0, 1, 3, 2]
    assert progress.tasks[0].finished


def test_one_case_runs_here(progress):
    assert sweep("process", _process, [1], progress) == [os.getpid()]


def test_one_core_means_one_process(progress, monkeypatch):
    monkeypatch.setattr(sweeping.os, "sched_getaffinity", lambda _: {0})
    assert sweep("process", _process, [1, 2], progress) == [os.getpid()] * 2


def test_no_cases_are_no_answers(progress):
    assert sweep("nothing", len, [], progress) == []


def test_an_error_is_raised_as_it_is(progress, monkeypatch):
    for cores in ({0}, {0, 1}):
        monkeypatch.setattr(sweeping.os, "sched_getaffinity", lambda _, cores=cores: cores)
        with pytest.raises(ValueError, match="invalid literal for int"):
            sweep("numbers", int, ["1", "x", "3"], progress)


def test_an_interrupt_ends_the_cases_that_have_begun(progress, monkeypatch):
    def interrupted(_futures):
        raise KeyboardInterrupt

    monkeypatch.setattr(sweeping.os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(sweeping, "as_completed", interrupted)
    began_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        sweep("sleeping", time.sleep, [300.0, 300.0], progress)
    assert time.monotonic() - began_s < 200.0
    assert not active_children()


def _process(_case):
    return os.getpid()
