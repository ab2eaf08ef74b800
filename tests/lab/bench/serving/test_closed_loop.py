"""What a closed loop counts, on a clock and with a sender of the test's own."""

import asyncio
import heapq
import subprocess
import sys
from types import SimpleNamespace

import pytest

from hebe.load_generator.queries.model_inputs import ModelInput, ModelInputs
from hebe.load_generator.senders.sender import Outcome
from hebe.load_generator.target import Target, parse_endpoint
from hebe.spec import SlaTarget
from hebe_lab.bench.serving import closed_loop as module
from hebe_lab.bench.serving.closed_loop import ClosedLoopResult, closed_loop

TARGET = Target(parse_endpoint("http://127.0.0.1:9"), "m")
INPUTS = ModelInputs((ModelInput("a", "INT64", (2,), 50),), SlaTarget(10.0))


class Server:
    """Stands for sender and server: takes `service_s` for each query by the test's clock, side by side."""

    def __init__(self, service_s, outcomes=(Outcome.ANSWERED,)):
        self.now_s, self.service_s, self.outcomes = 0.0, service_s, outcomes
        self.under_way, self.most, self.items, self.closed = [], 0, [], False

    def __call__(self, _target, _body):
        return self

    async def open(self):
        self.task = asyncio.create_task(self._answer())

    def send(self, index, items, offset):
        assert offset >= 0
        self.items.append(items)
        heapq.heappush(self.under_way, (self.now_s + self.service_s(index), index))
        self.most = max(self.most, len(self.under_way))

    async def _answer(self):
        while True:
            await asyncio.sleep(0)
            self.now_s, index = heapq.heappop(self.under_way)
            self.on_done(index, self.outcomes[index % len(self.outcomes)], "503", "")

    async def close(self):
        self.task.cancel()
        self.closed = True


@pytest.fixture
def measured(monkeypatch):
    """Runs a loop against a `Server`."""

    def measure(server, sizes="fixed:3", concurrency=1, seconds=3.0):
        monkeypatch.setattr(module, "discover", lambda _: INPUTS)
        monkeypatch.setattr(module, "HttpSender", server)
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: server.now_s))
        return asyncio.run(module._measure(TARGET, sizes, concurrency, seconds))

    return measure


def test_what_ends_after_the_warm_up_and_before_the_end_counts(measured):
    server = Server(lambda _: 0.25)
    result = measured(server, seconds=3.0)  # the warm-up takes a second
    assert result == ClosedLoopResult(4.0, 250.0, 250.0, 12, 0, 0)
    assert server.closed


def test_a_short_loop_warms_up_for_a_third_of_it(measured):
    assert measured(Server(lambda _: 0.0625), seconds=0.75).answered == 12  # from 0.25 s to 1 s, both ends apart


@pytest.mark.parametrize("concurrency", [1, 3, 8])
def test_so_many_queries_are_under_way_at_all_times(measured, concurrency):
    server = Server(lambda index: 0.25 if index % 2 else 0.125)
    result = measured(server, concurrency=concurrency)
    assert server.most == concurrency
    assert len(server.under_way) == concurrency - 1, "but for the one that ended it"
    assert result.answered == pytest.approx(concurrency * 3.0 / 0.1875, rel=0.1)


def test_latencies_are_each_querys_own(measured):
    slow_in_ten = measured(Server(lambda index: 1.0 if index % 10 == 9 else 0.01), concurrency=4, seconds=30.0)
    assert slow_in_ten.p50_ms == pytest.approx(10.0)
    assert slow_in_ten.p99_ms == pytest.approx(1000.0)


def test_what_is_refused_or_failed_is_counted_apart(measured):
    outcomes = (Outcome.ANSWERED, Outcome.ANSWERED, Outcome.REFUSED, Outcome.FAILED)
    result = measured(Server(lambda _: 0.25, outcomes), seconds=4.0)
    assert (result.answered, result.refused, result.failed) == (8, 4, 4)
    assert result.throughput_qps == 2.0


def test_without_an_answer_there_is_no_result(measured):
    with pytest.raises(RuntimeError, match="no query was answered: 6 refused, 6 failed"):
        measured(Server(lambda _: 0.25, (Outcome.REFUSED, Outcome.FAILED)), seconds=3.0)


def test_query_sizes_are_drawn_and_the_same_in_every_run(measured):
    first, second = Server(lambda _: 0.01), Server(lambda _: 0.01)
    for server in (first, second):
        measured(server, sizes="production")
    assert first.items == second.items
    assert len(set(first.items)) > 10


