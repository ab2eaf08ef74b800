"""The command itself; the load that it sends is `tests/integration/commands/test_load_generator.py`."""

import json
from dataclasses import replace

import pytest

from hebe.cli.main import main
from hebe.load_generator import discovery, session
from hebe.load_generator.error import LoadError, LoadUsageError
from hebe.load_generator.queries.model_inputs import ModelInputs
from hebe.spec import SlaTarget

from .load_reports import SLA, found, report


@pytest.fixture
def server(monkeypatch):
    """Stands in for the server and the load: what was asked for, and what is answered."""
    asked = {}

    def run_load(target, workload, rate, duration_s, warm_up_s, sla, **options):
        asked.update(target=target, workload=workload, rate=rate, duration_s=duration_s, warm_up_s=warm_up_s, sla=sla)
        asked.update(options)
        if asked.get("ended_by"):
            options["on_interrupt"](asked["ended_by"])
        return asked.get("report") or report(sla)

    def find_qps(target, workload, sla, **options):
        asked.update(target=target, workload=workload, sla=sla, **options)
        return found(rounds=options["rounds"], cpu_share=asked.get("cpu_share", 0.1))

    monkeypatch.setattr("hebe.machine.process_limits.allow_many_connections", lambda: asked.update(raised=True))
    monkeypatch.setattr(session, "run_load", run_load)
    monkeypatch.setattr(session, "find_qps", find_qps)
    monkeypatch.setattr(discovery, "discover", lambda _: ModelInputs((), asked.get("told", SLA)))
    return asked


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as exit_:
        main(["load", *map(str, arguments)])
    captured = capsys.readouterr()
    return exit_.value.code or 0, captured.out, captured.err


def test_help_has_examples(capsys):
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert "Example: hebe load http://127.0.0.1:8000 --model dlrm-rmc1 --rate 100" in " ".join(out.split())
    assert "Exit code: 0 it was measured" in " ".join(out.split())
    assert "(default: 5; at least 2)" in " ".join(out.replace("│", " ").split())


def test_a_run_is_a_table(server, capsys):
    code, out, _ = run(capsys, "h:8000", "--model", "m", "--rate", 50)
    assert code == 0
    assert server["target"].endpoint.url == "http://h:8000"
    assert (server["rate"], server["duration_s"], server["sla"]) == (50, 10.0, SLA)
    assert "20.0% of arrivals in 20 ms, missed" in out


@pytest.mark.usefixtures("server")
def test_what_the_host_gave_to_others_meanwhile_is_told(capsys, monkeypatch):
    monkeypatch.setattr("hebe.cli.terminal.host_watch.HostWatch.denied_share", lambda _: 0.37)
    for doing in (("--rate", 50), ("--find-qps",)):
        _, out, err = run(capsys, "h:8000", "--model", "m", *doing, "--json")
        assert json.loads(out)["denied_share"] == 0.37
        assert "gave 37% of the cores' time to others. It may be too low: measure again when" in err


def test_a_search_is_a_table_of_probes_and_a_result(server, capsys):
    code, out, _ = run(capsys, "grpc://h", "--model", "m", "--find-qps", "--duration", 3, "--rounds", 4)
    assert code == 0
    assert (server["probe_s"], server["rounds"]) == (3.0, 4)
    assert "150 queries/s (95% interval 140 to 160)" in " ".join(out.split())
    assert "a rough one" not in out


@pytest.mark.usefixtures("server")
def test_without_a_rate_it_searches(capsys):
    code, out, _ = run(capsys, "h:8000", "--model", "m", "--rounds", 4)
    assert code == 0
    assert "150 queries/s (95% interval 140 to 160)" in " ".join(out.split())


