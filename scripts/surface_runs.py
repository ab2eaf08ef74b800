"""Runs of Hebe's commands and servers on small inputs, of which names are kept: exit codes, metrics, keys of JSON.

Names of models, tables and server types in the inputs begin with `data_`: as keys of JSON they are data, not names of
Hebe's, and become `{}`.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import numpy as np
from example_files import example_files
from prometheus_client.parser import text_string_to_metric_families
from surface_sources import hebe

PATIENCE_S = 60.0
_SETTLED_S = 2.0
_IS_DATA = re.compile(r"data_.*|.*/data_.*|\d+")
_NAMES = ("ranker", "filter", "gpu", "cpu", "old", "new")
"""Models and server types of the example files."""

_MODULE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.data_user = nn.EmbeddingBag(50, 4)
        self.data_item = nn.Embedding(30, 4)
        self.top = nn.Linear(3 + 4 + 4, 1)

    def forward(self, dense, data_user, data_item):
        parts = [dense, self.data_user(data_user), self.data_item(data_item)]
        return torch.sigmoid(self.top(torch.cat(parts, 1)))

def make():
    inputs = {"dense": torch.randn(4, 3), "data_user": torch.randint(50, (4, 6)), "data_item": torch.randint(30, (4,))}
    return Net(), inputs
"""
_TIERS = """
[cache]
cache_fraction = 0.5
refresh_interval = 0.2

[volatile_db]
type = "parallel_hash_map"
num_partitions = 1

[persistent_db]
type = "rocks_db"
path = "stores"

[update_source]
type = "log_directory"
address = "updates"
"""


@dataclass
class Seen:
    """Lines of names that runs have shown."""

    exit_codes: set[str] = field(default_factory=set)
    metrics: set[str] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)

    def add_keys(self, where: str, value: Any) -> None:
        """The paths of all keys in a JSON value."""
        self.keys.update(f"{where}: {path}" for path in key_paths(value))


def key_paths(value: Any, at: str = "") -> Iterator[str]:
    """The path of each key in a JSON value: `[]` is an item of a list, `{}` a key that is data.

    Whether there is such a key depends on the data too, so that only what lies below it is listed.
    """
    if isinstance(value, dict):
        for key, inner in value.items():
            name = "{}" if _IS_DATA.fullmatch(key) else key
            path = f"{at}.{name}" if at else name
            if name != "{}":
                yield path
            yield from key_paths(inner, path)
    elif isinstance(value, list):
        for inner in value:
            yield from key_paths(inner, f"{at}[]")


class Workplace:
    """A folder that is worked in, with small inputs; the folder of before is worked in again at the end."""

    model = "data_net"

    def __init__(self, folder: Path) -> None:
        self._folder, self._before = folder, Path.cwd()
        self.models, self.update_log = Path("models"), Path("updates")
        self.plans: dict[Path, tuple[object, ...]] = {}

    def __enter__(self) -> Self:
        os.chdir(self._folder)
        for name, content in example_files().items():
            Path(name).write_text(re.sub(rf"\b({'|'.join(_NAMES)})\b", r"data_\1", content))
        Path("net.py").write_text(_MODULE)
        Path("tiers.toml").write_text(_TIERS)
        Path("followed.toml").write_text('[update_source]\ntype = "log_directory"\naddress = "updates"\n')
        rows = np.ones((20, 4), np.float32)
        np.savez("rows.npz", keys=np.arange(20), rows=rows)
        return self

    def __exit__(self, *_: object) -> None:
        os.chdir(self._before)


def fast_runs(place: Workplace) -> Seen:
    """All commands but those that take minutes."""
    seen = Seen()
    _import_model(seen, place)
    one = ("--workers", "1", "--worker-threads", "1", "--hierarchy")
    with _served(*one, "tiers.toml") as tiered, _served(*one, "followed.toml") as followed:
        _repositories(seen, place)
        _stores(seen, place)
        _plans(seen, place)
        _others(seen)
        for server in (tiered, followed):
            server.wait_until_ready()
        _updates(seen, place)
        _servers(seen, place, tiered, followed)
    _exit_codes(seen)
    return seen


