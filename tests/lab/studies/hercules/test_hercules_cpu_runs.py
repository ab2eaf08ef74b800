"""hercules-cpu's measurements of this machine: which splits under which targets, with nothing measured."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from rich.progress import Progress

from hebe.spec import SlaTarget
from hebe_lab.studies.hercules import cpu as hercules_cpu_runs
from hebe_lab.studies.hercules.cpu import Effort, lane, measured_here
from hebe_lab.studies.hercules.live import Point

SPLITS = [(2, 1), (1, 2)]


@pytest.fixture
def asked(monkeypatch):
    """SLA targets and candidates that are measured under them; a split of one worker does not settle."""
    calls = []

    @contextmanager
    def server(_repository, _name, sla, _effort, **_):
        yield SimpleNamespace(machine_words=f"Under {sla.latency_ms:g} ms.", sla=sla)

    def in_turns(server, candidates, repeats):
        calls.append((server.sla, candidates, repeats))
        return {(n, o): Point(server.sla.latency_ms * n, 10.0, 0.5) if n > 1 else None for n, o in candidates}

    monkeypatch.setattr(hercules_cpu_runs, "make_model", lambda *_: None)
    monkeypatch.setattr(hercules_cpu_runs, "patient_machine", lambda *_: None)
    monkeypatch.setattr(hercules_cpu_runs, "target_within_reach", lambda *_, **__: SlaTarget(20.0, 99.0))
    monkeypatch.setattr(hercules_cpu_runs, "live_server", server)
    monkeypatch.setattr(hercules_cpu_runs, "best_in_turns", in_turns)
    return calls


def test_every_split_is_measured_with_every_batch_size_under_every_target(asked, tmp_path):
    progress = Progress(disable=True)
    found, words = measured_here(SPLITS, Effort(1 << 20, (0.5, 2.0), (64, 256), 3), True, tmp_path, progress)
    assert [sla.latency_ms for sla, _, _ in asked] == [10.0, 40.0]
    for sla, candidates, repeats in asked:
        assert (sla.percentile, repeats) == (99.0, 3)
        assert candidates == {shape: [(lane(shape, 64),), (lane(shape, 256),)] for shape in SPLITS}
    assert found[2, 1] == {10.0: Point(20.0, 10.0, 0.5), 40.0: Point(80.0, 10.0, 0.5)}
    assert found[1, 2] == {10.0: None, 40.0: None}
    assert words == "Under 40 ms."
    assert not progress.tasks
