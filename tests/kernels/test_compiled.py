import fcntl
import gc
import importlib
import subprocess
import sys
import threading
from pathlib import Path

import numba
import numpy as np
import pytest
from numba import types

from hebe.kernels import compiled, kernel_cache


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A folder of the test's own for compiled kernels."""
    monkeypatch.setenv(kernel_cache.CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_kernels_work_where_no_cache_can_be_written(cache):
    cache.write_text("no folder")
    matrix = compiled.array_type(types.int64, 2)
    double = compiled.compile_kernel(lambda keys: 2 * keys[0, 0], types.int64(matrix))
    assert double(np.array([[21]])) == 42
    callback = compiled.compile_callback(lambda key: 2 * key, types.int64(types.int64))
    assert callback.ctypes(21) == 42


def test_of_processes_that_begin_at_once_one_compiles(monkeypatch):
    """The lock is the source file's, which another process holds here: a second open file is as good as one."""
    order = []
    monkeypatch.setattr(compiled, "cache_of", lambda _: order.append("compiled"))
    with open(__file__, "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        other = threading.Thread(target=compiled.compile_kernel, args=(lambda keys: keys, types.int64(types.int64)))
        other.start()
        other.join(0.2)
        order.append("let go")
    other.join()
    assert order == ["let go", "compiled"]


@pytest.fixture
def compile_double(tmp_path, monkeypatch):
    """Compile a kernel as a process does that begins now, and say whether it was on disk."""
    (tmp_path / "doubling.py").write_text("def double(key): return 2 * key\n")
    monkeypatch.syspath_prepend(tmp_path)  # what was kept finds its constants through its module

    def compile_it(options=compiled.OPTIONS):
        monkeypatch.delitem(sys.modules, "doubling", raising=False)
        kernel = compiled.compile_kernel(importlib.import_module("doubling").double, types.int64(types.int64), options)
        assert kernel(21) == 42
        hits = kernel.stats.cache_hits
        del kernel
        gc.collect()  # nothing of it is left
        return bool(hits)

    assert [compile_it(), compile_it()] == [False, True]
    return compile_it


@pytest.fixture
def copied_kernels(tmp_path):
    """What compiles kernels in a package `copied`, with a kernel in one sub-folder that calls what is in another.

    Called, it compiles the kernel in a process of its own and returns what that says, and whether it was on disk.
    """
    sources = {
        **{
            Path(each.__file__).name: Path(each.__file__).read_text().replace("hebe.kernels", "copied")
            for each in (compiled, kernel_cache)
        },
        "__init__.py": "",
        "lookup/__init__.py": "",
        "primitives/__init__.py": "",
        "primitives/scale.py": "import numba\n@numba.njit\ndef scaled(key): return 2 * key\n",
        "lookup/scaling.py": "from copied.primitives.scale import scaled\ndef scale(key): return scaled(key)\n",
    }
    for name, source in sources.items():
        path = tmp_path / "copied" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    code = (
        "from numba import types\n"
        "from copied.compiled import compile_kernel\n"
        "from copied.lookup.scaling import scale\n"
        "kernel = compile_kernel(scale, types.int64(types.int64))\n"
        "print(kernel(21), sum(kernel.stats.cache_hits.values()))"
    )

    def compile_it():
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
        scaled, hits = map(int, done.stdout.split())
        return scaled, bool(hits)

    return compile_it


def test_what_is_kept_is_of_the_sources_in_sub_folders_too(copied_kernels, tmp_path):
    """Where a kernel and what it calls lie in folders of their own, a change of the callee reaches the kernel."""
    assert [copied_kernels(), copied_kernels()] == [(42, False), (42, True)]
    callee = tmp_path / "copied" / "primitives" / "scale.py"
    callee.write_text(callee.read_text().replace("2 * key", "3 * key"))
    assert [copied_kernels(), copied_kernels()] == [(63, False), (63, True)]
    callee.rename(callee.with_name("factor.py"))
    caller = tmp_path / "copied" / "lookup" / "scaling.py"
    caller.write_text(caller.read_text().replace("primitives.scale", "primitives.factor"))
    assert copied_kernels() == (63, False)


@pytest.mark.parametrize("left", [b"", bytes(100)], ids=["nothing", "zeros"])
@pytest.mark.parametrize("ending", ["nbi", "nbc"])
def test_what_is_kept_and_was_not_written_whole_is_compiled_anew(compile_double, cache, left, ending):
    """As a machine leaves it that loses power soon after."""
    [kept] = cache.rglob(f"*.{ending}")
    kept.write_bytes(left)
    assert [compile_double(), compile_double()] == [False, True]


def test_what_is_kept_is_of_its_options(compile_double):
    assert [compile_double(compiled.LOCKED), compile_double(compiled.LOCKED)] == [False, True]
    assert compile_double()


def test_a_kernel_that_cannot_be_compiled_is_an_error():
    with pytest.raises(numba.errors.TypingError):
        compiled.compile_kernel(lambda keys: keys.none, types.int64(types.int64))


def test_a_function_of_no_file_is_compiled_too():
    made = {}
    exec("def double(key): return 2 * key", made)
    assert compiled.compile_kernel(made["double"], types.int64(types.int64))(21) == 42


def test_importing_the_kernels_compiles_nothing():
    code = (
        "import hebe.kernels.lookup.fused_lookup as f; "
        "print(*(each.cache_info().currsize for each in (f._kernel, f.look_up)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "0 0\n"
