"""A model larger than its table memory: the same scores, the rows on disk used again, whatever ended the last run."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http

from hebe.embeddings.rocksdb.bulk_load import disk_bytes
from hebe.spec import ModelSpec

from .served import (
    PATIENCE_S,
    TOLERANCE,
    Changing,
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

SPEC: ModelSpec = small_dlrm("large", 300_000, 16)
"""29 MB of rows."""

TABLE_MEMORY = "6M"


def check_scores(server: HebeServe, reference: Reference, spec: ModelSpec = SPEC) -> None:
    """Fixed and jagged queries of several sizes over both protocols; no key is answered with a default."""
    rng = np.random.default_rng(5)
    for module, url in ((tritonclient.http, server.http), (tritonclient.grpc, server.grpc)):
        with module.InferenceServerClient(url) as client:
            for items, jagged in ((1, ()), (40, ("history",)), (700, ())):
                inputs = draw(spec, items, rng, jagged)
                scores = client.infer(spec.name, triton_inputs(module, inputs)).as_numpy("score")
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
    bounded = ["--table-memory", TABLE_MEMORY, "--persistent-dir", str(rows), "--workers", "2"]

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


def data_bytes(server: HebeServe) -> int:
    """What counts for its RLIMIT_DATA now: memory of its own, files aside, whether it was touched or not."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmData:"))


def test_a_model_larger_than_the_memory_that_there_is(tmp_path: Path):
    """Where the system gives the server no memory for all rows, it serves them from disk, and says so if it may not.

    The limit is what it takes to serve a small model in the same way, and a third of the size of these tables: threads,
    which come by chance, take 8 MB each.
    """
    spec, little = small_dlrm("huge", 700_000, 64), small_dlrm("huge", 60_000, 64)
    size_bytes = sum(4 * table.rows * table.dim for table in spec.tables)  # 269 MB
    store(tmp_path / "models", spec)
    store(tmp_path / "little", little)
    reference = Reference(tmp_path / "models", spec.name)
    bounded = ["--table-memory", "16M", "--workers", "1", "--persistent-dir"]

    for log in ("log1", "log2"):  # the first one may have kernels to compile, which takes more
        with hebe_serve(tmp_path / "little", tmp_path / log, *bounded, str(tmp_path / "few")) as server:
            server.wait_until_ready()
            check_scores(server, Reference(tmp_path / "little", little.name), little)
            limit_bytes = data_bytes(server) + size_bytes // 3

    def limit(server: HebeServe) -> None:
        resource.prlimit(server.process.pid, resource.RLIMIT_DATA, (limit_bytes, limit_bytes))

    with hebe_serve(tmp_path / "models", tmp_path / "log3", "--workers", "1") as server:
        limit(server)
        assert server.process.wait(PATIENCE_S) == 1, server.log
        (reason,) = [line for line in server.log.splitlines() if line.startswith("error: ")]
        assert reason.startswith(f"error: model {spec.name}: cannot map ")
        assert reason.endswith("or set a smaller table memory with a persistent directory for the rest")

    with hebe_serve(tmp_path / "models", tmp_path / "log4", *bounded, str(tmp_path / "rows")) as server:
        limit(server)
        server.wait_until_ready()
        check_scores(server, reference, spec)
        assert data_bytes(server) <= limit_bytes
        assert server.end(signal.SIGTERM) == 0
        assert "Traceback" not in server.log


def test_the_rows_of_versions_that_are_gone_go_with_the_next_load(tmp_path: Path):
    """The replaced version's too, once it has answered its last query; one that can still be served stays."""
    spec = small_dlrm("ranker", 60_000, 16)
    for seed in range(3):
        store(tmp_path / "models", spec, seed)
    rows = tmp_path / "rows" / spec.name
    bounded = ["--table-memory", "5M", "--persistent-dir", str(tmp_path / "rows")]
    with hebe_serve(tmp_path / "models", tmp_path / "log", *bounded) as server:
        server.wait_until_ready()
        changing = Changing(server, tmp_path / "models")
        for version in (1, 2):
            assert changing.load(spec.name, version)[0] == 200
        assert sorted(path.name for path in rows.iterdir()) == ["1", "2", "3"], "all can still be served"
        shutil.rmtree(tmp_path / "models" / spec.name / "2")
        assert changing.load(spec.name)[0] == 200
        eventually(lambda: sorted(path.name for path in rows.iterdir()) == ["1", "3"], "the replaced one's rows go")
        eventually(lambda: "old persistent store removed" in server.log, "it is logged")
        assert f"path={rows / '2'}" in server.log
        assert is_ready(server.http)
        inputs = draw(spec, 40, np.random.default_rng(7))
        wanted = Reference(tmp_path / "models", spec.name).scores(inputs)
        np.testing.assert_allclose(changing.scores(spec.name, inputs)[1], wanted, rtol=0, atol=TOLERANCE)
        assert server.end(signal.SIGTERM) == 0


def fill_up(disk: Path, once: Path, over: threading.Event) -> None:
    """Take the room that is left on `disk` as soon as there is a file `once`; give it back when `over`."""
    while not once.exists():
        if over.wait(0.001):
            return
    with (disk / "filler").open("wb") as filler:
        for size_bytes in (8 << 20, 1 << 20, 1 << 12):
            with contextlib.suppress(OSError):
                while True:
                    os.posix_fallocate(filler.fileno(), os.fstat(filler.fileno()).st_size, size_bytes)
        over.wait(PATIENCE_S)
    (disk / "filler").unlink()