def test_what_limited_a_search_is_in_the_table_and_in_the_json(server, capsys):
    _, out, _ = run(capsys, "h:8000", "--model", "m", "--find-qps")
    assert "bottleneck" not in out
    server["cpu_share"] = 0.97
    _, out, err = run(capsys, "h:8000", "--model", "m", "--find-qps", "--json")
    assert "itself a bottleneck: the generator used 97% of a core" in " ".join(err.split())
    found = json.loads(out)["find_qps"]
    assert (found["bottlenecks"], found["remarks"]) == (["the generator used 97% of a core"], ["caches look warm"])


@pytest.mark.usefixtures("server")
def test_an_interval_of_two_rounds_is_said_to_be_rough(capsys):
    _, out, _ = run(capsys, "h:8000", "--model", "m", "--find-qps", "--rounds", 2)
    assert "With --rounds 2 the interval is a rough one" in out


def test_json_is_one_object_and_the_table_goes_elsewhere(server, capsys):  # noqa: ARG001
    code, out, err = run(capsys, "h:8000", "--model", "m", "--rate", 50, "--json")
    assert code == 0
    printed = json.loads(out)
    assert (printed["model"], printed["run"]["answers"], printed["run"]["sla_met"]) == ("m", 100, False)
    assert "latency p50" in err
    _, out, _ = run(capsys, "h:8000", "--model", "m", "--find-qps", "--json")
    assert json.loads(out)["find_qps"]["qps"] == 150


@pytest.mark.parametrize("mode", [["--rate", "50"], ["--find-qps"]])
@pytest.mark.parametrize("suffix", [".html", ".svg"])
def test_plots(server, capsys, tmp_path, mode, suffix):  # noqa: ARG001
    plot = tmp_path / "plots[" / f"b] [draft] load{suffix}"
    code, out, _ = run(capsys, "h:8000", "--model", "m", *mode, "--plot", plot)
    assert code == 0
    assert f"Plots: {plot}" in out
    assert "<svg" in plot.read_text()


@pytest.mark.parametrize("mode", [["--rate", "50"], ["--find-qps"]])
@pytest.mark.parametrize("fault", [ValueError("no such font"), PermissionError(13, "Permission denied")])
@pytest.mark.usefixtures("server")
def test_a_plot_that_fails_does_not_take_the_results_with_it(capsys, monkeypatch, tmp_path, mode, fault):
    def fail(*_):
        raise fault

    monkeypatch.setattr("hebe.report.html.write_whole", fail)
    for suffix in ("svg", "html"):
        plot = tmp_path / f"x.{suffix}"
        code, out, err = run(capsys, "h:8000", "--model", "m", *mode, "--plot", plot, "--json")
        printed = json.loads(out)
        assert printed["plot_error"] == f"{plot}: {fault.strerror if isinstance(fault, OSError) else fault}"
        assert "run" in printed or "find_qps" in printed
        assert "the plots are not written" in err
        assert "Plots:" not in err
        assert code == 1


def test_options_reach_target_and_workload(server, capsys, monkeypatch):
    monkeypatch.setenv("HEBE_API_TOKEN", "secret")
    options = ["--sizes", "fixed:7", "--arrivals", "constant", "--keys", "zipf:1.1", "--seed", 5, "--version", "3"]
    options += ["--timeout-ms", 40, "--priority", 2, "--connections", 9, "--max-key", 99, "--encoding", "json"]
    run(capsys, "h:8000", "--model", "m", "--rate", 1, *options)
    target, workload = server["target"], server["workload"]
    assert (target.version, target.timeout_ms, target.priority, target.connections) == ("3", 40.0, 2, 9)
    assert server["raised"], "files that so many connections take"
    assert (target.max_key, target.encoding, target.api_token) == (99, "json", "secret")
    assert (workload.sizes.size, workload.keys.alpha, workload.seed) == (7, 1.1, 5)
    assert server["pool_bytes"] is None
    for mode in (("--rate", 1), ("--find-qps",)):
        run(capsys, "h:8000", "--model", "m", *mode, "--pool-memory", "1G")
        assert server["pool_bytes"] == 1 << 30


