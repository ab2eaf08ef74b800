"""`hebe status` against a server that answers with a document of the test's own."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from hebe.cli import status as status_module
from hebe.cli.main import main
from hebe.cli.status_tables import duration_text

SERVER = {"name": "hebe", "version": "1.2.3", "live": True, "ready": True, "uptime_s": 7500.0}
LONE = {
    "name": "lone",
    "version": 1,
    "state": "READY",
    "ready": True,
    "reason": "",
    "workers": 2,
    "queue_depth": 3,
    "batch_size": 256,
    "max_items": 8192,
    "sla": {"latency_ms": 50.0, "percentile": 95.0, "attainment": None},
    "queries": {"answered": 0, "items": 0, "refused": {}},
    "latency_ms": {"p50": None, "p95": None, "p99": None},
    "keys": {"total": 0, "defaulted": 0, "stale": 0, "unknown": 0},
    "table_memory_bytes": 4 << 20,
    "row_format": "int8",
    "tiers": [],
    "background": None,
    "refresh": None,
    "updates": {},
}
RANKER = LONE | {
    "name": "ranker",
    "version": 7,
    "sla": {"latency_ms": 50.0, "percentile": 95.0, "attainment": 0.985},
    "queries": {"answered": 12345, "items": 10**6, "refused": {"deadline": 5, "queue_full": 2}},
    "latency_ms": {"p50": 1.25, "p95": 20.0, "p99": 45.0},
    "keys": {"total": 1000, "defaulted": 25, "stale": 0, "unknown": 1},
    "tiers": [
        {
            "name": "cache", "kind": "host_cache", "available": True, "circuit": None, "unavailable_s": None,
            "failures": 0, "fault": None, "fault_s": None,
            "rows": 800, "capacity_rows": 1024, "bytes": 1 << 20, "hits": 90, "misses": 10, "hit_rate": 0.9,
        },
        {
            "name": "volatile_db", "kind": "redis", "available": False, "circuit": "open", "unavailable_s": 95.0,
            "failures": 7, "fault": "Redis 10.0.0.7:6379: Connection refused", "fault_s": 2.5, "hits": 6,
        },
    ],
    "background": {"waiting": 4, "dropped": 2},
    "refresh": {
        "iterations": 5, "last": {"rows": 800, "replaced": 790, "dropped": 6, "unreachable": 4, "seconds": 0.25}
    },
    "updates": {
        "tiers": {
            "messages": 4, "rows": 4321, "deletes": 3, "rows_per_s": 12.5, "lag_messages": 11,
            "visible_s": {"persistent_db": {"p50": 0.02, "p99": 1.5}, "cache": {"p50": 0.03, "p99": None}},
            "gaps": 1, "missing": 3, "last_gaps": [], "poison": 0, "last_poison": [], "refused": 0, "duplicates": 2,
            "failures": 0, "failing": False, "fault": "its checksum is wrong",
        }
    },
}  # fmt: skip
DEGRADED = {
    "model": "ranker",
    "what": "volatile_db",
    "since_s": 95.0,
    "reason": "Redis 10.0.0.7:6379: Connection refused",
}


def document(**changed):
    return {"server": SERVER, "degraded": [], "models": [LONE, RANKER], "models_left_out": 0} | changed


class Answering:
    """An HTTP server that gives the answers (status, document) in turn, the last one for ever."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.asked.append((self.path, self.headers.get("authorization")))
                code, content = outer.answers[0] if len(outer.answers) == 1 else outer.answers.pop(0)
                body = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def answering():
    running = []

    def start(*answers):
        running.append(Answering(*answers))
        return running[-1]

    yield start
    for server in running:
        server.close()


def run(capsys, *arguments, code):
    with pytest.raises(SystemExit) as exit_:
        main(["status", *arguments])
    captured = capsys.readouterr()
    assert exit_.value.code == code, captured.err
    return captured


