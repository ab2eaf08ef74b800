"""What a loop around the executor counts, on a clock of the test's own."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from hebe.runtime.executors.dense_graph import GraphMode
from hebe_lab.bench.serving import in_process as module
from hebe_lab.bench.serving.in_process import InProcessResult, in_process

ITEMS = 7


class Model:
    """Takes `batch_s` for each batch by its clock, and tells what it was asked."""

    def __init__(self, batch_s):
        self.now_s, self.batch_s, self.batches, self.loaded, self.cores = 0.0, batch_s, [], None, None

    def load(self, *where, options):
        self.loaded = (*where, options.graph)
        return self

    def new_executor(self, max_items):
        assert max_items == ITEMS
        return self

    def warm_up(self, run, items):
        assert (run, items) == (self.run, ITEMS)
        self.now_s += 100.0

    def random_query(self, items, seed):
        return SimpleNamespace(items=items, seed=seed)

    def run(self, batch):
        (sub_query,) = batch.sub_queries
        assert batch.items == sub_query.query.items == ITEMS
        self.batches.append(sub_query.query.seed)
        self.now_s += self.batch_s(len(self.batches))


@pytest.fixture
def child(monkeypatch, capsys):
    """Runs what would be a child process in this one, on a `Model`."""

    def on(model, returncode=0, stderr=""):
        def run(command, **_):
            assert command[:3] == [sys.executable, "-m", "hebe_lab.bench.serving.in_process"]
            monkeypatch.setattr(sys, "argv", command[2:])
            module.main()
            printed = "a line of torch's\n" + capsys.readouterr().out
            return subprocess.CompletedProcess(command, returncode, printed, stderr)

        monkeypatch.setattr(module, "LoadedModel", model)
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: model.now_s))
        monkeypatch.setattr(module, "pin_thread", lambda cores: setattr(model, "cores", cores))
        monkeypatch.setattr(module.torch, "set_num_threads", lambda threads: setattr(model, "threads", threads))
        monkeypatch.setattr(subprocess, "run", run)
        return model

    return on


def test_only_queries_after_the_first_round_of_all_are_timed(child, tmp_path):
    model = child(Model(lambda number: 5.0 if number <= 64 else 0.125))
    result = in_process(tmp_path, "m", ITEMS, 2.0, 3, GraphMode.EAGER)
    assert result == InProcessResult(8.0, 125.0)
    assert (model.loaded, model.cores, model.threads) == ((str(tmp_path), "m", GraphMode.EAGER), [3], 1)
    assert model.batches == [*range(64), *range(16)]


def test_the_last_query_counts_with_all_of_its_time(child, tmp_path):
    model = child(Model(lambda number: 0.0 if number <= 64 else 0.75))
    assert in_process(tmp_path, "m", ITEMS, 1.0, 0) == InProcessResult(2 / 1.5, 750.0)
    assert model.loaded[2] is GraphMode.SCRIPTED


def test_a_child_that_fails_is_an_error_with_what_it_said(child, tmp_path):
    child(Model(lambda _: 1.0), 1, "Traceback ...\nRepositoryError: no model m\n")
    with pytest.raises(RuntimeError, match=r"in-process loop failed: Traceback(.|\n)*no model m$"):
        in_process(tmp_path, "m", ITEMS, 1.0, 0)


def test_a_child_that_does_not_end_is_an_error_too(monkeypatch, tmp_path):
    def run(command, timeout, **_):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(RuntimeError, match="in-process loop has not ended after 121 s"):
        in_process(tmp_path, "m", ITEMS, 1.0, 0)
