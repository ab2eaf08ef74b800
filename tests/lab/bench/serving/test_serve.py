"""What the figures of serving are made of, with processes that are stood for. Not how large they are."""

from types import SimpleNamespace

import pytest
from rich.progress import Progress

from hebe.models.catalog import entry
from hebe_lab.bench.serving import serve
from hebe_lab.bench.serving.closed_loop import ClosedLoopResult
from hebe_lab.bench.serving.in_process import InProcessResult


@pytest.fixture
def processes(monkeypatch, tmp_path):
    """Two cores; what ran, in order, and what a loop against a server of so many workers gives."""
    found = SimpleNamespace(order=[], refused=0, failed=0, running=[])

    class Server:
        def __init__(self, repository, log, options):
            assert repository == tmp_path
            self.options, self.log = options, log
            self.http_url = f"http://{log.stem}"
            self.grpc_address = log.stem

        def __enter__(self):
            found.running.append(self.log.stem)
            return self

        def __exit__(self, *_):
            found.running.remove(self.log.stem)

        @property
        def resident_bytes(self):
            return (100 + 5 * int(self.options[1])) << 20

    def in_process(repository, _model, items, _seconds, core):
        assert repository == tmp_path
        found.order.append(("in process", items, core))
        return InProcessResult(100.0, 2.0)

    def closed_loop(url, _model, sizes, concurrency, _seconds, cores=None):
        assert url.partition("://")[2] in found.running
        found.order.append((url, sizes, concurrency, cores))
        return ClosedLoopResult(96.0 if "grpc" in url else 90.0, 2.5, 9.0, 10, found.refused, found.failed)

    monkeypatch.setattr(serve, "bench_repository", lambda *_: tmp_path)
    monkeypatch.setattr(serve, "available_cores", lambda: (0, 1))
    monkeypatch.setattr(serve, "ServerProcess", Server)
    monkeypatch.setattr(serve, "in_process", in_process)
    monkeypatch.setattr(serve, "closed_loop", closed_loop)
    monkeypatch.setattr(serve, "_items_of", lambda *_: 9)
    return found


def measure():
    with Progress(disable=True) as progress:
        figures = serve.run(True, progress)
        assert all(task.finished for task in progress.tasks)
    return {figure.name: figure for figure in figures}


def test_served_over_in_process_and_what_is_added_to_it(processes):
    figures = measure()
    assert {name: (figure.value, figure.target) for name, figure in figures.items()} == {
        "serve.inprocess_qps": (100.0, None),
        "serve.over_inprocess.http": (0.9, ">= 0.90"),
        "serve.over_inprocess.grpc": (0.96, ">= 0.90"),
        "serve.over_inprocess.grpc.one_thread": (0.96, None),
        "serve.overhead_p50_ms.http": (0.5, "< 1"),
        "serve.overhead_p50_ms.grpc": (0.5, "< 1"),
        "serve.rss_two_workers": (pytest.approx(110 / 105), "<= 1.1"),
    }
    assert figures["serve.rss_two_workers"].note == "110 MiB with two workers, 105 MiB with one"
    assert processes.running == []


def test_the_loop_in_process_and_the_servers_take_turns_on_unlike_cores(processes):
    measure()
    turn = [("in process", 256, 1)]
    turn += [(url, "fixed:256", 8, (0,)) for url in ("http://server", "grpc://server", "grpc://one_thread")]
    assert processes.order[: 2 * len(turn)] == turn * 2
    alone = [each for each in processes.order if each[1] in (9, "fixed:9")]
    assert alone[:3] == [
        ("in process", 9, 1),
        ("http://server", "fixed:9", 1, (0,)),
        ("grpc://server", "fixed:9", 1, (0,)),
    ]


@pytest.mark.parametrize("what", ["refused", "failed"])
def test_queries_that_were_not_answered_give_no_figure(processes, what):
    setattr(processes, what, 1)
    with pytest.raises(RuntimeError, match="no figure from that"):
        measure()
    assert processes.running == []


def test_one_core_is_not_enough(processes, monkeypatch):
    monkeypatch.setattr(serve, "available_cores", lambda: (0,))
    with pytest.raises(RuntimeError, match="needs two cores"):
        measure()
    assert processes.order == []


def test_a_small_query_takes_64_kib_of_the_models_inputs(monkeypatch):
    spec = entry("dlrm-rmc1", "small", 1e-6)
    stored = SimpleNamespace(open=lambda _: SimpleNamespace(spec=spec))
    monkeypatch.setattr("hebe.models.repository.repository.ModelRepository", lambda _: stored)
    items = serve._items_of(None, 64 << 10)
    assert pytest.approx(items * (8 * 10 * 80 + 4 * 256), rel=0.06) == 64 << 10
    assert serve._items_of(None, 1) == 1
