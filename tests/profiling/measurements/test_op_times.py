from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn

from hebe.models.importing.graph_capture import capture
from hebe.models.repository.repository import ModelRepository
from hebe.profiling.measurements.op_schedule import schedule_ops
from hebe.profiling.measurements.op_times import OpClass, measure_op_times
from hebe.runtime.loaded_model import LoadedModel


def measured(directory, name, items=8, **keywords):
    stored = ModelRepository(directory).open(name)
    with contextlib.closing(LoadedModel.load(directory, name)) as model:
        return stored.spec, measure_op_times(model, stored.dense_net(), items, repeats=2, **keywords)


def behind(times, name) -> set[str]:
    """All ops that `name` waits for."""
    found: set[str] = set()
    waiting = [name]
    reads = {op.name: op.inputs() for op in times.graph.ops}
    while waiting:
        for other in reads[waiting.pop()]:
            if other not in found:
                found.add(other)
                waiting.append(other)
    return found


@pytest.fixture(scope="module")
def dlrm(repository):
    return measured(repository, "peers-dlrm")


def test_the_ops_times_are_the_batchs(dlrm):
    _, times = dlrm
    assert times.items == 8
    by_class = times.by_class()
    assert set(by_class) == set(OpClass)
    assert by_class[OpClass.EMBEDDING_LOOKUP] == pytest.approx(times.sparse_s)
    assert sum(by_class.values()) == pytest.approx(times.sparse_s + times.dense_s)
    assert sum(times.seconds.values()) == pytest.approx(times.sparse_s + times.dense_s)
    assert times.dense_op_by_op_s > 0
    assert by_class[OpClass.RECURRENT] == by_class[OpClass.ATTENTION] == 0.0
    assert min(by_class[of] for of in (OpClass.FULLY_CONNECTED, OpClass.INTERACTION, OpClass.ELEMENT_WISE)) > 0


def test_lookups_share_the_sparsenets_time_by_what_they_gather(dlrm):
    spec, times = dlrm
    lookups = [times.seconds[f"lookup.{feature.name}"] for feature in spec.features]
    assert lookups == pytest.approx([times.sparse_s / len(spec.features)] * len(spec.features)), "all alike here"
    assert [name for name, of in times.classes.items() if of is OpClass.EMBEDDING_LOOKUP] == [
        f"lookup.{feature.name}" for feature in spec.features
    ]


def test_predict_waits_for_bottom_and_sparsenet_which_do_not_wait_for_each_other(dlrm):
    """Hercules section III-A."""
    spec, times = dlrm
    lookups = {f"lookup.{feature.name}" for feature in spec.features}
    linear = [op.name for op in times.graph.ops if op.target == "aten.linear.default"]
    assert len(linear) == len(spec.towers["bottom"]) + len(spec.towers["top"])
    assert not behind(times, linear[0])
    assert not behind(times, linear[len(spec.towers["bottom"]) - 1]) & lookups
    assert lookups < behind(times, linear[len(spec.towers["bottom"])])
    assert times.graph.ops[-1].name == times.graph.output
    assert behind(times, times.graph.output) | {times.graph.output} == set(times.seconds), "every op counts"


def test_idle_shares_are_those_of_the_schedule(dlrm):
    _, times = dlrm
    shares = [times.idle_share(workers) for workers in (1, 2, 4)]
    assert shares[0] == pytest.approx(0.0, abs=1e-9)
    assert shares == [schedule_ops(times.graph, times.seconds, workers).idle_share for workers in (1, 2, 4)]
    assert shares[0] < shares[1] < shares[2] < 1.0
    with pytest.raises(ValueError, match="workers is 0"):
        times.idle_share(0)


def test_a_model_with_a_behaviour_sequence(repository):
    _, times = measured(repository, "din", items=3)
    assert times.by_class()[OpClass.ATTENTION] > 0
    assert times.classes["baddbmm"] is OpClass.ATTENTION


def test_threads_and_cores_are_left_as_they_were(repository, monkeypatch):
    threads = torch.get_num_threads()
    during = []
    monkeypatch.setattr(
        "hebe.profiling.measurements.op_times._served_s", lambda *_: during.append(torch.get_num_threads()) or 1 / 0
    )
    with pytest.raises(ZeroDivisionError):
        measured(repository, "wnd")
    assert during == [1]
    assert torch.get_num_threads() == threads


class Masked(nn.Module):
    """An imported model whose DenseNet reads keys."""

    def __init__(self):
        super().__init__()
        self.rows = nn.Embedding(20, 4)
        self.score = nn.Linear(4, 1)

    def forward(self, history):
        seen = (history != 0).unsqueeze(2)
        return torch.sigmoid(self.score((self.rows(history) * seen).sum(1)))


def test_an_imported_model(tmp_path):
    captured = capture(Masked(), {"history": torch.randint(0, 20, (5, 3))}, "masked")
    ModelRepository(tmp_path).write(captured.spec, captured.tables, captured.dense_state, captured.graph)
    assert captured.spec.reads_keys
    _, times = measured(tmp_path, "masked", items=1)
    assert "lookup.history" not in behind(times, "ne"), "keys are there before their rows are"
    assert "lookup.history" in behind(times, "linear")
    assert times.classes["ne"] is OpClass.ELEMENT_WISE
    assert times.by_class()[OpClass.FULLY_CONNECTED] > 0


class Changing(nn.Module):
    def forward(self, dense, sparse, lengths):  # noqa: ARG002
        return (sparse * 2).add_(1).sum(1, keepdim=True)


def test_ops_that_change_their_argument_are_refused(repository):
    with contextlib.closing(LoadedModel.load(repository, "wnd")) as model:
        with pytest.raises(ValueError, match=r"model wnd: op aten.add_.Tensor changes its argument"):
            measure_op_times(model, Changing(), 4)
        with pytest.raises(ValueError, match="items is 0 and repeats 9: both must be at least 1"):
            measure_op_times(model, Changing(), 0)
