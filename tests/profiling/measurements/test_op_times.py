from __future__ import annotations

import contextlib
import warnings

import pytest
import torch
from torch import nn

from hebe.models.architectures.build import build_dense_net
from hebe.models.importing.graph_capture import capture
from hebe.models.repository.repository import ModelRepository
from hebe.models.scripted_net import example_inputs
from hebe.profiling.measurements.op_schedule import schedule_ops
from hebe.profiling.measurements.op_times import OpClass, class_of, measure_op_times
from hebe.runtime.loaded_model import LoadedModel
from hebe.spec import EmbeddingTableSpec, FeatureSpec, ModelSpec, Pooling


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


BEHAVIOURS = (FeatureSpec("item", "t", 1, Pooling.SUM), FeatureSpec("item_history", "t", 3, Pooling.ATTENTION))


PLAIN = (FeatureSpec("a", "t", 2, Pooling.SUM), FeatureSpec("b", "t", 1, Pooling.SUM))


def exported(module: nn.Module, inputs) -> list[torch.fx.Node]:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = torch.export.export(module, inputs).module(check_guards=False).graph
    return [node for node in graph.nodes if node.op == "call_function"]


def classes(architecture: str, features, **fields) -> dict[str, OpClass]:
    """Class by op of a small model, numbered where an op comes several times."""
    spec = ModelSpec("m", architecture, (EmbeddingTableSpec("t", 9, 8),), features, dense_dim=5, **fields)
    attends = features is BEHAVIOURS
    return {
        node.name: class_of(node, attends)
        for node in exported(build_dense_net(spec).requires_grad_(False), example_inputs(spec, 4))
    }


def test_dlrm():
    found = classes("dlrm", PLAIN, towers={"bottom": (9, 8), "top": (12, 1)})
    assert {name: found[name] for name in ("linear", "relu", "bmm", "cat", "index_select", "transpose", "sigmoid")} == {
        "linear": OpClass.FULLY_CONNECTED,
        "relu": OpClass.ELEMENT_WISE,
        "bmm": OpClass.INTERACTION,
        "cat": OpClass.INTERACTION,
        "index_select": OpClass.INTERACTION,
        "transpose": OpClass.OTHER,
        "sigmoid": OpClass.ELEMENT_WISE,
    }


def test_cross_layers_are_interaction_all_of_them():
    found = classes(
        "dlrm-dcnv2", PLAIN, towers={"bottom": (9, 8), "top": (12, 1)}, settings={"cross_layers": 1, "cross_rank": 4}
    )
    of = [found[name] for name in found if name.startswith(("linear", "addcmul"))]
    fully, met = OpClass.FULLY_CONNECTED, OpClass.INTERACTION
    assert of == [fully, fully, met, met, met, fully, fully]


def test_products_with_weights_are_fully_connected_whatever_their_op():
    found = classes("multi-task-wide-and-deep", PLAIN, outputs=2, towers={"trunk": (6,), "task": (8, 5)})
    products = [name for name in found if name.startswith(("linear", "baddbmm", "matmul"))]
    assert any(name.startswith("baddbmm") for name in products)
    assert {found[name] for name in products} == {OpClass.FULLY_CONNECTED}


def test_din():
    found = classes("din", BEHAVIOURS, towers={"attention": (10, 4, 1), "top": (12, 2)})
    for name in ("addmm", "baddbmm", "bmm", "prelu", "prelu_1"):
        assert found[name] == OpClass.ATTENTION
    assert found["lt"] == OpClass.OTHER
    top = [name for name in found if name.startswith("linear")][-2:]
    assert [found[name] for name in top] == [OpClass.FULLY_CONNECTED] * 2
    assert found["prelu_2"] == OpClass.ELEMENT_WISE


