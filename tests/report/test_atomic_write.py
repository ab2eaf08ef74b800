import errno
import os
import resource
import stat
from pathlib import Path

import pytest

from hebe.report.atomic_write import check_writable, write_whole


def test_an_older_file_is_replaced_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "made" / "page.html"
    write_whole(path, "older and longer")
    before = path.open()
    write_whole(path, "new é")
    assert path.read_text(encoding="utf-8") == "new é"
    with before:
        assert before.read() == "older and longer", "who has the older file open keeps it"
    assert path.stat().st_mode & 0o777 == 0o644
    assert os.listdir(path.parent) == ["page.html"]
    write_whole(path, "a secret", 0o600)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_failure_leaves_the_older_file(tmp_path):
    path = tmp_path / "page.html"
    write_whole(path, "older")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "x" * 100_000 + "\udc80")
    assert path.read_text() == "older"
    assert os.listdir(tmp_path) == ["page.html"]


def test_a_disk_that_takes_no_more_is_an_error_that_names_the_file(tmp_path):
    path = tmp_path / "page.html"
    write_whole(path, "older")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        with pytest.raises(OSError, match=r"page\.html") as fault:
            write_whole(path, "x" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (fault.value.errno, fault.value.filename) == (errno.EFBIG, str(path))
    assert path.read_text() == "older"
    assert os.listdir(tmp_path) == ["page.html"]


def test_a_check_makes_and_leaves_nothing(tmp_path):
    (tmp_path / "old.html").write_text("older")
    for name in ("old.html", "made/later/page.html"):
        check_writable(tmp_path / name)
    assert os.listdir(tmp_path) == ["old.html"]
    assert (tmp_path / "old.html").read_text() == "older"


@pytest.mark.parametrize("name", ["/proc/x/page.html", "/proc/page.html", "/tmp", "/tmp/" + "x" * 300])
def test_a_check_says_what_writing_would_run_into(name):
    with pytest.raises(OSError, match=r"\[Errno \d+\]"):
        check_writable(Path(name))


@pytest.fixture
def pipe(tmp_path):
    """A named pipe, and what reads it without waiting."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    yield path, reader
    os.close(reader)


def test_what_is_no_file_is_written_into_and_stays(tmp_path, pipe):
    path, reader = pipe
    (tmp_path / "link").symlink_to("pipe")
    for name in (path, tmp_path / "link"):
        check_writable(name)
        write_whole(name, "told é")
        assert os.read(reader, 100).decode() == "told é"
    assert stat.S_ISFIFO(path.stat().st_mode)
    assert (tmp_path / "link").is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["link", "pipe"]


def test_a_pipe_that_nobody_may_write_to_is_said_before(pipe, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, _mode: path != pipe[0])  # root may
    with pytest.raises(PermissionError, match=r"Permission denied: '.*pipe'"):
        check_writable(pipe[0])


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path):
    page = tmp_path / "page.html"
    page.symlink_to("made/today.html")
    for text in ("the first", "the second"):
        check_writable(page)
        write_whole(page, text)
        assert (tmp_path / "made" / "today.html").read_text() == text
    assert page.is_symlink()
    assert os.listdir(tmp_path / "made") == ["today.html"]


@pytest.mark.parametrize("output", [1, 2])
def test_the_own_output_is_written_into_where_it_leads_to_a_file(tmp_path, output):
    page, kept = tmp_path / "page", os.dup(output)
    page.symlink_to(f"/proc/self/fd/{output}")
    with (tmp_path / "printed").open("wb") as printed:
        os.dup2(printed.fileno(), output)
        try:
            os.write(output, b"before, ")
            check_writable(page)
            write_whole(page, "the page, ")
            os.write(output, b"after")
        finally:
            os.dup2(kept, output)
            os.close(kept)
    assert (tmp_path / "printed").read_text() == "before, the page, after"
    assert page.is_symlink()
