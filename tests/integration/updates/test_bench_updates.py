"""The benchmark of online updates with its real processes, at a small scale."""

import os
from functools import partial
from types import SimpleNamespace

import pytest
from rich.progress import Progress

from hebe.cli.terminal.server_process import ServerProcess
from hebe.load_generator.queries import query_pool
from hebe.load_generator.session import run_load
from hebe_lab.bench.embeddings import updates as embeddings_updates
from hebe_lab.bench.embeddings.update_producer import ProducerProcess
from hebe_lab.bench.serving import bench_model

_TINY = embeddings_updates._Effort(scale=0.0002, turns=2, probe_s=0.1, rounds=2, resolution=0.5, visible_s=0.6)


@pytest.fixture
def processes(tmp_path, monkeypatch):
    """What is measured is small, and a slow machine is borne with; the ids of the processes that ran."""
    started = []

    def note(kind):
        enter = kind.__enter__

        def entered(self):
            enter(self)
            started.append(self._process.pid)
            return self

        monkeypatch.setattr(kind, "__enter__", entered)

    note(ServerProcess)
    note(ProducerProcess)
    monkeypatch.setattr(bench_model, "BENCH_MODELS", tmp_path / "models")
    monkeypatch.setattr(embeddings_updates, "_QUICK", _TINY)
    monkeypatch.setattr(embeddings_updates, "SLA_MS", 5_000.0)
    monkeypatch.setattr(embeddings_updates, "_QUIET_WITHIN_S", 1.0)
    monkeypatch.setattr(embeddings_updates, "ROWS_PER_S", 4_000.0)
    monkeypatch.setattr(query_pool, "LEAST_ITEMS", 1 << 10)
    monkeypatch.setattr(embeddings_updates, "ProducerProcess", partial(ProducerProcess, niceness=0))
    return started


def measure():
    with Progress(disable=True) as progress:
        return {figure.name: figure for figure in embeddings_updates.updates_figures(True, progress)}


def assert_gone(processes):
    assert len(processes) == 2
    for pid in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


class Trainer:
    """Whether it sends now."""

    def __init__(self, monkeypatch):
        self.sends = False
        start, stop = ProducerProcess.start, ProducerProcess.stop

        def started(process):
            start(process)
            self.sends = True

        def stopped(process):
            self.sends = False
            return stop(process)

        monkeypatch.setattr(ProducerProcess, "start", started)
        monkeypatch.setattr(ProducerProcess, "stop", stopped)


def one_load(target, workload):
    """In place of the search, which has tests of its own and takes minutes."""
    run_load(target, workload, 20.0, 0.5)
    return SimpleNamespace(crossing=SimpleNamespace(qps=20.0))


def test_measures_what_it_promises(processes, monkeypatch):
    trainer, turns = Trainer(monkeypatch), []

    def one_turn(target, workload, **_):
        turns.append(trainer.sends)
        return one_load(target, workload)

    monkeypatch.setattr(embeddings_updates, "find_qps", one_turn)
    figures = measure()
    assert turns == [False, True, True, False], "with and without updates, in an order that favours neither"
    assert {name: figure.target for name, figure in figures.items()} == {
        "updates.qps_kept": ">= 0.9",
        "updates.applied_over_sent": ">= 0.98",
        "updates.qps_without": None,
        "updates.visible_p50_s": None,
        "updates.visible_p50_s.persistent_db": None,
        "updates.visible_p50_s.volatile_db": None,
        "updates.visible_p99_s": None,
        "updates.visible_p99_s.persistent_db": None,
        "updates.visible_p99_s.volatile_db": None,
    }
    assert figures["updates.qps_without"].value > 0
    assert 0 <= figures["updates.applied_over_sent"].value <= 1
    assert "6,400 rows of 32 floats in 8 tables" in figures["updates.qps_kept"].note
    for tier in ("", ".persistent_db", ".volatile_db"):
        half, most = figures[f"updates.visible_p50_s{tier}"].value, figures[f"updates.visible_p99_s{tier}"].value
        assert 0 < half <= most
    assert figures["updates.visible_p99_s.persistent_db"].value <= figures["updates.visible_p99_s"].value
    assert_gone(processes)


def test_an_interrupt_leaves_nothing_behind(processes, monkeypatch):
    def interrupted(*_arguments, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(embeddings_updates, "find_qps", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measure()
    assert_gone(processes)
