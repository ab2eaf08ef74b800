import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from rich.progress import Progress

from hebe_lab.bench.serving import startup


def test_figures_are_of_all_warm_starts_and_the_cold_one():
    warm, cold = startup.figures_of([3.0, 7.0, 4.0], 20.0)
    assert (warm.name, warm.value, warm.low, warm.high, warm.runs) == ("startup.ready_cpu_s", 4.0, 3.0, 7.0, 3)
    assert warm.met is True
    assert (cold.name, cold.value, cold.met) == ("startup.cold_ready_cpu_s", 20.0, None)
    assert startup.figures_of([6.5], 20.0)[0].met is False


def test_time_is_of_a_process_and_its_children():
    """The child and a grandchild that has ended spend what is measured; their parent spends nothing but its start."""
    spend = "import time\nwhile time.process_time() < 0.5: pass\n"
    code = (
        f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {spend!r}])\n"
        f"child = subprocess.Popen([sys.executable, '-c', {spend + 'print(1, flush=True); input()'!r}],"
        " stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\nprint(1, flush=True)\ninput()\nchild.communicate(b'x')"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        process.stdout.readline()
        measured_s = startup.cpu_s(process.pid)
        process.communicate(b"x\n")
    assert 0.9 < measured_s < 3
    assert process.returncode == 0


def test_one_start_is_cold_and_the_first_does_not_count(monkeypatch, tmp_path):
    starts = []

    def start(repository, options=()):
        assert repository == tmp_path
        starts.append(list(options))
        if options:
            assert os.listdir(options[1]) == []
        return float(len(starts))

    monkeypatch.setattr(startup, "bench_repository", lambda *_: tmp_path)
    monkeypatch.setattr(startup, "_precompile", lambda: None)
    monkeypatch.setattr(startup, "ready_cpu_s", start)
    warm, cold = startup.run(True, Progress(disable=True))
    assert (warm.value, warm.runs, cold.value) == (3.0, 3, 5.0)
    assert [each[:1] for each in starts] == [[]] * 4 + [["--kernel-cache"]]


def test_kernels_that_cannot_be_compiled_end_it(monkeypatch):
    monkeypatch.setattr(
        startup.subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=1, stderr="error: no room\n")
    )
    with pytest.raises(RuntimeError, match="no room"):
        startup._precompile()