@pytest.mark.parametrize(
    ("told", "options", "expected"),
    [
        (SLA, [], SLA),
        (SLA, ["--sla-ms", "5"], SlaTarget(5.0, 99.0)),
        (SLA, ["--percentile", "90"], SlaTarget(20.0, 90.0)),
        (None, ["--sla-ms", "5"], SlaTarget(5.0, 95.0)),
        (None, [], None),
    ],
)
def test_the_sla_is_the_options_completed_by_the_server(server, capsys, told, options, expected):
    server["told"] = told
    code, _, _ = run(capsys, "h:8000", "--model", "m", "--rate", 1, *options)
    assert code == 0
    assert server["sla"] == expected


@pytest.mark.parametrize(("ended_by", "expected"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)])
def test_an_interrupted_run_still_prints(server, capsys, ended_by, expected):
    server.update(report=report(cut_short="interrupted"), ended_by=ended_by)
    code, out, _ = run(capsys, "h:8000", "--model", "m", "--rate", 1)
    assert code == expected
    assert "latency p50" in out
    assert "interrupted" in out
    code, out, _ = run(capsys, "h:8000", "--model", "m", "--rate", 1, "--json")
    assert (code, json.loads(out)["run"]["cut_short"]) == (expected, "interrupted")


@pytest.mark.parametrize(("gone", "expected"), [("connection refused", 1), ("", 0)])
def test_a_server_that_answers_no_more_after_a_run_is_exit_code_1(server, capsys, gone, expected):
    server["report"] = replace(report(), server_gone=gone)
    server["report"].latencies.fail("connection refused", 40)
    code, out, _ = run(capsys, "h:8000", "--model", "m", "--rate", 1)
    assert code == expected
    assert "40 of 140 queries failed: connection refused" in out
    assert ("The server is gone" in out) is bool(gone)


def test_the_token_may_come_from_a_file(server, capsys, tmp_path):
    (tmp_path / "token").write_text("secret\n")
    assert run(capsys, "h:8000", "--model", "m", "--rate", 1, "--api-token-file", tmp_path / "token")[0] == 0
    assert server["target"].api_token == "secret"
    _, out, _ = run(capsys, "--help")
    assert "can see an option in the list of processes (ps)" in " ".join(out.replace("│", " ").split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rate", "1", "--find-qps"], "either --rate QPS or --find-qps"),
        (["--rate", "0"], "must be a positive number"),
        (["--rate", "1", "--duration", "-1"], "must be a positive number"),
        (["--rate", "1", "--warm-up", "-1"], "must be at least 0"),
        (["--find-qps", "--rounds", "1"], "at least 2"),
        (["--rate", "1", "--rounds", "3"], "is for a search, without --rate"),
        (["--rate", "1", "--seed", "-1"], "must be at least 0"),
        (["--rate", "1", "--pool-memory", "much"], "write bytes as 4096, 64K, 800M or 12G"),
        (["--rate", "1", "--plot", "x.png"], "must end in .html or .svg"),
        (["--rate", "1", "--plot", "/dev/null/x.svg"], "nothing can be written to /dev/null (Not a directory)"),
    ],
)
def test_wrong_usage_is_exit_code_2(server, capsys, arguments, message):
    code, _, err = run(capsys, "h:8000", "--model", "m", *arguments)
    assert code == 2
    assert message in " ".join(err.replace("│", " ").split())
    assert "target" not in server


def test_a_plot_that_cannot_be_written_is_said_before_the_run(server, capsys, tmp_path):
    (tmp_path / "plots.html").mkdir()
    code, _, err = run(capsys, "h:8000", "--model", "m", "--rate", 1, "--plot", tmp_path / "plots.html")
    assert (code, "plots.html (Is a directory)" in " ".join(err.replace("│", " ").split())) == (2, True)
    # Root may write there by the permissions, and yet nobody can.
    code, _, err = run(capsys, "h:8000", "--model", "m", "--rate", 1, "--plot", "/proc/new/x.html")
    assert (code, "nothing can be written to /proc (" in " ".join(err.replace("│", " ").split())) == (2, True)
    assert "target" not in server


