"""A model larger than its table memory: the same scores, the rows on disk used again, whatever ended the last run."""

from __future__ import annotations

import json
import shutil
import signal
import socket
from pathlib import Path

import numpy as np
import tritonclient.grpc
import tritonclient.http

from hebe.spec import ModelSpec

from .served import (
    PATIENCE_S,
    TOLERANCE,
    HebeServe,
    Reference,
    address,
    binary_body,
    draw,
    error_of,
    eventually,
    hebe_serve,
    is_ready,
    post,
    small_dlrm,
    store,
    triton_inputs,
)

SPEC: ModelSpec = small_dlrm("large", 600_000, 16)
"""58 MB of rows."""

TABLE_MEMORY = "12M"


def check_scores(server: HebeServe, reference: Reference) -> None:
    """Fixed and jagged queries of several sizes over both protocols; no key is answered with a default."""
    rng = np.random.default_rng(5)
    for module, url in ((tritonclient.http, server.http), (tritonclient.grpc, server.grpc)):
        with module.InferenceServerClient(url) as client:
            for items, jagged in ((1, ()), (40, ("history",)), (700, ())):
                inputs = draw(SPEC, items, rng, jagged)
                scores = client.infer(SPEC.name, triton_inputs(module, inputs)).as_numpy("score")
                np.testing.assert_allclose(scores, reference.scores(inputs), rtol=0, atol=TOLERANCE)
    metrics = server.metrics()
    assert metrics.value("hebe_keys_total") > 0
    assert metrics.value("hebe_keys_defaulted_total") == 0


def test_a_model_larger_than_its_table_memory(tmp_path: Path):
    """Stopped while it fills the store, killed while it does, killed while it serves; each next start is right."""
    store(tmp_path / "models", SPEC)
    reference = Reference(tmp_path / "models", SPEC.name)
    rows = tmp_path / "rows"
    record = rows / SPEC.name / "1" / "store.json"
    bounded = ["--table-memory", TABLE_MEMORY, "--persistent-dir", str(rows), "--sla-ms", "3600000", "--workers", "2"]

    def stopped_while_loading() -> bool:
        shutil.rmtree(rows, ignore_errors=True)
        with hebe_serve(tmp_path / "models", tmp_path / "log1", *bounded) as server:
            eventually(record.parent.exists, "the store is begun")
            assert server.end(signal.SIGTERM) == 0
            assert "Traceback" not in server.log
            return "model loaded" not in server.log

    # A machine that is slow to send the signal may be given the whole model for once.
    assert any(stopped_while_loading() for _ in range(4)), "a load under way is not given up"

    with hebe_serve(tmp_path / "models", tmp_path / "log2", *bounded) as server:
        eventually(record.exists, "the store is begun anew")
        assert server.end(signal.SIGKILL) == -signal.SIGKILL

    with hebe_serve(tmp_path / "models", tmp_path / "log3", *bounded) as server:
        server.wait_until_ready()
        check_scores(server, reference)
        ports = ["--http-port", str(address(server.http)[1]), "--grpc-port", str(address(server.grpc)[1])]
        kept = socket.create_connection(address(server.http), timeout=PATIENCE_S)
        written = record.stat()
        server.end(signal.SIGKILL)
        kept.close()

    with hebe_serve(tmp_path / "models", tmp_path / "log4", *bounded, *ports) as server:
        server.wait_until_ready()
        check_scores(server, reference)
        again = record.stat()
        assert (again.st_ino, again.st_mtime_ns) == (written.st_ino, written.st_mtime_ns), "the rows were written again"
        assert server.end(signal.SIGTERM) == 0


def test_the_rows_of_versions_that_are_gone_go_with_the_next_load(tmp_path: Path):
    """The replaced version's too, once it has answered its last query; one that can still be served stays."""
    spec = small_dlrm("ranker", 60_000, 16)
    for seed in range(3):
        store(tmp_path / "models", spec, seed)
    rows = tmp_path / "rows" / spec.name
    bounded = ["--table-memory", "3M", "--persistent-dir", str(tmp_path / "rows"), "--sla-ms", "3600000"]
    with hebe_serve(tmp_path / "models", tmp_path / "log", *bounded) as server:
        server.wait_until_ready()
        load = f"/v2/repository/models/{spec.name}/load"
        for version in ("1", "2"):
            assert post(server.http, load, json.dumps({"parameters": {"version": version}}).encode())[0] == 200
        assert sorted(path.name for path in rows.iterdir()) == ["1", "2", "3"], "all can still be served"
        shutil.rmtree(tmp_path / "models" / spec.name / "2")
        assert post(server.http, load, b"")[0] == 200
        eventually(lambda: sorted(path.name for path in rows.iterdir()) == ["1", "3"], "the replaced one's rows go")
        eventually(lambda: "old persistent store removed" in server.log, "it is logged")
        assert f"path={rows / '2'}" in server.log
        assert is_ready(server.http)
        inputs = draw(spec, 40, np.random.default_rng(7))
        with tritonclient.http.InferenceServerClient(server.http) as client:
            scores = client.infer(spec.name, triton_inputs(tritonclient.http, inputs)).as_numpy("score")
        wanted = Reference(tmp_path / "models", spec.name).scores(inputs)
        np.testing.assert_allclose(scores, wanted, rtol=0, atol=TOLERANCE)
        assert server.end(signal.SIGTERM) == 0


def test_rows_that_are_damaged_on_disk_are_an_error_and_the_server_is_not_ready(tmp_path: Path):
    """No wrong score: RocksDB's checksums are verified; the reason is answered and logged."""
    store(tmp_path / "models", SPEC)
    bounded = ["--table-memory", TABLE_MEMORY, "--persistent-dir", str(tmp_path / "rows"), "--sla-ms", "3600000"]
    with hebe_serve(tmp_path / "models", tmp_path / "log", *bounded) as server:
        server.wait_until_ready()
        for file in (tmp_path / "rows" / SPEC.name / "1" / "rows").glob("*.sst"):
            with file.open("r+b") as damaged:
                damaged.seek(file.stat().st_size // 10)
                damaged.write(bytes(8 * file.stat().st_size // 10))
        body, header_length = binary_body(draw(SPEC, 200, np.random.default_rng(6)))
        headers = {"Inference-Header-Content-Length": str(header_length)}
        for _ in range(3):
            message = error_of(post(server.http, f"/v2/models/{SPEC.name}/infer", body, headers), 500)
            assert message.endswith(": Corruption; the server's log has the details")
            assert "/" not in message, "where the rows lie is not for clients"
        assert not is_ready(server.http)
        assert "request failed" in server.log
        assert "StoreError" in server.log, "where it failed is in the log"
        assert str(tmp_path / "rows" / SPEC.name / "1") in server.log
        assert "remove the directory and load it anew" in server.log
        assert server.end(signal.SIGTERM) == 0
