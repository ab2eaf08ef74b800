import logging

import pytest
import torch
from torch import nn

from hebe.models.importing.graph_capture import GraphCaptureError, capture
from hebe.models.importing.module_inputs import FlatModule
from hebe.models.importing.split_check import check_split, dense_net_inputs
from hebe.models.repository.repository import ModelRepository
from hebe.spec import SlaTarget

from .small_modules import SUPPORTED, X, bag, captured_case, floats, from_function


@pytest.mark.parametrize("case", SUPPORTED)
def test_the_split_model_equals_the_module(case):
    module, example, captured = captured_case(case)
    assert check_split(module, example, captured) <= 1e-6


@pytest.mark.parametrize("case", SUPPORTED)
def test_a_stored_import_gives_the_scores_of_the_module(tmp_path, case):
    module, example, captured = captured_case(case)
    stored = ModelRepository(tmp_path).write(captured.spec, captured.tables, captured.dense_state, captured.graph)
    assert stored.spec == captured.spec
    assert stored.spec.sla == SlaTarget(7.0, 99.0)
    assert stored.graph() == captured.graph
    flat = FlatModule(module, example)
    inputs = {source.name: source.example for source in flat.inputs}
    scores = stored.dense_net()(*dense_net_inputs(captured, inputs))
    expected = flat(*inputs.values())
    torch.testing.assert_close(scores, expected.reshape(len(scores), -1), rtol=0, atol=1e-6)


REFUSED = {
    r"it fixes the number of items to that of the example, 6": (
        from_function(lambda m, x: m.e(x.view(6, -1)), e=bag()),
        (X,),
    ),
    "the module changes input inputs_1 while it scores": (
        from_function(lambda m, x, y: m.e(x) + y.add_(1)[:, :2], e=bag()),
        (X, floats(6, 3)),
    ),
}


def branching(module, x):
    y = module.e(x)
    return y * 2 if y.sum() > 0 else y


def scaling(module, x):
    y = module.e(x)
    return y / y.max().item() if y.max().item() > 1 else y


def looping(module, x):
    return torch.stack([module.table.weight[row].mean(0) for row in x.tolist()])


def packing(module, x, lengths):
    packed = nn.utils.rnn.pack_padded_sequence(module.table(x), lengths, batch_first=True, enforce_sorted=False)
    return module.gru(packed)[1][0]


def fixing(module, x):
    return module.e(x).view(6, 2)


def sparse(module, x):
    return module.e(x).to_sparse().to_dense()


FAILING = {  # how, of which line, for which reason
    branching: ((X,), r"return y \* 2 if y.sum", "choose with torch.where"),
    scaling: ((X,), "return y / y.max", r"without .item\(\)"),
    looping: ((X,), "torch.stack", r"and .tolist\(\)"),
    packing: ((X, torch.tensor([1, 3, 2, 1, 2, 3])), "packed = .*pack_padded_sequence", "it cannot follow packed seq"),
    fixing: ((X,), r"return module.e\(x\).view\(6, 2\)", "it fixes the number of items to that of the example, 6"),
    sparse: ((X,), "to_sparse", "UnsupportedOperatorException: aten._to_sparse"),
}


@pytest.mark.parametrize("forward", FAILING)
def test_where_an_export_fails_the_users_line_is_named_and_what_to_do(forward):
    example, code, reason = FAILING[forward]
    module = from_function(forward, e=bag(), table=nn.Embedding(20, 2), gru=nn.GRU(2, 2, batch_first=True))
    line = rf"torch.export cannot capture the module \(test_graph_capture.py, line \d+: `.*{code}.*`\): "
    with pytest.raises(GraphCaptureError, match=f"{line}.*{reason}"):
        capture(module, example, "model")


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_captured_is_named(message):
    module, example = REFUSED[message]
    with pytest.raises(GraphCaptureError, match=message):
        capture(module, example, "model")


def test_an_export_that_fails_is_told_by_the_error_alone(capfd, caplog):
    module = from_function(lambda m, x: m.e(x) if x.max() > 10 else m.e(x) * 2, e=bag())
    before = logging.root.manager.disable
    with pytest.raises(GraphCaptureError, match=r"torch.export cannot capture the module .* it branches"):
        capture(module, (X,), "model")
    assert capfd.readouterr() == ("", "")
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert logging.root.manager.disable == before
