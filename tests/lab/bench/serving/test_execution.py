"""Which arrangements are measured, in which order, and what a loop of one worker counts."""

import threading
from types import SimpleNamespace

import pytest
from rich.progress import Progress

from hebe.runtime.executors.dense_graph import GraphMode
from hebe_lab.bench.serving import execution
from hebe_lab.bench.serving.in_process import InProcessResult


class Model:
    """Its executors take `batch_s` for each batch by the clock of the thread that they run on."""

    def __init__(self, clock):
        self._clock, self.closed = clock, False

    def new_executor(self, _items):
        return self

    def random_query(self, items, seed):
        return SimpleNamespace(items=items, seed=seed)

    def run(self, batch):
        assert batch.sub_queries[0].query.items == batch.items
        self._clock.now_s += self._clock.batch_s

    def close(self):
        self.closed = True


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Two cores, and a clock for each thread; what was measured on them, in order."""
    clock = threading.local()
    found = SimpleNamespace(order=[], models=[], clock=clock)

    def pin_thread(cores):
        (core,) = cores
        clock.core, clock.now_s, clock.batch_s = core, 0.0, 0.0625 * (1 + core)

    def load(*_where, options, threads):
        assert (type(options.graph), threads) == (GraphMode, 2)
        found.models.append(Model(clock))
        return found.models[-1]

    def in_process(repository, _name, _items, seconds, core, mode):
        assert repository == tmp_path
        found.order.append(("process", mode, core, seconds))
        return InProcessResult(10.0, 1.0)

    monkeypatch.setattr(execution, "pin_thread", pin_thread)
    monkeypatch.setattr(execution.torch, "set_num_threads", lambda _: None)
    monkeypatch.setattr(execution, "time", SimpleNamespace(perf_counter=lambda: clock.now_s))
    monkeypatch.setattr(execution, "available_cores", lambda: (0, 1))
    monkeypatch.setattr(execution, "bench_repository", lambda *_: tmp_path)
    monkeypatch.setattr(execution, "LoadedModel", SimpleNamespace(load=load))
    monkeypatch.setattr(execution, "in_process", in_process)
    return found


def measure(quick):
    with Progress(disable=True) as progress:
        figures = execution.run(quick, progress)
        assert all(task.finished for task in progress.tasks)
    return {figure.name: figure for figure in figures}


@pytest.mark.parametrize(
    ("quick", "modes", "rounds"),
    [(True, ["eager", "scripted"], 2), (False, ["eager", "scripted", "compiled"], 5)],
)
def test_every_form_runs_in_every_arrangement_but_compiled_processes(machine, quick, modes, rounds):
    figures = measure(quick)
    assert {name.removeprefix("execution.") for name in figures} == {
        f"{mode}.{arrangement}" for mode in modes for arrangement in ("one", "two_threads", "two_processes")
    } - {"compiled.two_processes"}
    assert {figure.runs for figure in figures.values()} == {rounds}
    assert figures["execution.eager.one"].value == 16.0
    assert figures["execution.eager.two_threads"].value == 16.0 + 8.0, "each on a core of its own"
    assert figures["execution.eager.two_processes"].value == 20.0
    assert all(model.closed for model in machine.models)
    processes = [(mode, core) for _, mode, core, _ in machine.order]
    assert sorted(processes) == sorted([(GraphMode(mode), core) for mode in modes[:2] for core in (0, 1)] * rounds)
    assert [mode for mode, _ in processes[:4]] == [GraphMode.EAGER] * 2 + [GraphMode.SCRIPTED] * 2, "in turns"


def test_what_is_run_before_the_others_are_ready_does_not_count(machine):
    model = Model(machine.clock)

    def wait():
        machine.clock.now_s += 1000.0

    found = []
    thread = threading.Thread(target=lambda: found.append(execution._loop(model, 0, 1.03125, wait)))
    thread.start()
    thread.join()
    assert found == [17 / 1.0625], "the last one with all of its time"


@pytest.mark.parametrize("fails", [0, 1])
def test_a_worker_that_fails_ends_the_others_and_is_told_of(machine, monkeypatch, fails):
    def new_executor(self, _items):
        if machine.clock.core == fails:
            raise MemoryError("no room for buffers")
        return self

    monkeypatch.setattr(Model, "new_executor", new_executor)
    with pytest.raises(MemoryError, match="no room for buffers"):
        execution._in_threads(Model(machine.clock), 2, 1.0)
