"""Tables in a GPU's memory; where there is no GPU, in torch's on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hebe.embeddings.memory import gpu_table_memory
from hebe.embeddings.memory.gpu_table_memory import GpuTableMemory
from hebe.embeddings.memory.table_memory import RowFormat, TableMemory
from hebe.embeddings.store import StoreError

DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
SHAPES = {"a": (50, 3), "b": (7, 64)}


@pytest.mark.parametrize("row_format", list(RowFormat))
def test_rows_lie_as_they_do_on_the_host(row_format, monkeypatch):
    monkeypatch.setattr(gpu_table_memory, "CHUNK_BYTES", 100)  # several pieces
    rng = np.random.default_rng(0)
    host = TableMemory(SHAPES, row_format)
    host.fill({name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()})
    memory = GpuTableMemory(SHAPES, row_format, DEVICE)
    orders = {name: rng.permutation(rows) for name, (rows, _) in SHAPES.items()}
    for name, order in orders.items():
        memory.copy_rows(name, host.stored(name), order)
    assert memory.start == host.start
    assert memory.flat.device == DEVICE
    copied = memory.flat.cpu().numpy()
    for name, order in orders.items():
        expected = host.stored(name)[order].reshape(-1)
        assert np.array_equal(copied[memory.start[name] :][: expected.size], expected)
    memory.close()
    assert memory.closed
    assert not memory.flat.numel()
    host.close()


def test_more_than_there_is_of_its_memory_is_told(monkeypatch):
    def refuse(*_: object, **__: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "empty", refuse)
    with pytest.raises(StoreError, match=r"hot rows need .* bytes of the GPU's memory, which it has not free"):
        GpuTableMemory(SHAPES, RowFormat.FP32, DEVICE)
