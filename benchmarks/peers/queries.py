"""The queries that all servers answer, drawn once, in the three forms that the clients send.

Raw bytes for servers without a protocol of their own; Open Inference Protocol requests with binary tensors; and
perf_analyzer's JSON. Several queries are sent in turn, so that no server answers from rows still in the CPU's cache.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

ITEMS = 32
QUERIES = 16


@dataclass(frozen=True)
class QuerySet:
    """`QUERIES` queries of `ITEMS` items.

    `features` names the inputs; `keys` int64 `[queries, features, items, lookups]`;
    `dense` float32 `[queries, items, dense_dim]`.
    """

    features: tuple[str, ...]
    keys: npt.NDArray[np.int64]
    dense: npt.NDArray[np.float32]

    @classmethod
    def draw(cls, features: tuple[str, ...], rows: int, lookups: int, dense_dim: int, seed: int) -> QuerySet:
        """Uniform keys below `rows`, standard normal dense values."""
        generator = np.random.default_rng(seed)
        keys = generator.integers(0, rows, (QUERIES, len(features), ITEMS, lookups), dtype=np.int64)
        return cls(features, keys, generator.standard_normal((QUERIES, ITEMS, dense_dim), dtype=np.float32))

    def raw_bodies(self) -> list[bytes]:
        """Keys of every feature in turn, then the dense values; little-endian, no framing."""
        return [keys.tobytes() + dense.tobytes() for keys, dense in zip(self.keys, self.dense, strict=True)]

    def protocol_requests(self) -> tuple[dict[str, str], list[bytes]]:
        """HTTP headers (the same for all) and bodies of infer requests with binary tensors in and out."""
        inputs = [
            *((name, "INT64", self.keys[0, index]) for index, name in enumerate(self.features)),
            ("dense", "FP32", self.dense[0]),
        ]
        described = [
            {
                "name": name,
                "datatype": datatype,
                "shape": list(array.shape),
                "parameters": {"binary_data_size": array.nbytes},
            }
            for name, datatype, array in inputs
        ]
        header = json.dumps({"inputs": described, "parameters": {"binary_data_output": True}}).encode()
        headers = {
            "Content-Type": "application/octet-stream",
            "Inference-Header-Content-Length": str(len(header)),
        }
        return headers, [header + body for body in self.raw_bodies()]

    def write_perf_analyzer_data(self, path: Path, batched: bool) -> None:
        """perf_analyzer's `--input-data`: one entry an item if it makes the batches, else one a query."""
        entries = []
        for keys, dense in zip(self.keys, self.dense, strict=True):
            steps = range(ITEMS) if batched else [slice(None)]
            for step in steps:
                entry = {"dense": _described(dense[step])}
                entry.update({name: _described(keys[i, step]) for i, name in enumerate(self.features)})
                entries.append(entry)
        path.write_text(json.dumps({"data": entries}))


def _described(array: npt.NDArray[np.generic]) -> dict[str, object]:
    return {"content": array.ravel().tolist(), "shape": list(array.shape)}