def test_what_is_degraded_comes_first_with_since_when_and_why(answering, capsys):
    server = answering((200, document(degraded=[DEGRADED])))
    shown = run(capsys, server.url, code=0).out
    assert server.asked == [("/v2/status", None)]
    lines = shown.splitlines()
    assert lines[0] == f"{server.url} is ready, up 2 h 5 min, version 1.2.3"
    row = next(line for line in lines if "volatile_db" in line)
    assert row.split() == ["ranker", "volatile_db", "95", "s", "Redis", "10.0.0.7:6379:", "Connection", "refused"]
    assert shown.index("Degraded") < shown.index("Models") < shown.index("Tiers") < shown.index("Online updates")


def test_keys_that_tables_in_memory_lack_are_shown_where_there_are_any(answering, capsys):
    assert "refused" not in run(capsys, answering((200, document())).url, code=0).out.split("Online updates")[1]
    updates = RANKER["updates"]["tiers"]
    refused = RANKER | {"updates": {"tiers": updates, "resident": updates | {"refused": 1234}}}
    shown = run(capsys, answering((200, document(models=[refused]))).url, code=0).out.split("Online updates")[1]
    assert "refused" in shown
    [row] = [line for line in shown.splitlines() if "resident" in line]
    assert "1,234" in row


def test_messages_that_were_passed_over_are_shown_where_there_are_any(answering, capsys):
    """An older server does not tell of them."""
    assert "passed over" not in run(capsys, answering((200, document())).url, code=0).out
    updates = RANKER["updates"]["tiers"]
    for count, shows in ((0, False), (1234, True)):
        model = RANKER | {"updates": {"tiers": updates | {"passed_over": count}}}
        shown = run(capsys, answering((200, document(models=[model]))).url, code=0).out.split("Online updates")[1]
        assert ("passed over" in shown, "1,234" in shown) == (shows, shows)


def test_tables(answering, capsys):
    shown = run(capsys, answering((200, document())).url, code=0).out
    assert "Nothing is degraded." in shown
    for words in (
        "ranker        7  ready        2      3    256    12,345        7   98.5%  p95 50 ms    1.25      20      45",
        "left alone",
        "2.5 s ago: Redis 10.0.0.7:6379: Connection refused",
        "90%",
        "1,000       2.5%      0     0.1%",
        "800 rows in 250 ms, 4 not reached",
        "4,321",
        "30 ms",
        "1.5 s",
        "its checksum is wrong",
    ):
        assert words in shown


SPLIT = {
    "placement": "pipeline-on-host", "workers": 1, "cores_per_worker": 1, "batch_size": 64, "dense_workers": 1,
    "fused_items": 0,
}  # fmt: skip
WINDOW = {"qps": 88.0, "seconds": 10.0, "late": 0.01, "kept": True, "power_watts": 25.5, "estimated": False}
BY_PROFILE = LONE | {
    "configuration": SPLIT,
    "profile": {"configuration": SPLIT, "qps": 100.0, "power_watts": 30.0, "estimated": True},
    "measured": {"qps": 120.0, "power_watts": 40.0, "estimated": False, "at": "2026-05-05T00:00:00", "window": WINDOW},
}


def test_how_models_are_split_and_what_profiles_say_beside_what_is_measured(answering, capsys):
    plain = RANKER | {
        "configuration": SPLIT | {"placement": "model-on-host", "workers": 2, "dense_workers": 0},
        "profile": None,
        "measured": None,
    }
    shown = run(capsys, answering((200, document(models=[BY_PROFILE, plain]))).url, code=0).out
    assert shown.index("Models") < shown.index("Configurations") < shown.index("Tiers")
    for words in (
        "pipeline-on-host, 1 sparse worker of 1 core, 1 dense",
        "model-on-host, 2 workers of 1 core, batches of 64",
        "         100           120        ~30          40  88 qps, in SLA, 25.5 W",
    ):
        assert words in shown


def test_the_threads_of_each_worker(answering, capsys):
    shown = run(capsys, answering((200, document(models=[BY_PROFILE | {"threads": 2}]))).url, code=0).out
    lines = shown.split("Configurations")[1].splitlines()
    assert "threads each" in lines[1]
    assert "             2          100" in lines[2]


