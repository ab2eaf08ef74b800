"""Directories of links: whose they are while they are used, and where they go."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from hebe.embeddings.rocksdb import copy as links_directory
from hebe.embeddings.rocksdb.copy import LinksDirectory, remove_left_over
from hebe.embeddings.rocksdb.database import Database

HOLDING = (
    "import sys; from hebe.embeddings.rocksdb.copy import LinksDirectory; held = LinksDirectory();"
    "(held.path / 'link').symlink_to('/etc'); print(held.path, flush=True); sys.stdin.read()"
)


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """The directory for temporary files, of this process and of those that it starts."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    monkeypatch.setenv("TMPDIR", str(place))
    return place


@pytest.fixture
def holder():
    """A process that has such a directory, and where."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process, Path(process.stdout.readline().strip())
        process.kill()


def test_what_a_killed_process_left_goes_when_the_next_store_is_opened(holder, temporary, tmp_path):
    process, left = holder
    Database(tmp_path / "store", ["t"], read_only=False, creates=True).close()
    assert (left / "link").is_symlink(), "it is in use"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert left.is_dir()
    Database(tmp_path / "second", ["t"], read_only=False, creates=True).close()
    assert not list(temporary.iterdir())
    assert Path("/etc").is_dir(), "links are removed, not what they lead to"


def test_one_in_use_in_this_process_stays_until_it_is_closed(temporary):
    held = LinksDirectory()
    remove_left_over()
    assert list(temporary.iterdir()) == [held.path]
    held.close()
    held.close()
    assert not list(temporary.iterdir())


def test_one_that_is_removed_before_it_is_locked_is_made_anew(temporary, monkeypatch):
    lock, late = links_directory._lock, [True]

    def overtaken(path):
        if late.pop() if late else False:
            remove_left_over()
        return lock(path)

    monkeypatch.setattr(links_directory, "_lock", overtaken)
    held = LinksDirectory()
    assert (list(temporary.iterdir()), late) == ([held.path], [])
    held.close()


def test_what_is_another_users_or_no_directory_is_left_alone(temporary, tmp_path, monkeypatch):
    others = temporary / "hebe-store-links-others"
    others.mkdir()
    (temporary / "hebe-store-links-file").touch()
    (temporary / "hebe-store-links-link").symlink_to(tmp_path)
    (temporary / "hebe-store-1").mkdir()
    user = links_directory.os.geteuid()
    monkeypatch.setattr(links_directory.os, "geteuid", lambda: user + 1)
    remove_left_over()
    assert len(list(temporary.iterdir())) == 4
    monkeypatch.undo()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    remove_left_over()
    assert {path.name for path in temporary.iterdir()} == {
        "hebe-store-1", "hebe-store-links-file", "hebe-store-links-link",
    }  # fmt: skip
    assert tmp_path.is_dir()


def test_where_no_temporary_file_can_be_made_none_is_looked_for(tmp_path, monkeypatch):
    """As where all disks are full: a store is opened all the same."""

    def full():
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", full)
    remove_left_over()
    Database(tmp_path / "rows", ["t"], read_only=False, creates=True).close()
