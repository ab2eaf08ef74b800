"""Which rate of the load generator counts as sustained. Not how high it is."""

import shutil
import sys
from types import SimpleNamespace

import pytest
from rich.progress import Progress

from hebe.workload.query_sizes import FixedSizes
from hebe_lab.bench.echo import generator
from hebe_lab.bench.serving.closed_loop import ClosedLoopResult


@pytest.fixture
def sustains(monkeypatch):
    """The rate that a run sustains, as the benchmark finds it where the generator bears up to `most` queries/s."""

    def find(most, first, step=2.0, **report):
        rates = []

        def run_load(_target, _workload, rate, _seconds, **_options):
            rates.append(rate)
            sent = rate if rate <= most else 0.9 * rate
            return SimpleNamespace(
                throughput_qps=report.get("throughput", 1.0) * sent,
                achieved_qps=rate,
                bottlenecks=report.get("bottlenecks", ()),
                latencies=SimpleNamespace(answers=100 - report.get("lost", 0), arrivals=100),
            )

        monkeypatch.setattr(generator, "run_load", run_load)
        return generator._sustained_qps("http://127.0.0.1:9", FixedSizes(1), first, 1.0, step), rates

    return find


def test_the_rate_goes_up_until_it_is_not_borne_which_is_tried_twice(sustains):
    assert sustains(1000.0, 100.0) == (800.0, [100.0, 200.0, 400.0, 800.0, 1600.0, 1600.0])


def test_a_rate_that_is_too_high_goes_down_to_the_first_that_is_borne(sustains):
    found, rates = sustains(1000.0, 3200.0)
    assert found == 800.0
    assert rates == [3200.0] * 2 + [1600.0] * 2 + [800.0]


def test_three_in_a_hundred_may_lag(sustains):
    assert sustains(1000.0, 800.0, throughput=0.975)[0] == pytest.approx(780.0)
    with pytest.raises(RuntimeError, match="does not even sustain"):
        sustains(1000.0, 800.0, throughput=0.965)


@pytest.mark.parametrize("report", [{"bottlenecks": ("the generator lags",)}, {"lost": 1}])
def test_complaints_and_lost_answers_mean_that_it_is_not_borne(sustains, report):
    with pytest.raises(RuntimeError, match=r"does not even sustain 6 queries/s: is the machine idle\?"):
        sustains(1000.0, 800.0, **report)


@pytest.fixture
def parts(monkeypatch, tmp_path):
    """A benchmark whose processes are stood for; what the server was asked."""
    found = SimpleNamespace(loops=[], checked=0, rates={})

    class Server:
        http_url = "http://127.0.0.1:9"

        def __init__(self, repository, log, options):
            assert (repository, log.name, options) == (tmp_path, "server.log", ["--workers", "1", "--no-admission"])

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def check(self):
            found.checked += 1

    def closed_loop(url, _model, sizes, concurrency, _seconds, cores):
        found.loops.append((url, sizes, concurrency, cores))
        return ClosedLoopResult(40.0, 1.0, 2.0, 40, 0, 0)

    def sustained(url, _sizes, first_qps, *_):
        found.rates.setdefault(url, []).append(first_qps)
        return 1000.0 if url.startswith("http") else 400.0

    class Echo:
        def __init__(self, core):
            found.echo_core = core

        def __enter__(self):
            return {"http": "http://127.0.0.1:1", "grpc": "grpc://127.0.0.1:2"}

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(generator, "available_cores", lambda: (4, 5, 6))
    monkeypatch.setattr(generator, "keep_large_allocations", lambda: None)
    monkeypatch.setattr(generator, "bench_repository", lambda *_: tmp_path)
    monkeypatch.setattr(generator, "ServerProcess", Server)
    monkeypatch.setattr(generator, "closed_loop", closed_loop)
    monkeypatch.setattr(generator, "_sustained_qps", sustained)
    monkeypatch.setattr(generator, "_echo", Echo)
    monkeypatch.setattr(generator, "pinned", lambda cores: setattr(found, "own_cores", cores) or Echo(found.echo_core))
    return found


def test_headroom_is_over_what_a_server_of_the_same_queries_answers(parts):
    with Progress(disable=True) as progress:
        figures = {figure.name: figure for figure in generator.run(False, progress)}
    assert {name: figure.value for name, figure in figures.items()} == {
        "load.server_qps": 40.0,
        "load.generator_headroom": 25.0,
        "load.generator_headroom.grpc": 10.0,
        "load.generator_qps.64kib": 1000.0,
    }
    assert {figure.runs for figure in figures.values()} == {3}
    assert parts.loops == [("http://127.0.0.1:9", "production", 4, (4, 5))] * 3
    assert parts.checked == 3, "a server that has died gives no figure"
    assert (parts.echo_core, parts.own_cores) == (6, (4,))
    assert parts.rates["grpc://127.0.0.1:2"] == [200.0] * 3, "from five times the server's rate on"


def test_one_core_is_not_enough(parts, monkeypatch):
    monkeypatch.setattr(generator, "available_cores", lambda: (0,))
    with Progress(disable=True) as progress, pytest.raises(RuntimeError, match="needs two cores"):
        generator.run(True, progress)
    assert not parts.loops


def test_an_echo_that_does_not_come_up_is_an_error(monkeypatch):
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(RuntimeError, match="the echo server has ended before it listened"), generator._echo(0):
        pass
