"""Memory for embedding tables on a GPU, laid out as `TableMemory` lays them out."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from hebe.embeddings.memory.table_memory import CHUNK_BYTES, layout
from hebe.embeddings.store import KeyArray, StoreError
from hebe.kernels.lookup.row_format import ByteArray, RowFormat


class GpuTableMemory:
    """Tables of these `shapes`, `(rows, dim)` by name, stored as `row_format` has them, in the memory of `device`.

    `flat`, uint8, holds them all; table `name` begins at byte `start[name]`. Rows are undefined until written. Raises
    `StoreError` when the memory cannot be had.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, int]], row_format: RowFormat, device: torch.device) -> None:
        self.shapes, self.row_format = dict(shapes), row_format
        self.start, size_bytes = layout(self.shapes, row_format)
        try:
            self.flat = torch.empty(size_bytes, dtype=torch.uint8, device=device)
        except torch.OutOfMemoryError:
            raise StoreError(
                f"hot rows need {size_bytes:,} bytes of the GPU's memory, which it has not free: give hot rows less of "
                "it, or stop what else runs there"
            ) from None
        self.closed = False

    def copy_rows(self, name: str, stored: ByteArray, keys: KeyArray) -> None:
        """Fill table `name` with the rows `keys` of `stored`, uint8 `[rows, row_bytes]`, in pieces."""
        row_bytes = stored.shape[1]
        step = max(1, CHUNK_BYTES // row_bytes)
        for first in range(0, len(keys), step):
            piece = np.take(stored, keys[first : first + step], axis=0, mode="clip")
            begin = self.start[name] + first * row_bytes
            self.flat[begin : begin + piece.size].copy_(torch.from_numpy(piece.reshape(-1)))

    def close(self) -> None:
        """Give the memory back, to other processes too, once nobody holds a view of it any more."""
        self.closed = True
        on_gpu, self.flat = self.flat.is_cuda, torch.empty(0, dtype=torch.uint8)
        if on_gpu:
            torch.cuda.empty_cache()
