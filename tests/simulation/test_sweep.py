"""Cases answered by processes of their own, whatever the main script is."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from hebe.simulation import sweep as sweeping
from hebe.simulation.sweep import SweepError, sweep

SCRIPT = """
import os
from hebe.simulation.sweep import sweep
print("main")
os.sched_getaffinity = lambda _: {0, 1}
print(sweep(abs, [-1, 2, -3]))
"""
"""A main script without a guard, that says how often it runs."""


@pytest.fixture(params=[1, 2])
def cores(request, monkeypatch):
    monkeypatch.setattr(sweeping.os, "sched_getaffinity", lambda _: set(range(request.param)))
    return request.param


@pytest.fixture
def two_cores(monkeypatch):
    monkeypatch.setattr(sweeping.os, "sched_getaffinity", lambda _: {0, 1})


@pytest.mark.usefixtures("cores")
def test_answers_stand_in_the_order_of_the_cases():
    done = []
    assert sweep(len, ["", "a", "bbb", "cc"], lambda *step: done.append(step)) == [0, 1, 3, 2]
    assert done == [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4)]


def test_one_case_or_one_core_means_this_process(monkeypatch):
    assert sweep(_process, [1]) == [os.getpid()]
    monkeypatch.setattr(sweeping.os, "sched_getaffinity", lambda _: {0})
    assert sweep(_process, [1, 2]) == [os.getpid()] * 2


@pytest.mark.usefixtures("two_cores")
def test_two_cores_mean_two_others_but_not_for_short_cases():
    others = sweep(_process, [1, 2])
    assert len({*others, os.getpid()}) == 3
    assert sweep(_process, [1, 2], in_process=True) == [os.getpid()] * 2


def test_no_cases_are_no_answers():
    assert sweep(len, []) == []


@pytest.mark.usefixtures("cores")
def test_an_error_is_raised_as_it_is():
    with pytest.raises(ValueError, match="invalid literal for int"):
        sweep(int, ["1", "x", "3"])


@pytest.mark.usefixtures("two_cores")
def test_an_error_of_another_process_says_where_it_arose():
    with pytest.raises(ValueError, match="invalid literal") as caught:
        sweep(int, ["x", "y"])
    assert "In another process" in caught.value.__notes__[0]


@pytest.mark.usefixtures("two_cores")
def test_an_interrupt_ends_the_cases_that_have_begun(monkeypatch):
    def interrupted(_connections):
        raise KeyboardInterrupt

    started = []
    start = subprocess.Popen
    monkeypatch.setattr(sweeping, "wait", interrupted)
    monkeypatch.setattr(
        sweeping.subprocess, "Popen", lambda *args, **kw: started.append(start(*args, **kw)) or started[-1]
    )
    with pytest.raises(KeyboardInterrupt):
        sweep(time.sleep, [300.0, 300.0])
    assert [child.poll() for child in started] == [-signal.SIGTERM] * 2


@pytest.mark.usefixtures("two_cores")
def test_a_process_that_is_killed_is_an_error_and_not_a_wait():
    with pytest.raises(SweepError, match="signal 9"):
        sweep(_killed, [1, 2])


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize("function", [lambda case: case, len])
def test_what_cannot_be_sent_is_an_error(function):
    with pytest.raises(Exception, match=r"pickle|attribute"):
        sweep(function, [lambda: 1, lambda: 2])


@pytest.mark.usefixtures("two_cores")
def test_an_answer_that_cannot_be_sent_is_an_error():
    with pytest.raises(TypeError, match="cannot be sent to another process"):
        sweep(_unsendable, [1, 2])


@pytest.mark.usefixtures("two_cores")
def test_any_thread_may_sweep():
    answers = []
    thread = threading.Thread(target=lambda: answers.append(sweep(abs, [-1, -2, 3])))
    thread.start()
    thread.join(60)
    assert answers == [[1, 2, 3]]


@pytest.mark.parametrize("way", ["a script", "stdin", "-c"])
def test_a_main_script_needs_no_guard(tmp_path, way):
    script = tmp_path / "plain.py"
    script.write_text(SCRIPT)
    command = {"a script": [str(script)], "stdin": ["-"], "-c": ["-c", SCRIPT]}[way]
    answer = subprocess.run(
        [sys.executable, *command],
        input=SCRIPT if way == "stdin" else "", capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (answer.stdout, answer.returncode) == ("main\n[1, 2, 3]\n", 0), answer.stderr


def _process(_case):
    time.sleep(0.2)  # long enough for the other process to take the other case
    return os.getpid()


def _killed(_case):
    os.kill(os.getpid(), signal.SIGKILL)


def _unsendable(_case):
    return lambda: 1
