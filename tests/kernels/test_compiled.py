import fcntl
import subprocess
import sys
import threading

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


def test_of_processes_that_begin_at_once_one_compiles(monkeypatch):
    """The lock is the source file's, which another process holds here: a second open file is as good as one."""
    order = []
    monkeypatch.setattr(compiled.numba, "njit", lambda *_args, **_options: lambda _kernel: order.append("compiled"))
    with open(__file__, "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        other = threading.Thread(target=compiled.compile_kernel, args=(lambda keys: keys, types.int64(types.int64)))
        other.start()
        other.join(0.2)
        order.append("let go")
    other.join()
    assert order == ["let go", "compiled"]


def test_a_function_of_no_file_is_compiled_too():
    made = {}
    exec("def double(key): return 2 * key", made)
    assert compiled.compile_kernel(made["double"], types.int64(types.int64))(21) == 42


def test_importing_the_kernels_compiles_nothing():
    code = "import hebe.kernels.fused_lookup as f, hebe.kernels.padding as p; print(f._kernel.cache_info().currsize)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "0\n"
