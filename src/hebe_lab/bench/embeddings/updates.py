"""What online updates cost a server, and how soon they are visible: 50,000 rows a second while it answers queries.

One server process reads all tables of a model through a cache, a hash map and RocksDB, and follows a log directory;
another process sends to that log, or sends nothing, in turns. Each turn searches the latency-bounded throughput anew.
From round to round the order of the two turns changes, so that a machine that becomes slower favours neither.
The worker has a core of its own; front end, ingestion, RocksDB, the load generator and the trainer share the others, so
that what the latter two take there counts against the server as well: the notes say how much the trainer took.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress

from hebe.cli.terminal.server_process import ServerProcess
from hebe.embeddings.updates.limits import BatchingOptions
from hebe.load_generator.search.qps_search import Probe, Workload
from hebe.load_generator.search.rate_search import Crossing
from hebe.load_generator.session import find_qps, run_load
from hebe.load_generator.target import Target, parse_endpoint
from hebe.machine.pinning import available_cores, pinned
from hebe.machine.process_limits import keep_large_allocations
from hebe.models.catalog import entry
from hebe.report.figures import Figure, median_and_spread, ratio_of_medians
from hebe.spec import ModelSpec
from hebe.workload.key_skew import spread_seed_of
from hebe.workload.query_sizes import FixedSizes
from hebe_lab.bench.embeddings.update_producer import SKEW, ProducerProcess, Sent, UpdatedTable
from hebe_lab.bench.serving.bench_model import bench_repository

ROWS_PER_S = 50_000.0
MODEL, SIZE = "deeprecsys-rm1", "production"
ITEMS = 32
SLA_MS = 100.0
"""The model's own."""

_CONFIG = """
[cache]
cache_fraction = 0.2
[volatile_db]
type = "parallel_hash_map"
[persistent_db]
type = "rocks_db"
path = "{directory}/rows"
[update_source]
type = "log_directory"
address = "{directory}/log"
"""
_READY_S = 300.0
_LOAD_OF_VISIBILITY = 0.7
"""Of the throughput without updates: the load at which it is measured how soon updates are visible."""
_QUIET_SHARE, _QUIET_STEP_S, _QUIET_WITHIN_S = 0.1, 0.25, 30.0
"""Between turns the server finishes what the last one left, until it takes so little of a core for so long."""
_WARM_UP_QPS = 50.0
_APPLIED_WITHIN_S = 60.0
_STATUS_S = 10.0
_INGESTION, _LAST_TIER = "tiers", "cache"


@dataclass(frozen=True, slots=True)
class _Effort:
    """How much is measured: share of the model's rows; turns with and without updates; of each turn's search the
    seconds of a probe, the rounds and the resolution; seconds in which it is measured how soon updates are visible.
    """

    scale: float
    turns: int
    probe_s: float
    rounds: int
    resolution: float
    visible_s: float


_QUICK = _Effort(scale=0.01, turns=2, probe_s=0.7, rounds=2, resolution=0.05, visible_s=4.0)
_FULL = _Effort(scale=0.05, turns=10, probe_s=1.5, rounds=3, resolution=0.03, visible_s=20.0)


def updates_figures(quick: bool, progress: Progress) -> list[Figure]:
    """`updates.*`; needs two cores. Raises RuntimeError where there are fewer, and where a process fails."""
    cores = available_cores()
    if len(cores) < 2:
        raise RuntimeError("this benchmark needs two cores: one for the worker, one for front end and load generator")
    effort = _QUICK if quick else _FULL
    repository = bench_repository(MODEL, SIZE, progress, effort.scale)
    keep_large_allocations()
    with tempfile.TemporaryDirectory(prefix="hebe-bench-") as name:
        directory = Path(name)
        (directory / "tiers.toml").write_text(_CONFIG.format(directory=directory))
        options = ["--workers", "1", "--sla-ms", str(SLA_MS), "--hierarchy", str(directory / "tiers.toml")]
        task = progress.add_task("starting a server with tiers", total=None)
        with ServerProcess(repository, directory / "server.log", options, _READY_S) as server:
            progress.remove_task(task)
            # Only once the server runs: it would inherit the cores, and its worker share them with all others.
            with pinned(cores[:-1]):
                spec = entry(MODEL, SIZE, effort.scale)
                with ProducerProcess(directory / "log", MODEL, _updated_tables(spec), ROWS_PER_S) as producer:
                    return _Measurement(server, producer, spec, effort, progress).figures()


def _updated_tables(spec: ModelSpec) -> list[UpdatedTable]:
    """What the trainer sends is hot where the queries are, as what is asked for is what is learnt from."""
    tables = {feature.table: (spec.table(feature.table), spread_seed_of(feature.name)) for feature in spec.features}
    return [UpdatedTable(table.name, table.rows, table.dim, seed) for table, seed in tables.values()]