@pytest.fixture
def child(monkeypatch, capsys):
    """Runs what would be a child process in this one; what it was told to measure, and on which cores."""
    told = SimpleNamespace(measured=None, cores=None, stderr="", returncode=0)

    async def measure(*given):
        told.measured = ("asked at once", *given)
        return ClosedLoopResult(4.0, 1.5, 2.5, 12, 1, 2)

    def alone(*given):
        told.measured = ("one blocking call after the other", *given)
        return ClosedLoopResult(1.0, 0.5, 0.5, 3, 0, 0)

    def run(command, **_):
        assert command[:3] == [sys.executable, "-m", "hebe_lab.bench.serving.closed_loop"]
        monkeypatch.setattr(sys, "argv", command[2:])
        module.main()
        return subprocess.CompletedProcess(command, told.returncode, "warned\n" + capsys.readouterr().out, told.stderr)

    monkeypatch.setattr(module, "_measure", measure)
    monkeypatch.setattr(module, "_measure_grpc_alone", alone)
    monkeypatch.setattr(module, "pin_thread", lambda cores: setattr(told, "cores", cores))
    monkeypatch.setattr(module, "interrupt_nobody", lambda: None)
    monkeypatch.setattr(module, "keep_large_allocations", lambda: None)
    monkeypatch.setattr(subprocess, "run", run)
    return told


def test_the_child_is_told_what_to_measure_and_tells_what_it_measured(child):
    result = closed_loop("http://127.0.0.1:9", "m", "fixed:3", 4, 2.5, (0, 2))
    assert result == ClosedLoopResult(4.0, 1.5, 2.5, 12, 1, 2)
    assert child.measured == ("asked at once", TARGET, "fixed:3", 4, 2.5)
    assert child.cores == [0, 2]


@pytest.mark.parametrize(
    ("url", "concurrency", "how"),
    [
        ("grpc://127.0.0.1:9", 1, "one blocking call after the other"),
        ("grpc://127.0.0.1:9", 2, "asked at once"),
        ("http://127.0.0.1:9", 1, "asked at once"),
    ],
)
def test_one_query_at_a_time_over_grpc_is_asked_without_asyncio(child, url, concurrency, how):
    closed_loop(url, "m", "fixed:3", concurrency, 1.0)
    assert child.measured[0] == how
    assert child.cores is None


def test_a_child_that_fails_is_an_error_with_what_it_said(child):
    child.returncode, child.stderr = 1, "x" * 3000 + "ConnectionRefusedError\n"
    with pytest.raises(RuntimeError, match=r"closed loop against http://127\.0\.0\.1:9 failed: x+ConnectionRefusedEr"):
        closed_loop("http://127.0.0.1:9", "m", "fixed:3", 4, 1.0)


def test_a_child_that_does_not_end_is_an_error_too(monkeypatch):
    def run(command, timeout, **_):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(RuntimeError, match=r"closed loop against http://127\.0\.0\.1:9 has not ended after 121 s"):
        closed_loop("http://127.0.0.1:9", "m", "fixed:3", 4, 1.0)


class Channel:
    """A gRPC channel whose calls take `call_s` each by the test's clock."""

    def __init__(self, call_s):
        self.now_s, self.call_s, self.requests = 0.0, call_s, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def unary_unary(self, _method):
        return self

    def __call__(self, request, **_):
        self.requests.append(request)
        self.now_s += self.call_s(len(self.requests))


@pytest.fixture
def called(monkeypatch):
    """Calls one after the other through a `Channel`."""

    def measure(channel, seconds=3.0):
        monkeypatch.setattr(module, "discover", lambda _: INPUTS)
        monkeypatch.setattr(module, "grpc_channel", lambda _: channel)
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: channel.now_s))
        return module._measure_grpc_alone(Target(parse_endpoint("grpc://127.0.0.1:9"), "m"), "fixed:3", seconds)

    return measure


def test_calls_one_after_the_other_count_from_the_warm_up_on(called):
    channel = Channel(lambda number: 0.75 if number == 1 else 0.125)  # the first one connects
    assert called(channel) == ClosedLoopResult(8.0, 125.0, 125.0, 24, 0, 0)
    assert len(set(channel.requests)) > 10, "not the same query over and over"


def test_a_call_that_takes_longer_than_the_loop_is_no_answer(called):
    with pytest.raises(RuntimeError, match="no query was answered"):
        called(Channel(lambda _: 100.0))
