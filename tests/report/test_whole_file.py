import errno
import os
import resource
from pathlib import Path

import pytest

from hebe.report.whole_file import check_writable, write_whole


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
