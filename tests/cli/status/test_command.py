"""`hebe status` against a server that answers with a document of the test's own."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from hebe import __version__
from hebe.cli.main import main
from hebe.cli.status import command as status_module

from .status_documents import DEGRADED, RANKER, SERVER, document


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


def test_a_token_file_beats_the_environment_but_not_another_option(answering, capsys, monkeypatch, tmp_path):
    file = tmp_path / "token"
    file.write_text("new\n")
    server = answering((200, document()))
    monkeypatch.setenv("HEBE_API_TOKEN", "old")
    for options in ([], ["--token-file", str(file)], ["--api-token", "mine"]):
        run(capsys, server.url, *options, code=0)
    assert [authorization for _, authorization in server.asked] == ["Bearer old", "Bearer new", "Bearer mine"]
    refused = run(capsys, server.url, "--api-token", "mine", "--api-token-file", str(file), code=2)
    assert "give either --api-token or --api-token-file" in refused.err
    assert len(server.asked) == 3


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


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["grpc://127.0.0.1:8001"], "told over HTTP"),
        (["ftp://x"], "must be http://HOST:PORT"),
        (["127.0.0.1:1", "--ca-file", "ca.pem"], "does not speak TLS"),
        (["127.0.0.1:1", "--api-token", "sécret"], "must be printable ASCII"),
    ],
)
def test_wrong_usage(capsys, arguments, says):
    assert says in " ".join(run(capsys, *arguments, code=2).err.replace("│", " ").split())


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


def without(found, name):
    return {key: value for key, value in found.items() if key != name}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ({"server": {}}, "field 'models' is missing"),
        (document(server=without(SERVER, "live")), "field 'live' is missing"),
        (document(degraded=[{"model": "ranker"}]), "field 'since_s' is missing"),
        (document(models=[without(RANKER, "queries")]), "field 'queries' is missing"),
        (document(models=[without(RANKER, "keys")]), "field 'keys' is missing"),
        (document(models=[RANKER | {"row_format": 8}]), "not of the kind"),
        (document(models=3), "not of the kind"),
        (document(server=SERVER | {"uptime_s": "long"}), "not of the kind"),
        (document(server=SERVER | {"uptime_s": float("inf")}), "not of the kind, or in the range"),
        (document(server=SERVER | {"uptime_s": float("nan")}), "not of the kind, or in the range"),
        (
            document(models=[RANKER | {"configuration": {"colour": 1}, "profile": None, "measured": None}]),
            "unknown setting 'colour'",
        ),
    ],
)
def test_a_document_of_a_newer_server_is_told_to_be_one(answering, capsys, content, why):
    captured = run(capsys, answering((200, content)).url, "--json", code=1)
    assert "does not tell its status as this version of hebe understands it: " in captured.err
    assert why in captured.err
    assert why in json.loads(captured.out)["error"]
    assert "use the version of hebe that the server runs" in captured.err


def test_the_versions_are_told_of_a_document_that_is_not_understood(answering, capsys):
    captured = run(capsys, answering((200, document(degraded=[{}]))).url, code=1)
    assert f"(this is {__version__}, the server 1.2.3)" in captured.err


def test_watching_goes_on_over_a_document_that_is_not_understood(answering, capsys, monkeypatch):
    waits = []

    def wait(seconds):
        waits.append(seconds)
        if len(waits) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(status_module.time, "sleep", wait)
    captured = run(capsys, answering((200, {"server": {}}), (200, document())).url, "--watch", "0.5", code=0)
    assert "understands it" in captured.err
    assert "Models" in captured.out


@pytest.mark.parametrize("nested", [b"[" * 100_000 + b"]" * 100_000, b'{"server": ' + b"[" * 500 + b"]" * 500 + b"}"])
def test_a_document_that_is_nested_too_deep(answering, capsys, nested):
    assert "does not tell its status as Hebe does" in run(capsys, answering((200, nested)).url, code=1).err


def test_a_field_that_is_nested_too_deep(answering, capsys):
    body = json.dumps(document()).encode()[:-1] + b', "more": ' + b"[" * 500 + b"]" * 500 + b"}"
    assert "understands it: " in run(capsys, answering((200, body)).url, code=1).err


def test_control_characters_and_what_is_no_unicode_do_not_reach_the_terminal(answering, capsys):
    hostile = document(server=SERVER | {"version": "\x1b[2J\ud800"}, degraded=[DEGRADED | {"reason": "\x1b]0;x\x07"}])
    shown = run(capsys, answering((200, hostile)).url, code=0).out
    assert r"version \x1b[2J\ud800" in shown
    assert r"\x1b]0;x\x07" in shown
    assert "\x1b" not in shown
    refused = run(capsys, answering((404, {"error": "\x1b[2J\ud800"})).url, code=1)
    assert r"it answers 404 (\x1b[2J\ud800)" in refused.err