def slow_runs(place: Workplace) -> Seen:
    """What takes minutes: a profile and the server that starts by it, the demo, a benchmark."""
    seen = Seen()
    _import_model(Seen(), place)
    core = min(os.sched_getaffinity(0))
    small = ("--quick", "--cores", core, "--batch-sizes", "16", "--sizes", "fixed:8")
    profile = ("profile", "models", "--model", place.model, *small)
    _keys(seen, "hebe profile (none found)", *profile, "--sla-ms", "0.001", code=3)
    seen.exit_codes.add("exit code 3: hebe profile that finds no configuration within the SLA")
    _keys(seen, "hebe profile", *profile, "--sla-ms", "500")
    written = json.loads(Path(f"profiles/{place.model}.json").read_text())
    seen.add_keys("file of hebe profile", written)
    journal = next(path for path in Path("profiles/journal").iterdir() if path.is_file())
    for line in journal.read_text().splitlines():
        seen.add_keys("journal of hebe profile", json.loads(line))
    with _served("--profile", f"profiles/{place.model}.json", cores={core}) as server:
        server.wait_until_ready()
        _send(seen, place, server)
        seen.metrics.update(server.metrics())
        seen.add_keys("GET /v2/status (a profile)", server.get("/v2/status"))
    _keys(seen, "hebe demo --quick", "demo", "--quick", "--out", "demo")
    _keys(seen, "hebe bench NAME --quick", "bench", "sparse", "--quick", "--out", "figures")
    return seen


def _import_model(seen: Seen, place: Workplace) -> None:
    factory = ("--factory", "net.py:make", "--sla-ms", "3600000", "--new-keys")
    _keys(seen, "hebe model import", "model", "import", *factory, "--name", place.model, "--repository", place.models)


def _repositories(seen: Seen, place: Workplace) -> None:
    stored = ("--repository", place.models)
    new = ("model", "new", "ncf", "--scale", "0.001", "--repository", "others")
    _keys(seen, "hebe model new", *new)
    _keys(seen, "hebe model list", "model", "list")
    _keys(seen, "hebe model list --repository", "model", "list", *stored)
    _keys(seen, "hebe model show", "model", "show", "dlrm-rmc1")
    _keys(seen, "hebe model show --repository", "model", "show", place.model, *stored)
    _keys(seen, "hebe model memory", "model", "memory", "ncf")
    _keys(seen, "hebe model memory --repository", "model", "memory", place.model, *stored, "--hierarchy", "tiers.toml")
    version = place.models / place.model / "1"
    for path in sorted(version.glob("*")):
        seen.keys.add(f"file of a version: {path.name}")
    clicks = "".join("\t".join([str(n % 2), *["3"] * 13, *[f"{n % 7:08x}"] * 26]) + "\n" for n in range(200))
    Path("clicks.tsv").write_text(clicks)
    train = ("model", "train", "criteo-dlrm", "--data", "clicks.tsv", "--scale", "0.001", "--repository", "others")
    _keys(seen, "hebe model train", *train)
    sparse = Path("sparse.model")
    sparse.mkdir()
    np.arange(5, dtype=np.int64).tofile(sparse / "key")
    np.ones((5, 4), np.float32).tofile(sparse / "emb_vector")
    own = {
        "model": "data_hps", "sparse_files": ["sparse.model"], "embedding_table_names": ["data_table"],
        "embedding_vecsize_per_table": [4], "default_value_for_each_table": [0.0],
    }  # fmt: skip
    Path("ps.json").write_text(json.dumps({"supportlonglong": True, "models": [own]}))
    imported = ("model", "import-hps", "ps.json", "--out", "hps.toml", "--persistent-dir", "hps-stores", "--load")
    _keys(seen, "hebe model import-hps", *imported)


def _stores(seen: Seen, place: Workplace) -> None:
    _keys(seen, "hebe store load", "store", "load", place.models, place.model, "--persistent-dir", "other-stores")
    one = Path("other-stores") / place.model / "1"
    _keys(seen, "hebe store show", "store", "show", one)
    _keys(seen, "hebe store verify", "store", "verify", one)
    _keys(seen, "hebe store checkpoint", "store", "checkpoint", one, "copy")
    _keys(seen, "hebe store restore", "store", "restore", "copy", "restored")