def refused_as_the_disk_fills_up(changing: Changing, rows: Path) -> str:
    """The error of loading version 2 while something else fills the disk on which `rows` lies."""
    for _ in range(4):
        over = threading.Event()
        filler = threading.Thread(target=fill_up, args=(rows, rows / SPEC.name / "2" / "load.sst", over))
        filler.start()
        answer = changing.load(SPEC.name)
        over.set()
        filler.join()
        if answer[0] != 200:
            return error_of(answer, 400)
        # A machine that is slow to fill the disk: back to version 1 and once more.
        assert changing.load(SPEC.name, 1)[0] == 200
        shutil.rmtree(rows / SPEC.name / "2")
    raise AssertionError("the disk was never filled in time")


def refused_beyond_a_file_size(changing: Changing, rows: Path) -> str:  # noqa: ARG001
    """The error of loading version 2 while the server may write no file as large as the load needs."""
    process, before = changing.server.process.pid, resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.prlimit(process, resource.RLIMIT_FSIZE, (10 << 20, before[1]))
    try:
        return error_of(changing.load(SPEC.name), 400)
    finally:
        resource.prlimit(process, resource.RLIMIT_FSIZE, before)


def open_files(server: HebeServe) -> list[str]:
    """The paths of all files that the server has open, also those that were removed."""
    paths = []
    for link in Path(f"/proc/{server.process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since
            paths.append(os.readlink(link))
    return paths


@contextlib.contextmanager
def small_disk(path: Path, size_bytes: int) -> Iterator[bool]:
    """A file system of that size at `path`, and whether this user may have one."""
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(path)]
    try:
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(path)], check=True)


def test_a_disk_that_fills_up_while_rows_are_loaded(tmp_path: Path):
    """Said clearly; the running version stays, nothing of the new one does, and it loads once there is room.

    A bound on the size of files, which anybody can set, is a disk that fills up at a known byte; where a file system
    can be mounted, it is a real one as well.
    """
    models, rows = tmp_path / "models", tmp_path / "rows"
    store(models, SPEC, seed=1)
    inputs = draw(SPEC, 300, np.random.default_rng(8))
    bounded = ["--table-memory", TABLE_MEMORY, "--persistent-dir", str(rows)]
    room = disk_bytes(SPEC.tables)
    with (
        small_disk(rows, 2 * room + (6 << 20)) as mounted,
        hebe_serve(models, tmp_path / "log", *bounded) as server,
    ):
        server.wait_until_ready()
        changing = Changing(server, models)
        assert store(models, SPEC, seed=2) == 2
        ways = [(refused_beyond_a_file_size, "File too large")]
        if mounted:
            ways.append((refused_as_the_disk_fills_up, "No space left on device"))
        for refused, says in ways:
            message = refused(changing, rows)
            new = rows / SPEC.name / "2"
            assert message.startswith(f"model {SPEC.name}: persistent store {new}: ")
            assert says in message
            assert not new.exists(), "what was written is gone"
            assert not [path for path in open_files(server) if path.startswith(str(new))], "and its space given back"
            entry = changing.index()[SPEC.name]
            assert (entry["version"], entry["state"]) == ("1", "READY")
            assert says in entry["reason"]
            assert is_ready(server.http)
            version, scores = changing.scores(SPEC.name, inputs)
            assert version == 1
            wanted = Reference(models, SPEC.name, 1).scores(inputs)
            np.testing.assert_allclose(scores, wanted, rtol=0, atol=TOLERANCE)
        assert changing.load(SPEC.name)[0] == 200
        version, scores = changing.scores(SPEC.name, inputs)
        assert version == 2
        np.testing.assert_allclose(scores, Reference(models, SPEC.name, 2).scores(inputs), rtol=0, atol=TOLERANCE)
        assert server.end(signal.SIGTERM) == 0
        assert "Traceback" not in server.log


def test_rows_that_are_damaged_on_disk_are_not_served_and_the_server_is_not_ready(tmp_path: Path):
    """No wrong score: RocksDB's checksums are verified. Those keys are defaulted, which the response tells, and a
    request may refuse; the reason is in the status and in the log.
    """
    store(tmp_path / "models", SPEC)
    bounded = ["--table-memory", TABLE_MEMORY, "--persistent-dir", str(tmp_path / "rows")]
    with hebe_serve(tmp_path / "models", tmp_path / "log", *bounded) as server:
        server.wait_until_ready()
        for file in (tmp_path / "rows" / SPEC.name / "1" / "rows").glob("*.sst"):
            with file.open("r+b") as damaged:
                damaged.seek(file.stat().st_size // 10)
                damaged.write(bytes(8 * file.stat().st_size // 10))
        rng = np.random.default_rng(6)

        def ask(**parameters: float) -> tuple[int, Any, bytes]:
            body, header_length = binary_body(draw(SPEC, 200, rng), parameters=parameters)
            headers = {"Inference-Header-Content-Length": str(header_length)}
            return post(server.http, f"/v2/models/{SPEC.name}/infer", body, headers)

        status, _, answer = ask()
        assert (status, json.loads(answer)["parameters"]["defaulted_fraction"] > 0) == (200, True)
        message = error_of(ask(max_defaulted_fraction=0), 503)
        assert "/" not in message, "where the rows lie is not for clients"

        def tells() -> list[str]:
            ask()
            if is_ready(server.http):  # a probe found one of the rows that are whole
                return []
            with urllib.request.urlopen(f"http://{server.http}/v2/status", timeout=PATIENCE_S) as document:
                return [each["reason"] for each in json.load(document)["degraded"] if each["what"] == "persistent_db"]

        (reason,) = eventually(tells, "it is not ready")
        assert "Corruption" in reason
        assert str(tmp_path / "rows" / SPEC.name / "1") in reason
        assert "persistent_db: circuit open" in server.log
        assert server.end(signal.SIGTERM) == 0
