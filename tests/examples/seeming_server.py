"""`hebe profile` on a server that only seems to run."""

import json
from dataclasses import replace

import pytest

from hebe.cli.main import main
from hebe.planning.server_split.search import Reached
from hebe.profile import LatencyProfile, ScalabilityProfile
from hebe.profiling.files.op_use import OpUse
from hebe.profiling.files.points import ScalabilityPoint
from hebe.profiling.steady_machine import RunDisturbance
from hebe.scheduling.events import Stage
from hebe.server_configuration import Lane, Placement
from hebe.spec import ServerSpec

SERVER = ServerSpec("small-4-cores", 4, 8 << 30)
LATENCY = LatencyProfile((16, 64), (0.001, 0.002), (0.0, 0.0001))
BEST = Lane(Placement.MODEL_ON_HOST, 2, 2, 256)


class Seeming:
    """Two workers of two cores with batches of 256 are best; the more cores, the more power."""

    noise, power_source, power_estimated = 0.0, "CPU utilization", True
    disturbance = RunDisturbance(0.03125, 64, 1.0)  # of each measurement from here on
    bandwidth_source, traffic, lowest_qps, cpu_share = "counted by an abacus", None, 7.1, 0.2
    power_unreadable = ("power of packages cannot be read: no meter",)

    def __init__(self):
        self.asked, self.opened, self.late, self.fault_at, self.fault = [], [], False, None, None
        self.disturbances = []
        self.points, self.timed, self.killed_at, self.said, self.op_fault = [], [], None, {}, None
        self.first_qps, self.worker_qps = {}, 100.0  # what lanes reach at first instead, and by points of scalability

    def __call__(self, configuration):
        if len(self.asked) == self.fault_at:
            raise self.fault
        self.asked.append(configuration)
        self.disturbances.append(self.disturbance)
        here, *_ = configuration
        said = {"power_source": self.power_source, "power_estimated": self.power_estimated, **self.said}
        if (nth := self.asked.count(configuration)) <= len(first := self.first_qps.get(here, ())):
            return Reached(first[nth - 1], 20.0, 8.9, **said)
        if self.late:
            return Reached(0.0, 20.0, 400.0 / here.cores, **said)
        far = abs(here.workers - 2) + abs(here.cores_per_worker - 2) + abs(here.batch_size.bit_length() - 9)
        qps = 1000.0 / (1 + far + 5 * here.dense_workers)
        traffic, cpu_share = self.traffic, None if self.cpu_share is None else self.cpu_share * here.cores
        return Reached(qps, 20.0 + here.cores, 10.0, **said, bandwidth_bytes_per_s=traffic, cpu_share=cpu_share)

    def remarks(self, found_qps):
        return (f"{found_qps:g} is a round number",) if self.late is None else ()

    def latency_profiles(self, configuration):
        self.asked_latency = configuration
        self.disturbances.append(self.disturbance)
        return {"whole": LATENCY}

    def busy_profiles(self, lane, batch_sizes):
        self.timed.append((lane, batch_sizes))
        self.disturbances.append(self.disturbance)
        stages = (Stage.SPARSE, Stage.DENSE) if lane.dense_workers else (Stage.WHOLE,)
        return dict.fromkeys(stages, LATENCY)

    def op_use(self, items):
        if self.op_fault is not None:
            raise self.op_fault
        return OpUse(items, {"embedding lookup": 0.003, "fully connected": 0.001}, {2: 0.25})

    def scalability_point(self, configuration, cache_ways):
        if len(self.points) == self.killed_at:
            raise KeyboardInterrupt
        self.points.append((configuration[0].workers, cache_ways))
        self.disturbances.append(self.disturbance)
        qps = self.worker_qps * configuration[0].workers - (0.0 if cache_ways is None else 50.0)
        return ScalabilityPoint(max(qps, 0.0), 1e9, estimated=False, power_watts=20.0 + configuration[0].cores)

    def scalability(self, lane, measure):
        by_workers = [(replace(lane, workers=workers),) for workers in (1, 2)]
        alone, whole = (measure(each, None) for each in by_workers)
        part = measure(by_workers[-1], 2)
        return ScalabilityProfile(
            "tiny", (1, 2), (alone.qps, whole.qps), (1e9, 2e9), (2, 11), ((), (part.qps, whole.qps))
        )


def run(capsys, repository, *options):
    """By Algorithm 1 unless the options say otherwise: a prediction takes seconds."""
    strategy = [] if "--strategy" in options else ["--strategy", "hercules"]
    return run_as_typed(capsys, repository, *strategy, *options)


def run_as_typed(capsys, repository, *options):
    with pytest.raises(SystemExit) as exit_:
        main(["profile", str(repository), "--model", "tiny", *map(str, options)])
    captured = capsys.readouterr()
    return exit_.value.code or 0, captured.out, captured.err


def profiled(capsys, repository, *options):
    code, out, err = run(capsys, repository, *options, "--json")
    assert code == 0, err
    return json.loads(out.splitlines()[-1]), err


def flat(words):
    """As one line, without the box that wrong usage comes in."""
    return " ".join(words.replace("│", " ").split())