def _plans(seen: Seen, place: Workplace) -> None:
    sizes = ("--sizes", "quantiles:10,40,100")
    pool = ("plan", "pool", "times.csv", "--prices", "prices.csv", "--sla-ms", 12, "--percentile", 95, *sizes)
    _keys(seen, "hebe plan pool --no-simulate", *pool, "--budget", 1, "--no-simulate", "--plan", "bounds.toml")
    _keys(seen, "hebe plan pool", *pool, "--budget", 0.6, "--queries", 200, "--seeds", 2)
    _keys(seen, "hebe plan provision", "plan", "provision", "efficiency.csv", "servers.csv", "loads.csv")
    _keys(seen, "hebe plan colocate", "plan", "colocate", "scalability.csv", "server.csv", "demand.csv")
    simulate = ("simulate", "times.csv", "--sla-ms", 12, *sizes, "--queries", 300)
    split = ("--pool", "data_gpu=1,data_cpu=5", "--policy", "splitting", "--rate", 400)
    _keys(seen, "hebe simulate --rate", *simulate, *split)
    _keys(seen, "hebe simulate --find-qps", *simulate, "--pool", "data_gpu=2", "--policy", "fcfs", "--find-qps")
    queries = ("--percentile", 95, "--queries", 200)
    proven = {
        "pool.toml": ("simulate", "--plan", Path("pool.toml"), "--rate", 10, "--queries", 200),
        "day.toml": ("simulate", "day_times.csv", "--plan", Path("day.toml"), "--sla-ms", 10, *sizes, *queries),
        "shared.toml": (
            "simulate", "shared_times.csv", "--plan", Path("shared.toml"), "--sla-ms", "data_filter=5,data_ranker=300",
            "--sizes", "fixed:10", *queries,
        ),
    }  # fmt: skip
    for name, command in proven.items():
        _keys(seen, f"hebe simulate --plan {name}", *command)
        place.plans[Path(name)] = command
        for path in _toml_paths(Path(name)):
            seen.keys.add(f"file of hebe plan, {name}: {path}")


def _toml_paths(path: Path) -> Iterator[str]:
    import tomllib

    yield from key_paths(tomllib.loads(path.read_text()))


def _others(seen: Seen) -> None:
    _keys(seen, "hebe estimate --list", "estimate", "--list")
    _keys(seen, "hebe estimate --template", "estimate", "--template")
    Path("estimated").mkdir()
    _keys(seen, "hebe estimate", "estimate", "ncf", "--server", "T2", "--server", "T7", "--out", "estimated")
    for path in sorted(Path("estimated").iterdir()):
        seen.keys.add(f"file of hebe estimate: {path.name}")
    listed = {"hebe bench": "benchmarks", "hebe study": "studies"}
    for command, key in listed.items():
        (result,) = hebe(command.split()[1], "--json").objects
        seen.keys.update({f"{command}: {key}", *(f"{command}: {key}.{name}" for name in result[key])})
    _keys(seen, "hebe study NAME --quick", "study", "analytic-error", "--quick", "--out", "studied")
    (written,) = Path("studied/figures").glob("*.json")
    seen.add_keys("file of figures", json.loads(written.read_text()))
    _keys(seen, "hebe figures", "figures", "studied/figures")
    failed = hebe("model", "list", "--repository", "nowhere", "--json")
    seen.add_keys("a command that fails, --json", failed.objects[-1])
    wrong = hebe("model", "list", "--no-such-option", "--json")
    seen.add_keys("wrong usage, --json", wrong.objects[-1])


def _updates(seen: Seen, place: Workplace) -> None:
    """Before this, servers follow the log; after it they have something to apply."""
    push = ("update", "push", place.update_log, place.model, "data_user", "rows.npz")
    _keys(seen, "hebe update push", *push)
    tail = hebe("update", "tail", place.update_log, "--from-start", "--count", 1, "--keys", 2, "--json")
    *messages, total = tail.objects
    for message in messages:
        seen.add_keys("hebe update tail, a message", message)
    seen.add_keys("hebe update tail, the last object", total)
    lag = ("update", "lag", place.update_log)
    _eventually(lambda: hebe(*lag, "--json").objects[-1]["readers"], "something reads the log")
    _keys(seen, "hebe update lag", *lag)


