import hashlib

import pytest

from hebe.models.repository import stored_file
from hebe.models.repository.stored_file import (
    FileRecord,
    RepositoryError,
    check_sha256,
    check_size,
    make_directories,
    read_checked,
    write_durably,
)

PIECES = [b"one", memoryview(bytearray(range(8))).cast("i"), b"", b"last"]
CONTENT = b"one" + bytes(range(8)) + b"last"
CHECKS = [check_size, check_sha256, read_checked]


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "file"
    return path, write_durably(path, PIECES)


def test_the_record_is_of_the_bytes_that_were_written(written):
    path, record = written
    assert path.read_bytes() == CONTENT
    assert record == FileRecord(len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
    for check in CHECKS:
        check(path, record)
    assert read_checked(path, record) == CONTENT


def test_progress_adds_up_to_the_length_both_ways(tmp_path, monkeypatch):
    monkeypatch.setattr(stored_file, "_READ_BYTES", 4)
    done = []
    record = write_durably(tmp_path / "file", PIECES, done.append)
    assert sum(done) == len(CONTENT)
    done.clear()
    check_sha256(tmp_path / "file", record, done.append)
    assert done == [4, 4, 4, 3]


def test_a_file_that_is_there_is_not_written_over(written):
    path, _ = written
    with pytest.raises(FileExistsError):
        write_durably(path, [b"other"])
    assert path.read_bytes() == CONTENT


def test_what_the_pieces_raise_is_raised(tmp_path):
    def pieces():
        yield b"half"
        raise KeyError("rows")

    with pytest.raises(KeyError, match="rows"):
        write_durably(tmp_path / "file", pieces())


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file; restore it from a backup"),
        (CONTENT[:-1], "truncated: 14 bytes, expected 15"),
        (CONTENT + b"s", "too long: 16 bytes, expected 15"),
    ],
)
def test_another_length_is_an_error_that_names_the_file(written, check, content, message):
    path, record = written
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RepositoryError, match=f"{path}: {message}"):
        check(path, record)


@pytest.mark.parametrize("check", [check_sha256, read_checked])
def test_other_bytes_of_the_same_length_are_an_error(written, check):
    path, record = written
    path.write_bytes(CONTENT.upper())
    check_size(path, record)
    with pytest.raises(RepositoryError, match=f"{path}: checksum differs: .* expected {record.sha256[:12]}"):
        check(path, record)


def test_a_directory_in_the_files_place_is_no_file(written):
    path, record = written
    path.unlink()
    path.mkdir()
    with pytest.raises(RepositoryError, match="a directory; restore it"):
        check_size(path, record)


def test_directories_are_made_as_deep_as_is_needed_and_their_names_flushed(tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr(stored_file, "flush_directory", flushed.append)
    make_directories(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    assert set(flushed) == {tmp_path, tmp_path / "a"}, "a name lies in the directory above"
    flushed.clear()
    make_directories(tmp_path / "a" / "b")
    assert flushed == []


@pytest.mark.parametrize("size_bytes", [-1, 1.0, True, "1", None])
def test_a_length_is_a_whole_number(size_bytes):
    with pytest.raises(ValueError, match=r"size_bytes is .*: must be a whole number of at least 0"):
        FileRecord(size_bytes, "0" * 64)


@pytest.mark.parametrize("sha256", ["", "0" * 63, "0" * 65, "0" * 64 + "\n", "A" * 64, "g" * 64, None, b"0" * 64])
def test_a_checksum_is_64_hexadecimal_digits(sha256):
    with pytest.raises(ValueError, match=r"sha256 is .*: must be 64 hexadecimal digits"):
        FileRecord(0, sha256)
