import os
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError

import pytest

import hebe.report.measured_on as machine
from hebe.report.measured_on import current_commit, describe_machine


def test_a_machine_is_described_by_what_this_process_may_use(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 3, 4})
    described = describe_machine()
    assert set(described) == {"cpu", "cores", "memory_bytes", "kernel", "python", "torch"}
    assert described["cores"] == 3
    assert described["memory_bytes"] > 1 << 28
    assert described["python"] == ".".join(map(str, sys.version_info[:3]))
    assert described["cpu"]
    assert described["torch"][0].isdigit()


def test_the_processor_is_the_first_that_the_system_lists(tmp_path, monkeypatch):
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Fast: v2 @ 3 GHz\nmodel name\t: Slow\n")
    monkeypatch.setattr(machine, "Path", lambda _: tmp_path / "cpuinfo")
    assert describe_machine()["cpu"] == "Fast: v2 @ 3 GHz"


def test_what_the_system_does_not_tell_is_unknown(tmp_path, monkeypatch):
    def untold(*_):
        raise ValueError("no such name")

    def no_package(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(machine, "Path", lambda _: tmp_path / "none")
    monkeypatch.setattr(machine.platform, "processor", lambda: "")
    monkeypatch.setattr(os, "sysconf", untold)
    monkeypatch.setattr(machine, "version", no_package)
    described = describe_machine()
    assert (described["cpu"], described["memory_bytes"], described["torch"]) == ("unknown", 0, "unknown")


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository with a file that stands for `machine.py`; runs git in it."""
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "a")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "a@b")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)

    def git(*arguments):
        done = subprocess.run(["git", "-C", tmp_path, *arguments], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "--quiet")
    (tmp_path / "machine.py").write_text("one")
    monkeypatch.setattr(machine, "__file__", str(tmp_path / "machine.py"))
    return git, tmp_path


def test_a_commit_is_that_of_the_tree_and_says_whether_it_was_changed(checkout):
    git, tree = checkout
    git("add", ".")
    git("commit", "--quiet", "--message", "first")
    commit = git("rev-parse", "HEAD")[:12]
    assert current_commit() == commit
    (tree / "beside.txt").write_text("not tracked, not run")
    assert current_commit() == commit
    (tree / "machine.py").write_text("two")
    assert current_commit() == f"{commit}+changes"


def test_a_repository_that_does_not_track_this_package_is_somebody_elses(checkout):
    git, tree = checkout
    (tree / "theirs.txt").write_text("")
    git("add", "theirs.txt")
    git("commit", "--quiet", "--message", "theirs")
    assert current_commit() == "unknown"


def test_without_a_repository_or_without_git_the_commit_is_unknown(checkout, monkeypatch):
    _, tree = checkout
    assert current_commit() == "unknown", "nothing is committed"
    shutil.rmtree(tree / ".git")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tree.parent))
    assert current_commit() == "unknown"
    monkeypatch.setenv("PATH", str(tree))
    assert current_commit() == "unknown"