def _servers(seen: Seen, place: Workplace, *servers: Server) -> None:
    names = ("tiers", "table memory")
    for name, server in zip(names, servers, strict=True):
        _send(seen, place, server)
        server.post(f"/v2/models/{place.model}/prefetch", _query())
        _eventually(server.has_applied_updates, "updates are applied")
        status = server.settled_status()
        seen.metrics.update(server.metrics())
        seen.add_keys(f"GET /v2/status ({name})", status)
        seen.add_keys("hebe serve --json, the first line", {"listening": server.listening})
    server = servers[0]
    _keys(seen, "hebe status", "status", server.url)
    load = ("load", server.url, "--model", place.model, "--sizes", "fixed:4", "--warm-up", 0, "--duration", 0.5)
    median = ("--sla-ms", 100, "--percentile", 50)  # which a busy machine keeps
    _keys(seen, "hebe load --rate", *load, "--rate", 50)
    _keys(seen, "hebe load --find-qps", *load, "--find-qps", "--rounds", 2, *median)
    for path in ("/v2", f"/v2/models/{place.model}", f"/v2/models/{place.model}/config", "/v2/health/ready"):
        seen.add_keys(f"GET {path.replace(place.model, 'NAME')}", server.get(path))
    seen.add_keys("POST /v2/repository/index", server.post("/v2/repository/index", {})[1])
    broken = place.models / place.model / "2"
    shutil.copytree(broken.with_name("1"), broken)
    for file in broken.rglob("*"):
        if file.is_file():
            file.write_bytes(b"")
    failed = server.post(f"/v2/repository/models/{place.model}/load", {})[1]
    seen.add_keys("POST /v2/repository/models/NAME/load, failed", failed)
    degraded = server.get("/v2/status")["degraded"]
    if not degraded:
        raise RuntimeError("a failed load degrades nothing")
    seen.add_keys("GET /v2/status (a failed load)", {"degraded": degraded})
    shutil.rmtree(broken)


def _send(seen: Seen, place: Workplace, server: Server) -> None:
    """A query that is answered, and one that is refused."""
    path = f"/v2/models/{place.model}/infer"
    code, answer = server.post(path, _query())
    if code != 200:
        raise RuntimeError(f"{path}: {code}, {answer}")
    seen.add_keys("POST /v2/models/NAME/infer", answer)
    seen.add_keys("POST /v2/models/NAME/infer, refused", server.post(path, {"inputs": []})[1])


def _query() -> dict[str, Any]:
    return {
        "id": "1",
        "inputs": [
            {"name": "data_user", "datatype": "INT64", "shape": [1, 6], "data": [0, 1, 2, 3, 4, 45]},
            {"name": "data_item", "datatype": "INT64", "shape": [1, 1], "data": [7]},
            {"name": "dense", "datatype": "FP32", "shape": [1, 3], "data": [0.5, 0.5, 0.5]},
        ],
    }


def _keys(seen: Seen, where: str, *command: object, code: int = 0) -> None:
    """Keep the keys of the object that a command prints with `--json`."""
    ended = hebe(*command, "--json")
    if ended.code != code or not ended.objects:
        raise RuntimeError(f"hebe {' '.join(map(str, command))} ended with {ended.code}: {ended.err}{ended.out}")
    seen.add_keys(where, ended.objects[-1])


# Exit codes


def _exit_codes(seen: Seen) -> None:
    seen.exit_codes.add(f"exit code {_process('--version').wait()}: hebe --version")
    seen.exit_codes.add(f"exit code {_process('model', 'list', '--repository', 'nowhere').wait()}: an error of Hebe's")
    seen.exit_codes.add(f"exit code {_process('model', 'list', '--no-such-option').wait()}: wrong usage")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        code = _ended_by(number, "load", "--model", "data_net", "--rate", "1")
        seen.exit_codes.add(f"exit code {code}: {number.name} while hebe load waits for its server")


def _process(*arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "hebe", *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=_usual_signals)


