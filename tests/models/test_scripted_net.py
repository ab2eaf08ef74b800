import ctypes
import os
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from hebe.kernels.lookup.batch_loop import BATCH, BLOCK_WORDS, END, Word
from hebe.kernels.lookup.fused_lookup import LookupWord
from hebe.models.architectures.graph_module import build
from hebe.models.importing.graph_capture import GraphCaptureError, capture
from hebe.models.importing.split_check import check_split, dense_net_inputs
from hebe.models.scripted_net import example_inputs, register_next_batch, release_address, scripted
from hebe.spec import EmbeddingTableSpec, FeatureSpec, ModelSpec, Pooling

HISTORY = {"history": torch.arange(128).reshape(8, 16)}


class Weighed(nn.Module):
    """A convolution over 16 keys with 16 channels, each place weighed by what was learned for that place."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.rows, self.conv = nn.Embedding(128, 16), nn.Conv1d(16, 16, 3, padding=1)
        self.place, self.head = nn.Parameter(torch.rand(1, 16)), nn.Linear(16, 1)

    def forward(self, history):
        channels = self.conv(self.rows(history).transpose(1, 2)) * self.place
        return self.head(channels.relu().sum(2))


def test_a_factor_after_a_convolution_stays_at_its_dimension():
    """Folded into the convolution's weights, as torch.jit.freeze does, it would be taken for one a channel."""
    module = Weighed()
    captured = capture(module, HISTORY, "model")
    inputs = dense_net_inputs(captured, HISTORY)
    function = scripted(build(captured.graph, captured.dense_state).eval(), inputs)
    with torch.no_grad():
        torch.testing.assert_close(function(*inputs), module(**HISTORY))


def test_the_split_is_checked_with_the_function_that_is_served(monkeypatch):
    module, freeze = Weighed(), torch.jit.freeze
    captured = capture(module, HISTORY, "model")
    assert check_split(module, HISTORY, captured) <= 1e-6
    monkeypatch.setattr(
        torch.jit, "freeze", lambda function, **options: freeze(function, **options | {"optimize_numerics": True})
    )
    with pytest.raises(GraphCaptureError, match="the captured model differs on the example"):
        check_split(module, HISTORY, captured)


class Tied(nn.Module):
    """Two layers of one weight, a buffer that is stored and one that is not."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(512, 512), nn.Linear(512, 512)
        self.second.weight = self.first.weight
        self.register_buffer("scale", torch.tensor([3.0]))
        self.register_buffer("shift", torch.tensor([5.0]), persistent=False)

    def forward(self, values):
        return self.second(self.first(values)) * self.scale + self.shift


def test_weights_are_not_copied_and_stay_the_modules(monkeypatch):
    module, written, save = Tied().eval().requires_grad_(False), [], torch.jit.save

    def saved(traced, file):
        save(traced, file)
        written.append(file.tell())

    monkeypatch.setattr(torch.jit, "save", saved)
    values = torch.rand(4, 512)
    expected = module(values)
    function = scripted(module, (torch.rand(2, 512),))
    assert written < [50_000], "a MiB of weights is not in it"
    assert torch.equal(function(values), expected)
    assert torch.equal(module(values), expected)
    module.first.weight.zero_()
    assert torch.equal(function(values), module(values)), "it computes with the module's own"


def test_a_module_keeps_its_weights_where_writing_fails(monkeypatch):
    module = Tied().eval()

    def full(_traced, _file):
        raise OSError("no space")

    monkeypatch.setattr(torch.jit, "save", full)
    with pytest.raises(OSError, match="no space"):
        scripted(module, (torch.rand(2, 512),))
    assert module.first.weight.shape == (512, 512)
    assert module.second.weight is module.first.weight
    assert module.scale.tolist() == [3.0]


def test_example_keys_are_any_rows_of_their_tables():
    """Not the first of each, which may be the padding: what is divided by how many others there are has no score."""
    tables = EmbeddingTableSpec("few", 3, 4), EmbeddingTableSpec("many", 1000, 4)
    features = FeatureSpec("f", "few", 2, Pooling.SUM), FeatureSpec("g", "many", 1, Pooling.SUM)
    *_, keys = example_inputs(ModelSpec("m", "graph", tables, features, settings={"reads_keys": True}), 500)
    assert (keys.shape, keys.dtype) == ((500, 3), torch.int64)
    assert set(keys[:, :2].flatten().tolist()) == {0, 1, 2}
    assert keys[:, 2].min() >= 0
    assert 900 < keys[:, 2].max() < 1000


class Counting(torch.nn.Module):
    """Adds up the items of all batches in `scores`."""

    def forward(self, block: int, scores: torch.Tensor, others: torch.Tensor) -> int:
        items = torch.ops.hebe.next_batch(block, scores, others, others, others, others)
        while items > 0:
            scores += items
            items = torch.ops.hebe.next_batch(block, scores, others, others, others, others)
        return items


def test_a_scripted_module_goes_from_batch_to_batch_and_keeps_no_tensor():
    register_next_batch()
    register_next_batch()  # once in a process, however often it is asked for
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        counting = torch.jit.script(Counting())
    sizes = iter((3, 4))
    looking_up = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    look_up = looking_up(lambda _block, _two, _three: block.__setitem__(LookupWord.ITEMS, next(sizes)) or 0)
    libc = ctypes.CDLL(None)
    inbox, orders = os.pipe()
    block, left = np.zeros(BLOCK_WORDS, np.int64), np.zeros(1, np.int64)
    block[Word.LEFT] = left.ctypes.data
    block[Word.INBOX], block[Word.OUTBOX], block[Word.RELEASE] = inbox, -1, release_address()
    block[Word.LOOK_UP] = ctypes.cast(look_up, ctypes.c_void_p).value
    for word, function in ((Word.READ, libc.read), (Word.WRITE, libc.write), (Word.CLOCK, libc.clock_gettime)):
        block[word] = ctypes.cast(function, ctypes.c_void_p).value
    for message in (BATCH, BATCH, END):
        os.write(orders, np.int64(message).tobytes())
    scores, others = torch.zeros(2), torch.zeros(1)
    uses = scores._use_count()
    assert counting(block.ctypes.data, scores, others) == 0
    assert scores.tolist() == [7, 7]
    assert scores._use_count() == uses
    os.close(inbox)
    os.close(orders)