def test_dien():
    found = classes("dien", BEHAVIOURS, towers={"top": (12, 2)})
    assert found["gru"] == OpClass.RECURRENT
    steps = [name for name in found if name.startswith(("addmm", "addcmul", "tanh", "lerp"))]
    assert len(steps) == 4 * 3, "of each step of the second GRU"
    assert {found[name] for name in steps} == {OpClass.RECURRENT}
    assert found["einsum"] == found["softmax"] == OpClass.ATTENTION


def test_bst():
    found = classes("bst", BEHAVIOURS, towers={"top": (12, 1)}, settings={"heads": 2, "feed_forward": 20})
    assert found["scaled_dot_product_attention"] == OpClass.ATTENTION
    assert found["layer_norm"] == found["leaky_relu"] == OpClass.ELEMENT_WISE
    assert found["linear"] == OpClass.FULLY_CONNECTED


class Foreign(nn.Module):
    """Layers of torch's own."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 3)
        self.cell = nn.GRUCell(3, 3)

    def forward(self, x):
        steps = self.lstm(x)[0]
        return torch.stack([self.cell(steps[0]), steps[1]]).mean(0)


def test_layers_of_torchs_own():
    found = {node.name: class_of(node, False) for node in exported(Foreign().eval(), (torch.rand(2, 5, 4),))}
    assert found["lstm"] == found["gru_cell"] == OpClass.RECURRENT
    assert found["stack"] == OpClass.INTERACTION
    assert found["mean"] == OpClass.ELEMENT_WISE
    assert found["select"] == OpClass.OTHER


class Imported(nn.Module):
    """What people's own networks have besides."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(4, 3, 2)
        self.pool = nn.MaxPool1d(2)
        self.bilinear = nn.Bilinear(3, 3, 2)
        self.norm = nn.BatchNorm1d(2)
        self.weight = nn.Parameter(torch.rand(5, 2))
        self.heads = nn.Parameter(torch.rand(2, 5, 5))

    def forward(self, x):
        y = self.pool(self.conv(x)).amax(2)
        y = nn.functional.normalize(self.norm(self.bilinear(y, y))) @ self.weight.T
        return torch.einsum("nd,de->ne", y, self.heads[0].transpose(0, 1)) + y @ (y.T @ y)


def test_what_imported_networks_have_besides():
    nodes = exported(Imported().eval().requires_grad_(False), (torch.rand(2, 4, 6),))
    assert [(str(node.target).split(".")[1], class_of(node, False)) for node in nodes] == [
        ("conv1d", OpClass.FULLY_CONNECTED),
        ("max_pool1d", OpClass.ELEMENT_WISE),
        ("amax", OpClass.ELEMENT_WISE),
        ("bilinear", OpClass.FULLY_CONNECTED),
        ("batch_norm", OpClass.ELEMENT_WISE),
        ("linalg_vector_norm", OpClass.ELEMENT_WISE),
        ("clamp_min", OpClass.ELEMENT_WISE),
        ("expand_as", OpClass.OTHER),
        ("div", OpClass.ELEMENT_WISE),
        ("numpy_T", OpClass.OTHER),
        ("matmul", OpClass.FULLY_CONNECTED),
        ("select", OpClass.OTHER),
        ("transpose", OpClass.OTHER),
        ("einsum", OpClass.FULLY_CONNECTED),
        ("numpy_T", OpClass.OTHER),
        ("matmul", OpClass.INTERACTION),
        ("matmul", OpClass.INTERACTION),
        ("add", OpClass.ELEMENT_WISE),
    ]


def test_batch_norm_has_another_name_in_a_graph_that_was_stored():
    (node,) = exported(nn.BatchNorm1d(2).eval(), (torch.rand(3, 2),))
    node.target = torch.ops.aten._native_batch_norm_legit_no_training.default
    assert class_of(node, False) == OpClass.ELEMENT_WISE


@pytest.mark.parametrize("of", list(OpClass))
def test_a_class_is_called_by_its_name(of):
    assert str(of) == of.value == OpClass(of.value)