def _usual_signals() -> None:
    """A shell in the background has its children ignore these."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _ended_by(number: int, command: str, *options: str) -> int:
    """The exit code of a command that gets the signal while it waits for an answer to its first request."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        listener.settimeout(PATIENCE_S)
        process = _process(command, f"http://127.0.0.1:{listener.getsockname()[1]}", *options)
        try:
            connection, _ = listener.accept()
            with closing(connection):
                process.send_signal(number)
                return process.wait(PATIENCE_S)
        finally:
            process.kill()
            process.wait()


# Servers


class Server:
    """`hebe serve` of the repository as a child."""

    def __init__(self, *options: str) -> None:
        ports = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")
        command = ("serve", "models", "--json", *ports, *options)
        self._log = Path(f"server-{len(list(Path().glob('server-*')))}.log").absolute()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "hebe", *command], stdout=subprocess.PIPE, stderr=self._log.open("wb"), text=True
        )

    @property
    def url(self) -> str:
        """Of HTTP."""
        return self.listening["http"]

    listening: dict[str, str]

    def wait_until_ready(self) -> None:
        """Return when it can answer."""
        stdout = self._process.stdout
        if not hasattr(self, "listening") and stdout is not None:
            line = stdout.readline()
            printed = json.loads(line) if line else {}
            if "listening" not in printed:
                raise RuntimeError(f"hebe serve ended with {self._process.wait()}: {printed} {self._log.read_text()}")
            self.listening = printed["listening"]
        try:
            _eventually(lambda: self._ask("GET", "/v2/health/ready")[0] == 200, "the server is ready")
        except RuntimeError as late:
            raise RuntimeError(f"{late}: {self.get('/v2/status')}, {self._log.read_text()}") from None

    def get(self, path: str) -> Any:
        """The JSON of an answer; an empty object where there is none."""
        return self._ask("GET", path)[1]

    def post(self, path: str, document: Any) -> tuple[int, Any]:
        """Status and JSON of an answer."""
        return self._ask("POST", path, json.dumps(document))

    def metrics(self) -> list[str]:
        """A line for each family of metrics, with its type and labels."""
        with urllib.request.urlopen(self.listening["metrics"], timeout=PATIENCE_S) as answer:
            text = answer.read().decode()
        lines = []
        for family in text_string_to_metric_families(text):
            labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
            lines.append(f"{family.name}: {family.type}{' {' + ', '.join(labels) + '}' if labels else ''}")
        return lines

    def has_applied_updates(self) -> bool:
        """Whether a metric says that rows of an update were applied."""
        with urllib.request.urlopen(self.listening["metrics"], timeout=PATIENCE_S) as answer:
            families = text_string_to_metric_families(answer.read().decode())
            return any(
                sample.value > 0
                for family in families
                for sample in family.samples
                if "updates_rows" in sample.name and not sample.name.endswith("_created")
            )

    def settled_status(self) -> Any:
        """Its status, once it has had the same keys for so long: some come with the first refresh, or update."""
        known, since_s = set[str](), time.monotonic()
        while time.monotonic() - since_s < _SETTLED_S:
            status = self.get("/v2/status")
            if (keys := set(key_paths(status))) != known:
                known, since_s = keys, time.monotonic()
            time.sleep(0.1)
        return status

    def stop(self) -> None:
        """End it, and wait until it has ended."""
        self._process.terminate()
        try:
            self._process.wait(30)
        finally:
            self._process.kill()
            self._process.communicate()

    def _ask(self, method: str, path: str, body: str | None = None) -> tuple[int, Any]:
        where = urlsplit(self.url)
        with closing(http.client.HTTPConnection(str(where.hostname), where.port, timeout=PATIENCE_S)) as connection:
            connection.request(method, path, body)
            answer = connection.getresponse()
            content = answer.read()
            return answer.status, json.loads(content) if content else {}


@contextmanager
def _served(*options: str, cores: set[int] | None = None) -> Iterator[Server]:
    """A server with these options, on these cores or all. It starts in parallel, see `wait_until_ready`."""
    every = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores or every)  # which the child takes over
    try:
        server = Server(*options)
    finally:
        os.sched_setaffinity(0, every)
    try:
        yield server
    finally:
        server.stop()


def _eventually(holds: Callable[[], Any], what: str) -> Any:
    give_up_s = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        if time.monotonic() > give_up_s:
            raise RuntimeError(f"not within {PATIENCE_S:g} s: {what}")
        time.sleep(0.05)
    return found