def test_a_percentile_needs_a_bound(server, capsys):
    server["told"] = None
    code, _, err = run(capsys, "h:8000", "--model", "m", "--rate", "1", "--percentile", "90")
    assert code == 2
    assert "give --sla-ms too" in " ".join(err.replace("│", " ").split())


def test_a_file_that_cannot_be_read_is_one_line_and_exit_code_1(server, capsys):  # noqa: ARG001
    code, _, err = run(capsys, "h:1", "--model", "m", "--rate", "1", "--arrivals", "trace:none.csv")
    assert code == 1
    assert "none.csv: cannot be read" in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("url", "arguments", "message"),
    [
        ("ftp://h", [], "must be http://HOST:PORT"),
        ("h:1", ["--protocol", "thrift"], "must be http or grpc"),
        ("h:1", ["--connections", "0"], "Invalid value: --connections is 0"),
        ("h:1", ["--priority", "-1"], "Invalid value: --priority is -1"),
        ("h:1", ["--answer-timeout", "0"], "Invalid value: --answer-timeout is 0.0"),
        ("h:1", ["--max-key", "-1"], "Invalid value: --max-key is -1"),
        ("h:1", ["--timeout-ms", "0"], "Invalid value: --timeout-ms is 0.0"),
        ("h:1", ["--sla-ms", "0"], "0: must be a finite number of more than 0"),
        ("h:1", ["--percentile", "100"], "must lie between 0 and 100"),
        ("h:1", ["--ca-file", "x.pem"], "--ca-file is x.pem: http://h:1 does not speak TLS"),
        ("grpc://h:1", ["--encoding", "json"], "--encoding is json: gRPC carries binary tensors only"),
    ],
)
def test_what_is_no_target_is_wrong_usage(server, capsys, url, arguments, message):
    code, _, err = run(capsys, url, "--model", "m", "--rate", "1", *arguments)
    assert code == 2
    assert message in " ".join(err.replace("│", " ").split())
    assert "target" not in server


@pytest.mark.parametrize("measured", [["--rate", "1"], ["--find-qps"]])
def test_what_the_load_finds_to_be_no_load_is_wrong_usage(server, capsys, monkeypatch, measured):  # noqa: ARG001
    def refuse(*_, **__):
        raise LoadUsageError("duration is 3 s: arrivals repeat every 10 s")

    monkeypatch.setattr(session, "run_load", refuse)
    monkeypatch.setattr(session, "find_qps", refuse)
    code, _, err = run(capsys, "h:1", "--model", "m", *measured)
    assert code == 2
    assert "--duration is 3 s: arrivals repeat every 10 s" in " ".join(err.replace("│", " ").split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sizes", "huge"], "--sizes: query sizes 'huge': must be one of production, mlperf"),
        (["--keys", "zipf:-1"], "alpha"),
        (["--sizes", "normal:-5:3"], "the mean is -5 items"),
        (["--sizes", "fixed:99999999999"], "at most 2,147,483,647"),
        (["--arrivals", "burst:0:1:2"], "--arrivals: "),
    ],
)
def test_what_is_no_workload_is_wrong_usage(server, capsys, arguments, message):  # noqa: ARG001
    code, _, err = run(capsys, "h:1", "--model", "m", "--rate", "1", *arguments)
    assert code == 2
    assert message in " ".join(err.replace("│", " ").split())


def test_a_server_that_cannot_be_reached_is_one_line(server, capsys, monkeypatch):  # noqa: ARG001
    def refuse(_target):
        raise LoadError("http://h:1 cannot be reached: Connection refused")

    monkeypatch.setattr(discovery, "discover", refuse)
    assert run(capsys, "h:1", "--model", "m", "--rate", 1) == (
        1, "", "error: http://h:1 cannot be reached: Connection refused\n",
    )  # fmt: skip
