import errno
import importlib
import logging
import os
import subprocess
import sys

import pytest
from numba import types

from hebe.cli.terminal.options import KERNEL_CACHE_VARIABLE
from hebe.kernels import compiled, kernel_cache

SIGNATURE = types.int64(types.int64)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A folder of the test's own for compiled kernels, in a process that has logged and counted nothing yet."""
    monkeypatch.setenv(kernel_cache.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(kernel_cache, "_said", set())
    monkeypatch.setattr(kernel_cache, "counts", kernel_cache.KernelCounts())
    return tmp_path / "cache"


@pytest.fixture
def compile_one(tmp_path, monkeypatch):
    """Compile a kernel as a process does that begins now."""
    (tmp_path / "doubling.py").write_text("def double(key): return 2 * key\ndef treble(key): return 3 * key\n")
    monkeypatch.syspath_prepend(tmp_path)

    def compile_it(name="double"):
        monkeypatch.delitem(sys.modules, "doubling", raising=False)
        kernel_cache._chosen_folder.cache_clear()
        kernel = compiled.compile_kernel(getattr(importlib.import_module("doubling"), name), SIGNATURE)
        assert kernel(7) == {"double": 14, "treble": 21}[name]

    yield compile_it
    kernel_cache._chosen_folder.cache_clear()


def lines(caplog, level):
    return [record.getMessage() for record in caplog.records if record.levelno == level]


def numbers():
    return (kernel_cache.counts.compiled, kernel_cache.counts.loaded, kernel_cache.counts.unkept)


def test_the_command_line_names_the_same_variable():
    assert KERNEL_CACHE_VARIABLE == kernel_cache.CACHE_VARIABLE


def test_one_line_a_process_says_that_kernels_are_compiled(compile_one, caplog):
    caplog.set_level(logging.INFO)
    compile_one("double")
    compile_one("treble")
    [line] = lines(caplog, logging.INFO)
    assert "hebe precompile" in line
    assert not lines(caplog, logging.WARNING)
    assert numbers() == (2, 0, 0)


def test_nothing_is_said_of_kernels_that_were_kept(compile_one, caplog, monkeypatch):
    compile_one()
    monkeypatch.setattr(kernel_cache, "_said", set())
    caplog.clear()
    compile_one()
    assert not caplog.records
    assert numbers() == (1, 1, 0)


@pytest.mark.parametrize(
    ("part", "other", "named"),
    [("_processor", "other-cpu-12345678", "other-cpu"), ("_interpreter", "cpython-310-numba-0.1", "numba-0.1")],
)
def test_one_line_says_whose_kernels_the_cache_has(compile_one, caplog, monkeypatch, part, other, named):
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(kernel_cache, part, lambda: other)
        compile_one()
    caplog.clear()
    compile_one("double")
    compile_one("treble")
    [line] = lines(caplog, logging.WARNING)
    assert named in line
    assert numbers() == (3, 0, 0)


def test_the_same_cpu_with_other_features_is_another(compile_one, caplog, monkeypatch):
    name = kernel_cache._processor().rpartition("-")[0]
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(kernel_cache, "_processor", lambda: f"{name}-00000000")
        compile_one()
    compile_one()
    assert "features" in lines(caplog, logging.WARNING)[0]


def test_one_line_says_that_the_cache_cannot_be_written(compile_one, cache, caplog):
    cache.write_text("no folder")
    compile_one("double")
    compile_one("treble")
    [line] = lines(caplog, logging.WARNING)
    assert str(cache) in line
    assert os.strerror(errno.ENOTDIR) in line
    assert kernel_cache.CACHE_VARIABLE in line
    assert numbers() == (2, 0, 2)
    with pytest.raises(kernel_cache.KernelCacheError, match=str(cache)):
        kernel_cache.required_kernel_folder()


def test_a_disk_that_is_full_costs_no_kernel(compile_one, caplog, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(kernel_cache.FunctionCache, "save_overload", full)
    compile_one("double")
    compile_one("treble")
    [line] = lines(caplog, logging.WARNING)
    assert os.strerror(errno.ENOSPC) in line
    assert numbers() == (2, 0, 2)


def test_kernels_of_a_folder_that_cannot_be_written_are_loaded(compile_one, caplog, monkeypatch):
    """As of an image, whose builder was root."""
    compile_one()
    caplog.clear()
    monkeypatch.setattr(kernel_cache, "_why_not_writable", lambda _: os.strerror(errno.EROFS))
    compile_one()
    assert numbers() == (1, 1, 0)
    assert not caplog.records


def test_without_a_name_kernels_lie_beside_the_sources_or_in_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.delenv(kernel_cache.CACHE_VARIABLE)
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    monkeypatch.setattr(kernel_cache, "__file__", str(tmp_path / "kernels" / "kernel_cache.py"))
    choose = kernel_cache._chosen_folder.__wrapped__
    former = tmp_path / "kernels" / "__pycache__" / "kernels-former" / "x.nbi"
    former.parent.mkdir(parents=True)
    former.touch()
    assert choose("").path.is_relative_to(tmp_path / "kernels" / "__pycache__")
    assert not former.parent.exists(), "of sources that are no more"
    (tmp_path / "kernels" / "__pycache__").rename(tmp_path / "gone")
    (tmp_path / "kernels" / "__pycache__").touch()  # nor can root write below it
    assert choose("").path.is_relative_to(tmp_path / "user" / "hebe")
    assert choose(str(tmp_path / "named")).path.is_relative_to(tmp_path / "named")


def test_another_of_the_same_cache_is_named_by_numbas_variable(monkeypatch, tmp_path):
    monkeypatch.delenv(kernel_cache.CACHE_VARIABLE)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "numba"))
    assert kernel_cache.kernel_folder().path.is_relative_to(tmp_path / "numba")


def test_a_library_that_compiles_prints_nothing(cache):
    code = (
        "import numpy as np\n"
        "from hebe.kernels.hash_tables.xxh64 import key_partitions\n"
        "print(key_partitions(np.zeros(1, np.int64), 1))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("[0]\n", "")
    assert list(cache.rglob("*.nbi"))
