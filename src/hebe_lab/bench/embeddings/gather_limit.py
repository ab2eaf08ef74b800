"""How fast this machine gathers random rows at best: the limit that the fused lookup is held against.

It shares no code with it. The candidates are a C++ loop that does nothing but add rows of 64 floats in vector
registers, with and without prefetching, and torch's `embedding_bag` on the same memory; the fastest is the limit.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

DIM = 64

Gather = Callable[[npt.NDArray[np.int64]], object]

_SOURCE = """
#include <cstdint>
#include <cstring>

typedef float lanes __attribute__((vector_size(64)));

extern "C" void gather_sum(const float* table, const int64_t* keys, int64_t items, int64_t lookups, int64_t ahead,
                           float* out) {
    const int64_t all = items * lookups;
    for (int64_t item = 0; item < items; ++item) {
        lanes sum[4] = {};
        for (int64_t at = item * lookups; at < (item + 1) * lookups; ++at) {
            if (ahead && at + ahead < all) {
                const float* soon = table + keys[at + ahead] * 64;
                for (int line = 0; line < 4; ++line) __builtin_prefetch(soon + 16 * line);
            }
            const float* row = table + keys[at] * 64;
            for (int part = 0; part < 4; ++part) {
                lanes values;
                std::memcpy(&values, row + 16 * part, sizeof values);
                sum[part] += values;
            }
        }
        std::memcpy(out + item * 64, sum, sizeof sum);
    }
}
"""


def gather_candidates(table: npt.NDArray[np.float32], items: int, lookups: int) -> Mapping[str, Gather]:
    """Ways to sum `lookups` random rows of `table`, float32 `[rows, 64]`, for each of `items`, by name.

    Each takes the keys, int64 `[items, lookups]`. Without a C++ compiler only torch's is left.
    """
    weight = torch.from_numpy(table)

    def torch_bag(keys: npt.NDArray[np.int64]) -> object:
        return torch.nn.functional.embedding_bag(torch.from_numpy(keys), weight, mode="sum")

    candidates: dict[str, Gather] = {"torch embedding_bag on the same memory": torch_bag}
    loop = _compile()
    if loop is not None:
        out = np.empty((items, DIM), np.float32)
        for ahead, name in ((0, "C++ loop"), (16, "C++ loop with prefetch")):

            def gather(keys: npt.NDArray[np.int64], ahead: int = ahead) -> object:
                loop(table.ctypes.data, keys.ctypes.data, items, lookups, ahead, out.ctypes.data)
                return out

            candidates[name] = gather
    return candidates


def _compile() -> Callable[..., object] | None:
    """The C++ loop, or None where it cannot be built."""
    compiler = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as directory:
        source, library = Path(directory) / "gather.cpp", Path(directory) / "gather.so"
        source.write_text(_SOURCE)
        command = [compiler, "-O3", "-march=native", "-shared", "-fPIC", "-o", str(library), str(source)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            return None
        loop = ctypes.CDLL(str(library)).gather_sum
    loop.argtypes = [ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 3, ctypes.c_void_p]
    loop.restype = None
    return loop
