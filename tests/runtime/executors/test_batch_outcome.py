"""The buffers of a batch."""

from __future__ import annotations

import numpy as np

from hebe.models.catalog import entry
from hebe.runtime.executors.batch_outcome import DenseInputs


def test_arrays_and_tensors_are_the_same_memory():
    spec = entry("din", scale=1e-6)
    inputs = DenseInputs(spec, 4, hot=True)
    assert (inputs.keys == -1).all()
    assert inputs.hot_keys is not None
    assert (inputs.hot_keys == -1).all()
    inputs.sparse[2] = 7
    inputs.hot_keys[1] = 5
    assert (inputs.tensors[1][2] == 7).all()
    assert (inputs.tensors[-1][1] == 5).all()
    for array, tensor in zip(inputs.arrays, inputs.tensors, strict=True):
        assert np.array_equal(array, tensor.numpy())
    assert len(DenseInputs(spec, 4).tensors) == len(inputs.tensors) - 1


def test_a_densenet_lets_go_of_the_tensors_without_the_interpreter_lock():
    """A tensor that nothing but Python holds, and what runs in TorchScript for a moment, needs it for that."""
    inputs = DenseInputs(entry("din", scale=1e-6), 4, hot=True)
    assert all(tensor._use_count() > 1 for tensor in inputs.tensors)
