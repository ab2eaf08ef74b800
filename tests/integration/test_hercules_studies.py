"""The studies of Hercules' single server on this machine, with small models."""

from rich.progress import Progress

from hebe.planning.parallelism import Reached
from hebe.profiling.effort import Effort as LiveEffort
from hebe.runtime.pinning import available_cores
from hebe.server_configuration import Lane, Placement
from hebe.spec import SlaTarget
from hebe.studies import hercules_accelerator, hercules_accelerator_runs, hercules_live
from hebe.studies.hercules_accelerator import FUSED, lane
from hebe.studies.hercules_live import (
    SLACK,
    alternated,
    every_core,
    live_server,
    longer_target,
    make_model,
    patient_machine,
    query_ms,
)

SHORTEST = LiveEffort(probe_s=0.1, warm_up_s=0.05, rounds=2, resolution=0.5, longest_s=60.0, highest_qps=40.0)
"""Of a moment, and of rates and targets that any machine keeps, however busy it is."""


def test_what_a_split_of_this_machine_reaches(tmp_path):
    repository = make_model("dlrm-rmc1", 1 << 19, tmp_path, Progress(disable=True))
    with live_server(repository, "dlrm-rmc1", SlaTarget(30_000.0), SHORTEST) as server:
        assert query_ms(server.live, every_core(), 10) > 0
        point = server.point(every_core())
        assert point is not None
        assert point.qps > 0
        assert point.power_watts > 0
        assert 0 <= point.utilization <= 1
        assert server.machine_words.startswith("Power is")


class _InTurns:
    """Reaches more each time, but nothing at the third."""

    def __init__(self):
        self.asked = []

    def __call__(self, configuration):
        self.asked.append(configuration)
        return Reached(float(len(self.asked)) if len(self.asked) != 3 else 0.0)


def test_configurations_are_measured_in_turns_and_a_failure_once_more():
    one, other = ((Lane(Placement.MODEL_ON_HOST, count),) for count in (1, 2))
    server = _InTurns()
    assert alternated(server, [one, other], 2) == [[1.0, 4.0], [2.0, 5.0]]
    assert server.asked == [one, other, one, one, other]


def test_a_target_is_made_longer_only_where_it_must_be():
    assert longer_target(SlaTarget(20.0, 99.0), 20.0 / SLACK) == SlaTarget(20.0, 99.0)
    assert longer_target(SlaTarget(20.0, 99.0), 100.4 / SLACK) == SlaTarget(100.0, 99.0)


def test_the_second_device_runs_whole_models_by_policy(tmp_path, monkeypatch):
    monkeypatch.setattr(hercules_accelerator_runs, "FIRST_LOOK", SHORTEST)
    monkeypatch.setattr(hercules_live, "SLACK", 5000.0)
    asked = []
    monkeypatch.setattr(hercules_accelerator_runs, "best_in_turns", lambda *told: asked.append(told) or {FUSED: None})
    effort = hercules_accelerator.Effort(("RMC3",), 1 << 19, (1,), 1024, (16,), (0.5,), 0.5, 1)
    progress = Progress(disable=True)
    machine = patient_machine(True, progress)
    found = hercules_accelerator_runs.measured_here("dlrm-rmc1", effort, True, machine, tmp_path, progress)
    ((_, candidates, repeats),) = asked
    assert (candidates[FUSED], repeats) == ([(lane(1, 1024),)], 1)
    assert "whole model, 16" in found.alone
    assert ("DenseNet alone, 16" in found.alone) == (len(available_cores()) > 1)
    for breakdown in (*found.alone.values(), *found.loaded.values()):
        assert breakdown.inference > 0
        assert breakdown.loading > 0
    assert set(found.loaded) == {"single, 50% load", "fused, 50% load"}
    assert not list(tmp_path.iterdir()), "the model is gone"
