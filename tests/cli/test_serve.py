"""`hebe serve` up to the server that it starts; that one serves is tests/integration's.

What `hebe serve --profile` refuses before anything starts.
"""

import atexit
import json
import os
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from hebe.cli.main import main
from hebe.cli.serve import _interrupt_ends_at_once
from hebe.profiling.files.server_profile import write_server_profile
from hebe.serving import server
from hebe.serving.monitoring import logs
from tests.examples.profiles import profile


@pytest.fixture
def seeming(monkeypatch):
    """Stands in for the server: what it was started with, and how it is announced."""
    asked = {}

    class Server:
        http_port, grpc_port, metrics_port = 8100, 8101, 8102
        left_at_work = False

        def __init__(self, directory, options):
            asked.update(directory=directory, options=options)

        def run(self, announce):
            asked["interrupt"] = signal.getsignal(signal.SIGINT)
            announce(self)

    monkeypatch.setattr(server, "Server", Server)
    monkeypatch.setattr(logs, "configure_logging", lambda *how: asked.update(logging=how))
    return asked


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(["serve", *map(str, arguments)])
    captured = capsys.readouterr()
    return ended.value.code or 0, captured.out, " ".join(captured.err.replace("│", " ").split())


def test_it_says_where_it_listens(seeming, capsys):
    code, out, _ = run(capsys, "models")
    assert (code, seeming["directory"]) == (0, Path("models"))
    assert out.splitlines() == [
        "Hebe serves models  HTTP http://127.0.0.1:8100  gRPC 127.0.0.1:8101  metrics http://127.0.0.1:8102/metrics",
        "Ready: GET http://127.0.0.1:8100/v2/health/ready.  Ctrl-C stops.",
    ]


def test_it_says_that_workers_share_cores(seeming, capsys):  # noqa: ARG001
    _, out, _ = run(capsys, "models", "--workers", 1024)
    told = out.splitlines()[1]
    assert told.startswith("Note: 1024 worker(s) of 1 core(s) take 1024 cores, but ")
    assert "they share these and take turns" in told


def test_a_load_that_hangs_does_not_outlive_the_stop(seeming, capsys, monkeypatch):  # noqa: ARG001
    def leave(code):
        raise SystemExit(f"at once with {code}")

    written = []
    monkeypatch.setattr(server.Server, "left_at_work", True)
    monkeypatch.setattr(atexit, "_run_exitfuncs", lambda: written.append(0))
    monkeypatch.setattr(os, "_exit", leave)
    assert run(capsys, "models")[0] == "at once with 0"
    assert written == [0]


def test_json_says_so_too_and_leaves_stdout_to_itself(seeming, capsys):  # noqa: ARG001
    code, out, err = run(capsys, "[models]:fire:", "--host", "::1", "--json")
    assert code == 0
    assert json.loads(out) == {
        "listening": {
            "http": "http://[::1]:8100",
            "grpc": "[::1]:8101",
            "metrics": "http://[::1]:8102/metrics",
        }
    }
    assert "Hebe serves [models]:fire:" in err


def test_with_a_certificate_it_is_https(seeming, capsys):
    _, out, _ = run(capsys, "models", "--tls-certificate", "c.pem", "--tls-key", "k.pem")
    assert "HTTP https://127.0.0.1:8100  gRPC 127.0.0.1:8101 (TLS)  metrics https://127.0.0.1:8102" in out
    assert (seeming["options"].tls_certificate, seeming["options"].tls_key) == (Path("c.pem"), Path("k.pem"))


def test_by_default_it_is_as_a_server_in_a_program_is(seeming, capsys):
    run(capsys, "models")
    assert seeming["options"] == server.ServerOptions()
    assert seeming["logging"] == ("console", "info")


def test_options_reach_the_server(seeming, capsys, tmp_path, monkeypatch):
    tokens = tmp_path / "tokens"
    tokens.write_text("# of the front end\nthird\n")
    monkeypatch.setenv("HEBE_API_TOKEN", "not this one")
    code, _, err = run(
        capsys, "models", "--http-port", 1, "--grpc-port", 2, "--metrics-port", 3, "--workers", 4,
        "--worker-threads", 2, "--batch-size", 6, "--no-fuse", "--no-spread", "--max-wait-ms", 7.5, "--max-queue", 8,
        "--max-items", 9, "--no-admission", "--sla-ms", 10, "--percentile", 90, "--row-format", "int8", "--verify",
        "--max-request-bytes", "1M", "--max-json-bytes", "1K", "--max-bytes-in-flight", "2M", "--api-token", "first",
        "--api-token", "second", "--api-token-file", tokens, "--rate-limit", 11, "--log-format", "json", "--log-level",
        "debug", "--otel",
    )  # fmt: skip
    assert code == 0, err
    options, models = seeming["options"], seeming["options"].models
    assert (options.http_port, options.grpc_port, options.metrics_port) == (1, 2, 3)
    assert (models.workers, models.worker_threads, models.batch_size) == (4, 2, 6)
    assert (models.fuse, models.spread, models.admission) == (False, False, False)
    assert (models.max_wait_s, models.max_queue, models.max_items) == (0.0075, 8, 9)
    assert (models.sla_ms, models.percentile) == (10.0, 90.0)
    assert (str(models.load.row_format), models.load.verify, models.load.check_rows) == ("int8", True, True)
    assert (options.max_request_bytes, options.max_json_bytes, options.bytes_in_flight) == (1 << 20, 1024, 2 << 20)
    assert options.api_tokens == ("first", "second", "third")
    assert (options.rate_limit_per_s, options.otel) == (11.0, True)
    assert seeming["logging"] == ("json", "debug")


