import subprocess
import sys

import numba
import numpy as np
from numba import types

from hebe.kernels import compiled


def test_kernels_work_where_no_cache_can_be_written(monkeypatch):
    compile_really = numba.njit

    def without_cache(*args, **options):
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return compile_really(*args, **options)

    monkeypatch.setattr(compiled.numba, "njit", without_cache)
    matrix = compiled.array_type(types.int64, 2)
    double = compiled.compile_kernel(lambda keys: 2 * keys[0, 0], types.int64(matrix))
    assert double(np.array([[21]])) == 42


def test_importing_the_kernels_compiles_nothing():
    code = "import hebe.kernels.fused_lookup as f, hebe.kernels.padding as p; print(f._kernel.cache_info().currsize)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "0\n"