class _Measurement:
    """Turns against one server."""

    def __init__(
        self, server: ServerProcess, producer: ProducerProcess, spec: ModelSpec, effort: _Effort, progress: Progress
    ) -> None:
        self._server, self._producer, self._spec = server, producer, spec
        self._effort, self._progress = effort, progress
        self._target = Target(parse_endpoint(server.http_url), MODEL)
        self._seed = 0
        self._sent: list[Sent] = []
        self._applied_shares: list[float] = []

    def figures(self) -> list[Figure]:
        """All of them."""
        effort = self._effort
        task = self._progress.add_task("updates while serving", total=2 * effort.turns + 2)
        run_load(self._target, self._workload(), _WARM_UP_QPS, effort.visible_s / 2)  # now level 1 has the hot rows
        self._progress.advance(task)
        without, following = list[float](), list[float]()
        visible: list[Figure] = []
        for turn in range(effort.turns):
            for updates in (False, True) if turn % 2 == 0 else (True, False):
                self._wait_until_quiet()
                if updates:
                    following.append(self._throughput_with_updates_qps())
                else:
                    without.append(self._throughput_without_qps())
                self._progress.advance(task)
                if not visible:
                    visible = self._visible(_LOAD_OF_VISIBILITY * without[0])
                    self._progress.advance(task)
        return [*self._throughputs(without, following), *visible]

    def _throughput_without_qps(self) -> float:
        found_qps = self._throughput_qps("without updates")
        if not found_qps:
            raise RuntimeError(f"{MODEL} meets {SLA_MS:g} ms at no load, also without updates: is the machine busy?")
        return found_qps

    def _throughput_with_updates_qps(self) -> float:
        self._producer.start()
        found_qps = self._throughput_qps("with updates")
        self._end_updates()
        return found_qps

    def _throughput_qps(self, what: str) -> float:
        """The latency-bounded throughput, searched from nothing."""
        effort = self._effort
        task = self._progress.add_task(f"latency-bounded throughput {what} (probes)", total=None)

        def show(probe: Probe, crossing: Crossing | None) -> None:  # noqa: ARG001
            self._progress.advance(task)

        try:
            found = find_qps(
                self._target,
                self._workload(),
                probe_s=effort.probe_s,
                rounds=effort.rounds,
                resolution=effort.resolution,
                on_probe=show,
            )
        finally:
            self._progress.remove_task(task)
        self._server.check()
        return found.crossing.qps if found.crossing is not None else 0.0

    def _visible(self, rate_qps: float) -> list[Figure]:
        """How soon updates are in each tier, at a load that the server bears."""
        self._producer.start()
        run_load(self._target, self._workload(), rate_qps, self._effort.visible_s)
        self._end_updates()
        followed = self._followed()
        visible = followed["visible_s"]
        note = f"{followed['messages']:,} messages in {self._effort.visible_s:g} s, beside {rate_qps:.0f} queries/s; "
        note += f"a batch waits {BatchingOptions().linger_s:g} s for company at the trainer"
        figures = []
        for percentile in ("p50", "p99"):
            name = f"updates.visible_{percentile}_s"
            until = f"from the trainer's send until it is in {_LAST_TIER}, the last tier"
            figures.append(Figure(name, visible[_LAST_TIER][percentile], "s", note=f"{until}; {note}"))
            figures += [
                Figure(f"{name}.{tier}", each[percentile], "s", note=note)
                for tier, each in visible.items()
                if tier != _LAST_TIER
            ]
        return figures

    def _end_updates(self) -> None:
        """Stop the trainer, note how much of it was applied then, and wait for the rest."""
        sent = self._producer.stop()
        before = sum(each.rows for each in self._sent)
        self._sent.append(sent)
        self._applied_shares.append((self._followed()["rows"] - before) / sent.rows)
        give_up_s = time.monotonic() + _APPLIED_WITHIN_S
        while self._followed()["rows"] < before + sent.rows:
            self._server.check()
            if time.monotonic() > give_up_s:
                raise RuntimeError(f"updates are not applied within {_APPLIED_WITHIN_S:g} s: {self._followed()}")
            time.sleep(_QUIET_STEP_S)

    def _throughputs(self, without: list[float], following: list[float]) -> list[Figure]:
        turns = len(following)
        tables = self._spec.tables
        model = (
            f"{MODEL}, {sum(table.rows for table in tables):,} rows of {tables[0].dim} floats in {len(tables)} tables"
        )
        value, low, high = ratio_of_medians(following, without)
        note = (
            f"{np.median(following):.1f} of {np.median(without):.1f} queries/s of {ITEMS} items; {model}; beside the "
            f"server, the trainer took {np.median([sent.cpu_s / sent.seconds for sent in self._sent]):.0%} of a core"
        )
        kept = Figure("updates.qps_kept", value, "ratio", low, high, turns, ">= 0.9", note=note)
        rates = [sent.rows / sent.seconds for sent in self._sent]
        value, low, high = median_and_spread(self._applied_shares)
        note = f"{np.median(rates):,.0f} rows/s sent; the rest was on its way when the trainer stopped"
        applied = Figure("updates.applied_over_sent", value, "ratio", low, high, len(rates), ">= 0.98", note=note)
        qps = median_and_spread(without)
        return [kept, applied, Figure("updates.qps_without", qps[0], "queries/s", *qps[1:], turns, note=model)]

    def _workload(self) -> Workload:
        self._seed += 1
        return Workload(FixedSizes(ITEMS), keys=SKEW, seed=self._seed)

    def _followed(self) -> dict[str, Any]:
        """What the server says of its ingestion."""
        with urllib.request.urlopen(f"{self._server.http_url}/v2/status", timeout=_STATUS_S) as answer:
            (model,) = json.load(answer)["models"]
        followed: dict[str, Any] = model["updates"][_INGESTION]
        return followed

    def _wait_until_quiet(self) -> None:
        give_up_s = time.monotonic() + _QUIET_WITHIN_S
        while True:
            before_s = self._cpu_s()
            time.sleep(_QUIET_STEP_S)
            if self._cpu_s() - before_s < _QUIET_SHARE * _QUIET_STEP_S or time.monotonic() > give_up_s:
                return

    def _cpu_s(self) -> float:
        """The server's own time so far."""
        fields = Path(f"/proc/{self._server.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