def test_rows_are_checked_unless_that_is_left_out(seeming, capsys):
    run(capsys, "models", "--no-verify")
    load = seeming["options"].models.load
    assert (load.verify, load.check_rows) == (False, False)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--workers", "0"], "Invalid value for '--workers'"),
        (["--workers", "99999999"], "Invalid value for '--workers'"),
        (["--worker-threads", "3"], "'--worker-threads'"),
        (["--row-format", "int4"], "choose fp32, fp16, int8"),
        (["--tls-key", "k.pem"], "Invalid value for --tls-certificate"),
        (["--max-bytes-in-flight", "x"], "write bytes as 4096"),
        (["--max-request-bytes", "much"], "write bytes as 4096, 64K"),
        (["--max-request-bytes", "3G"], "Invalid value: --max-request-bytes is 3221225472: must be at most"),
        (["--sla-ms", "0"], "Invalid value: --sla-ms is 0.0: must be more than 0"),
        (["--percentile", "101"], "Invalid value: --percentile is 101.0: must be between 0 and 100"),
        (["--max-wait-ms", "nan"], "Invalid value for '--max-wait-ms'"),
        (["--max-wait-ms", "inf"], "Invalid value: --max-wait-ms is inf"),
        (["--workers", "5", "--worker-cores", "99999"], "Invalid value: --worker-cores is 99999: must be in 1.."),
        (["--http-port", "7000", "--grpc-port", "7000"], "--grpc-port is 7000, as --http-port is"),
        (["--host", ""], "--host is empty: must be an address"),
        (["--api-token", ""], "an API token is empty: give one"),
        (["--api-token", "ok", "--api-token", " "], "an API token is empty"),
        (["--max-bytes-in-flight", "1M"], "must be at least --max-request-bytes, 67108864"),
        (["--graph", "foo"], "choose eager, scripted, compiled"),
        (["--log-format", "xml"], "'xml': choose console or json"),
        (["--log-level", "loud"], "'loud': choose debug, info, warning or error"),
    ],
)
def test_wrong_usage_is_told_before_anything_starts(seeming, capsys, arguments, says):
    code, _, err = run(capsys, "models", *arguments)
    assert (code, says in err) == (2, True), err
    assert not seeming


@pytest.mark.parametrize("content", ["# none yet\n", "sécret\n"])
def test_a_file_that_cannot_be_used_is_no_wrong_usage(seeming, capsys, tmp_path, content):
    tokens = tmp_path / "tokens"
    tokens.write_text(content)
    code, _, err = run(capsys, "models", "--api-token-file", tokens)
    assert (code, "token" in err) == (1, True), err
    assert not seeming


@pytest.mark.parametrize("token", ["", " "])
def test_a_token_of_the_environment_that_is_empty(seeming, capsys, monkeypatch, token):
    """Set by a script whose secret is missing: it did not mean to let everybody in."""
    monkeypatch.setenv("HEBE_API_TOKEN", token)
    code, _, err = run(capsys, "models")
    assert (code, "HEBE_API_TOKEN: is set but empty: give a token" in err) == (2, True), err
    assert not seeming


def test_a_token_of_the_environment_is_one_whatever_is_in_it(seeming, capsys, monkeypatch):
    """A pass phrase, none of whose words alone lets anybody in."""
    monkeypatch.setenv("HEBE_API_TOKEN", "correct horse battery staple")
    run(capsys, "models")
    assert seeming["options"].api_tokens == ("correct horse battery staple",)
    _, out, _ = run(capsys, "--help")
    assert "HEBE_API_TOKEN" in out


def test_a_token_of_the_environment_lets_nobody_in_beside_those_of_a_file(seeming, capsys, monkeypatch, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("new\n")
    monkeypatch.setenv("HEBE_API_TOKEN", "old")
    run(capsys, "models", "--api-token-file", tokens)
    assert seeming["options"].api_tokens == ("new",)


def test_interrupts_end_it_at_once_only_while_nothing_runs(seeming, capsys):
    before = signal.getsignal(signal.SIGINT)
    with _interrupt_ends_at_once():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    run(capsys, "models")
    assert seeming["interrupt"] is before
    assert signal.getsignal(signal.SIGINT) is before


def test_in_another_thread_signals_are_left_alone():
    found = []

    def enter():
        with _interrupt_ends_at_once():
            found.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert found == [before]


@pytest.mark.parametrize("option", ["--workers=2", "--worker-cores=1", "--worker-threads=1", "--batch-size=256"])
def test_an_option_that_a_profile_decides_is_wrong_usage_even_at_its_default(tmp_path, capsys, option):
    with pytest.raises(SystemExit) as end:
        main(["serve", str(tmp_path), "--profile", "ranker.json", option])
    assert end.value.code == 2
    assert f"so does {option.partition('=')[0]}: leave one of them out" in " ".join(capsys.readouterr().err.split())


def test_a_profile_that_does_not_fit_ends_it_with_a_line(tmp_path, capsys):
    repository, path = tmp_path / "models", tmp_path / "dlrm.json"
    repository.mkdir()
    write_server_profile(path, replace(profile(), strategy="random"))
    with pytest.raises(SystemExit) as end:
        main(["serve", str(repository), "--profile", str(path)])
    assert end.value.code == 1
    assert f"{path}: the profile is of dlrm, which {repository} does not have" in capsys.readouterr().err
