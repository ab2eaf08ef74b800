import json
import os
import subprocess
import sys

import pytest

from hebe.cli.main import main
from hebe.cli.terminal.options import KERNEL_CACHE_VARIABLE
from hebe.kernels import kernel_cache, precompile
from hebe.kernels.hash_tables import xxh64


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A folder of the test's own for compiled kernels, in a process that has made none."""
    monkeypatch.setenv(KERNEL_CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(kernel_cache, "_said", set())
    monkeypatch.setattr(kernel_cache, "counts", kernel_cache.KernelCounts())
    return tmp_path / "cache"


@pytest.fixture
def one_kernel(monkeypatch):
    """Only one kernel is to be compiled, as all of them take minutes."""
    monkeypatch.setattr(precompile, "STEPS", (("xxh64", xxh64._partition_kernel.__wrapped__),))


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as end:
        main(["precompile", *arguments])
    captured = capsys.readouterr()
    return end.value.code, captured.out, captured.err


@pytest.mark.usefixtures("one_kernel")
def test_what_is_compiled_once_is_there_the_next_time(capsys, cache):
    code, out, err = run(capsys, "--json")
    first = json.loads(out)
    assert code == 0
    assert (first["kernels"], first["compiled"], first["loaded"], first["unkept"]) == (1, 1, 0, 0)
    assert first["directory"].startswith(str(cache))
    assert first["bytes"] == sum(each.stat().st_size for each in cache.rglob("*") if each.is_file()) > 1000
    assert first["seconds"] > 0
    assert first["directory"] in err
    kernel_cache.counts = kernel_cache.KernelCounts()
    second = json.loads(run(capsys, "--json")[1])
    assert (second["kernels"], second["compiled"], second["loaded"]) == (1, 0, 1)


@pytest.mark.usefixtures("cache", "one_kernel")
def test_a_folder_that_is_named_is_used_and_inherited(capsys, tmp_path):
    code, out, _ = run(capsys, "--kernel-cache", str(tmp_path / "named" / "deep"))
    assert code == 0
    assert out.count("\n") == 1
    assert str(tmp_path / "named" / "deep") in out
    assert list((tmp_path / "named").rglob("*.nbi"))
    assert os.environ[KERNEL_CACHE_VARIABLE] == str(tmp_path / "named" / "deep")


@pytest.mark.parametrize("command", [["precompile"], ["serve", "models"]])
def test_a_folder_that_cannot_be_is_wrong_usage(tmp_path, command):
    (tmp_path / "file").touch()
    done = subprocess.run(
        [sys.executable, "-m", "hebe", *command, "--kernel-cache", tmp_path / "file", "--json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    error = json.loads(done.stdout)["error"]
    assert "--kernel-cache" in error
    assert str(tmp_path / "file") in error


@pytest.mark.usefixtures("cache", "one_kernel")
def test_a_folder_that_cannot_be_written_is_an_error(capsys, monkeypatch, cache):
    monkeypatch.setattr(kernel_cache, "_why_not_writable", lambda _: "Read-only file system")
    code, out, _ = run(capsys, "--json")
    assert code == 1
    assert str(cache) in json.loads(out)["error"]


@pytest.mark.usefixtures("cache", "one_kernel")
def test_kernels_that_could_not_be_kept_are_an_error(capsys, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kernel_cache.FunctionCache, "save_overload", full)
    code, out, err = run(capsys, "--json")
    assert code == 1
    assert json.loads(out)["unkept"] == 1
    assert json.loads(out)["error"]
    assert "1 of 1" in err
