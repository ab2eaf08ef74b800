"""The load generator against servers in processes of their own."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hebe.load_generator.discovery import discover
from hebe.load_generator.error import LoadError
from hebe.load_generator.queries.request_body import request_body
from hebe.load_generator.search.qps_search import Workload
from hebe.load_generator.senders.grpc.grpc_sender import GrpcSender
from hebe.load_generator.senders.http_sender import HttpSender
from hebe.load_generator.senders.sender import Outcome
from hebe.load_generator.session import find_qps, run_load
from hebe.load_generator.single_query import ask_one
from hebe.load_generator.target import Target, parse_endpoint
from hebe.spec import SlaTarget
from hebe.workload.arrivals import BurstArrivals, ConstantArrivals
from hebe.workload.query_sizes import FixedSizes
from tests.integration.tiers.forked_hebe import ForkedHebe

SMALL = Workload(sizes=FixedSizes(5))


@contextmanager
def echo_process(*options):
    """An echo server: the process and its ports."""
    command = [sys.executable, "-m", "hebe_lab.bench.echo.echo_server", "--inputs", "2x3", "--dense", "4", *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture(scope="module")
def ports():
    with echo_process() as (_, ports):
        yield ports


@pytest.fixture(scope="module")
def unwell():
    with echo_process("--status", "503") as (_, ports):
        yield ports


def target(ports, protocol, **options):
    endpoint = parse_endpoint(f"{protocol}://127.0.0.1:{ports[protocol + '_port']}")
    return Target(endpoint, options.pop("model", "echo"), **options)


@pytest.mark.parametrize(("protocol", "encoding"), [("http", "binary"), ("http", "json"), ("grpc", "binary")])
def test_all_queries_of_a_run_are_answered(ports, protocol, encoding):
    report = run_load(target(ports, protocol, encoding=encoding), SMALL, 300, 1.0, warm_up_s=0.2)
    assert report.latencies.answers == report.latencies.arrivals == pytest.approx(300, rel=0.25)
    assert report.latencies.items == 5 * report.latencies.answers
    assert report.sla == SlaTarget(100.0, 95.0)
    assert report.connections >= 1


def test_large_queries_over_few_connections(ports):
    workload = Workload(sizes=FixedSizes(5000))
    report = run_load(target(ports, "http", connections=2), workload, 100, 0.5, warm_up_s=0.1)
    assert report.latencies.answers == report.latencies.arrivals > 0
    assert report.connections == 2


@pytest.mark.parametrize(("protocol", "kind"), [("http", "503"), ("grpc", "UNAVAILABLE")])
def test_refusals_are_refusals(unwell, protocol, kind):
    report = run_load(target(unwell, protocol), SMALL, 100, 0.5, warm_up_s=0.1)
    assert report.latencies.refused[kind] == report.latencies.arrivals > 0
    assert report.latencies.sla_attainment == 0
    assert report.messages == {kind: "refused by request"}


def test_a_server_that_understands_nothing_is_not_loaded():
    with echo_process("--status", "400") as (_, ports):
        with pytest.raises(LoadError, match="does not answer a query to echo: 400 refused by request"):
            run_load(target(ports, "http"), SMALL, 100, 0.5)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_server_that_dies_fails_the_rest_and_ends_the_run(protocol):
    with echo_process("--service-ms", "1") as (process, ports):
        killed = []

        def kill(progress):
            if progress.elapsed_s > 0.3 and not killed:
                process.kill()
                killed.append(progress)

        report = run_load(target(ports, protocol), SMALL, 200, 1.0, warm_up_s=0, on_progress=kill)
    assert report.latencies.answers > 0
    assert report.latencies.refused == {}, "who is dead refuses nothing"
    assert report.server_gone.startswith(("connection refused", "cannot connect"))
    # A process that dies resets the connections that it was about to take.
    assert set(report.latencies.failed) <= {"connection closed", "connection refused", "cannot connect"}
    assert report.latencies.failed["connection refused"] > 0
    assert report.latencies.arrivals == pytest.approx(200, rel=0.3)


@pytest.mark.parametrize("waits_s", [0.0, 0.05])
@pytest.mark.parametrize(("protocol", "kind"), [("http", HttpSender), ("grpc", GrpcSender)])
def test_one_query_to_a_server_that_dies_meanwhile_fails(protocol, kind, waits_s):
    with echo_process("--service-ms", "500") as (process, ports):
        to = target(ports, protocol)
        pool = SMALL.pool(discover(to), 1 << 20)

        async def ask():
            sender = kind(to, request_body(to, pool))
            await sender.open()
            try:
                asyncio.get_running_loop().call_later(waits_s, process.kill)
                return await ask_one(sender, pool, SMALL.sizes, np.random.default_rng(0), 20.0, asyncio.Event())
            finally:
                await sender.close()

        answer = asyncio.run(ask())
    assert answer.outcome is Outcome.FAILED
    # A process that dies resets the connections that it was about to take.
    assert answer.kind in ("connection closed", "connection refused", "cannot connect")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_search_whose_server_dies_says_so(protocol):
    with echo_process() as (process, ports):
        probes = []

        def kill(probe, _crossing):
            probes.append(probe)
            if len(probes) == 2:
                process.kill()

        with pytest.raises(LoadError, match="the server answers no more, not even one query alone after probe 3"):
            find_qps(target(ports, protocol), SMALL, probe_s=0.3, warm_up_s=0, on_probe=kill)
    assert len(probes) == 2


def test_a_run_in_which_nothing_arrives_is_not_sent(ports):
    with pytest.raises(LoadError, match=r"no query arrives in 1 s at 0\.1 queries/s"):
        run_load(target(ports, "http"), replace(SMALL, arrivals=ConstantArrivals()), 0.1, 1.0, warm_up_s=0.5)


def test_a_run_of_bursts_holds_whole_periods(ports):
    bursts = replace(SMALL, arrivals=BurstArrivals(9.0, 0.1, 0.5))
    with pytest.raises(LoadError, match=r"duration is 0\.7 s: arrivals repeat every 0\.5 s.* 1 s holds them"):
        run_load(target(ports, "http"), bursts, 400, 0.7, warm_up_s=0.2)
    report = run_load(target(ports, "http"), bursts, 400, 1.0, warm_up_s=0.2)
    assert report.achieved_qps == pytest.approx(400, rel=0.2)


def test_too_few_different_keys_are_remarked_on(ports):
    report = run_load(target(ports, "http"), Workload(sizes=FixedSizes(500)), 200, 0.5, warm_up_s=0, pool_bytes=1 << 16)
    (remark,) = report.remarks
    assert "feature_0 (and 1 more inputs): the queries named at most" in remark
    assert run_load(target(ports, "http"), SMALL, 100, 0.5, warm_up_s=0).remarks == ()


def test_a_run_with_one_connection_says_that_queries_waited():
    with echo_process("--service-ms", "20") as (_, ports):
        report = run_load(target(ports, "http", connections=1), SMALL, 200, 0.5, warm_up_s=0)
    assert report.waited > 0
    assert any("--connections" in reason for reason in report.bottlenecks)
    assert report.latencies.percentile_s(99) > 0.1


def test_the_search_finds_the_limit_of_a_server_of_known_speed():
    # One query every 5 ms, one after the other: 200 queries/s at most. In runs as short as these a quarter of a second
    # holds with somewhat more, and on a machine on which others stop for a while what runs here with somewhat less.
    with echo_process("--service-ms", "5") as (_, ports):
        seen = []
        found = find_qps(
            target(ports, "http"),
            SMALL,
            SlaTarget(250.0, 80.0),
            probe_s=0.4,
            warm_up_s=0.1,
            rounds=2,
            resolution=0.3,
            on_probe=lambda probe, crossing: seen.append((probe, crossing)),
        )
    assert 40 < found.crossing.qps < 600
    assert found.crossing.low_qps < found.crossing.qps < found.crossing.high_qps
    assert [probe for probe, _ in seen] == list(found.probes)
    assert {probe.passed for probe in found.probes} == {True, False}
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["qps"] == found.crossing.qps


def test_ctrl_c_ends_a_run_and_keeps_what_was_measured(ports):
    interrupted = []

    def interrupt(progress):
        if progress.answers > 20 and not interrupted:
            interrupted.append(progress)
            os.kill(os.getpid(), signal.SIGINT)

    report = run_load(target(ports, "http"), SMALL, 200, 60, 0.1, on_progress=interrupt, catch_interrupt=True)
    assert report.cut_short == "interrupted"
    assert 20 < report.latencies.answers < 6000
    assert report.latencies.failed.total() == 0


def test_ctrl_c_ends_a_search(ports):
    def interrupt(_probe, _crossing):
        os.kill(os.getpid(), signal.SIGINT)

    found = find_qps(target(ports, "http"), SMALL, probe_s=0.3, warm_up_s=0, on_probe=interrupt, catch_interrupt=True)
    assert found.interrupted
    assert found.crossing is None
    assert len(found.probes) == 1


def test_command_line_in_a_process_of_its_own(ports, tmp_path):
    url = f"grpc://127.0.0.1:{ports['grpc_port']}"
    options = ["--rate", "100", "--duration", "0.3", "--warm-up", "0", "--sizes", "fixed:5", "--json"]
    stdout, stderr = tmp_path / "stdout", tmp_path / "stderr"
    load = ForkedHebe(["load", url, "--model", "echo", *options], stdout, stderr)
    try:
        assert load.wait(60) == 0, stderr.read_text()
    finally:
        load.kill()
        load.wait()
        load.close()
    run = json.loads(stdout.read_text())["run"]
    assert run["answers"] == run["arrivals"] > 0
    assert "latency p99.9" in stderr.read_text()


def handles(process, number):
    """Whether it has a handler for the signal, as it has once the command line runs."""
    (caught,) = (line for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if "SigCgt" in line)
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_signal_ends_the_command_whatever_it_is_at(ports, protocol, tmp_path):
    url, rng = f"{protocol}://127.0.0.1:{ports[f'{protocol}_port']}", random.Random(0)
    arguments = ["load", url, "--model", "echo", "--rate", "500", "--duration", "600", "--sizes", "fixed:5"]
    started = []
    try:
        for _ in range(4):
            five = []
            for index in range(len(started), len(started) + 5):
                number = (signal.SIGTERM, signal.SIGHUP)[index % 2]
                files = tmp_path / f"stdout-{index}", tmp_path / f"stderr-{index}"
                five.append((ForkedHebe(arguments, *files), number, files))
                started.append(five[-1][0])
            for process, number, _ in five:
                while not handles(process, number):
                    time.sleep(0.01)
            time.sleep(0.5)
            for process, number, _ in five:
                time.sleep(rng.uniform(0.0, 0.4))
                os.kill(process.pid, number)
            for process, number, files in five:
                assert process.wait(30) == 128 + number
                assert "Traceback" not in files[1].read_text()
    finally:
        for process in started:
            process.kill()
            process.wait()
            process.close()
    assert any("ended early" in path.read_text() for path in tmp_path.glob("stdout-*")), "what was measured is shown"