@pytest.mark.parametrize(("kept", "verdict"), [(False, "88 qps, SLA missed"), (None, "88 qps, at the SLA's edge")])
def test_a_load_without_a_power_meter(answering, capsys, kept, verdict):
    window = WINDOW | {"kept": kept, "power_watts": None}
    model = BY_PROFILE | {"measured": BY_PROFILE["measured"] | {"window": window}}
    shown = run(capsys, answering((200, document(models=[model]))).url, code=0).out
    assert any(line.endswith(verdict) for line in shown.splitlines())


def test_a_server_that_is_not_ready(answering, capsys):
    loading = {"name": "late", "version": 1, "state": "LOADING", "ready": False, "reason": ""}
    wrong = [{"model": "late", "what": "model", "since_s": None, "reason": "it is being loaded"}]
    changed = document(server=SERVER | {"ready": False}, models=[loading], degraded=wrong)
    shown = run(capsys, answering((200, changed)).url, code=1).out
    assert "is NOT READY" in shown
    assert "it is being loaded" in shown
    assert "loading" in shown
    assert "Tiers" not in shown


def test_json_is_the_document(answering, capsys):
    wanted = document(degraded=[DEGRADED])
    captured = run(capsys, answering((200, wanted)).url, "--json", code=0)
    assert json.loads(captured.out.splitlines()[-1]) == wanted
    assert "Connection refused" in captured.err


def test_a_token_is_sent(answering, capsys, tmp_path):
    file = tmp_path / "token"
    file.write_text("# on call\nsecret\nother\n")
    server = answering((200, document()))
    run(capsys, server.url, "--token-file", str(file), code=0)
    run(capsys, server.url, "--api-token", "mine", code=0)
    assert [authorization for _, authorization in server.asked] == ["Bearer secret", "Bearer mine"]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((401, {"error": "no token"}), "wants an API token, or another one (401): give --token-file"),
        ((404, {"error": "path is not served"}), "does not tell its status: it answers 404 (path is not served)"),
        ((200, b"<html>"), "does not tell its status as Hebe does"),
        ((200, {"server": "nginx"}), "does not tell its status as Hebe does"),
    ],
)
def test_servers_that_do_not_tell(answering, capsys, answer, says):
    captured = run(capsys, answering(answer).url, "--json", code=1)
    assert says in captured.err
    assert says in json.loads(captured.out)["error"]


def test_a_server_that_cannot_be_reached(answering, capsys):
    server = answering((200, document()))
    server.close()
    assert "cannot be reached: Connection refused" in run(capsys, server.url, code=1).err
    assert "told over HTTP" in run(capsys, "grpc://127.0.0.1:8001", code=2).err


@pytest.mark.parametrize(("last", "code"), [(True, 0), (False, 1)])
def test_watching_goes_on_until_it_is_interrupted(answering, capsys, monkeypatch, last, code):
    waits = []

    def wait(seconds):
        waits.append(seconds)
        if len(waits) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(status_module.time, "sleep", wait)
    ending = document(server=SERVER | {"ready": last})
    server = answering((200, document(degraded=[DEGRADED])), (503, {"error": "busy"}), (200, ending))
    captured = run(capsys, server.url, "--watch", "0.5", code=code)
    assert waits == [0.5] * 3
    assert captured.out.count("Models") == 2
    assert "it answers 503 (busy)" in captured.err


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.25, "250 ms"),
        (2.5, "2.5 s"),
        (40.0, "40 s"),
        (99.9, "100 s"),
        (720.0, "12 min"),
        (11_100.0, "3 h 5 min"),
        (360_000.0, "4 d 4 h"),
    ],
)
def test_durations(seconds, text):
    assert duration_text(seconds) == text


def test_the_tables_fit_a_narrow_terminal(answering, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = run(capsys, answering((200, document(degraded=[DEGRADED]))).url, code=0).out
    assert max(map(len, shown.splitlines())) <= 80
    assert "not enough room for" in shown
    for needed in ("volatile_db", "95 s", "left alone", "98.5%", "Connection"):
        assert needed in shown
