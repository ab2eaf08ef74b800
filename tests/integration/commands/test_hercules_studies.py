"""The studies of Hercules' single server on this machine, with small models."""

from rich.progress import Progress

from hebe.machine.pinning import available_cores
from hebe.profiling.evaluator import Effort as LiveEffort
from hebe.spec import SlaTarget
from hebe_lab.studies.hercules import accelerator as hercules_accelerator
from hebe_lab.studies.hercules import accelerator as hercules_accelerator_runs
from hebe_lab.studies.hercules import live as hercules_live
from hebe_lab.studies.hercules.accelerator import FUSED, lane
from hebe_lab.studies.hercules.live import every_core, live_server, make_model, patient_machine, query_ms

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
