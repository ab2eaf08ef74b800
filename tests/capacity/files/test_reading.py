"""What is wrong with a file itself, and what stands for data that came from none."""

import tomllib
from pathlib import Path

import pytest

from hebe.capacity.errors import PlanFileError
from hebe.capacity.files.reading import in_memory, paths_of, reading


@pytest.mark.parametrize("content", [b"a =", b"\xff", b"a = " + b"9" * 5000])
def test_what_is_no_toml_is_an_error_that_names_the_file(tmp_path, content):
    path = tmp_path / "a.toml"
    path.write_bytes(content)
    with pytest.raises(PlanFileError, match=r"a\.toml: "), reading(path):
        tomllib.loads(path.read_text(encoding="utf-8"))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(PlanFileError, match=r"gone: cannot be read"), reading(tmp_path / "gone"):
        (tmp_path / "gone").read_text()


def test_one_path_or_several_are_several():
    assert paths_of("a") == paths_of(Path("a")) == paths_of(["a"]) == (Path("a"),)
    assert str(in_memory("prices")) == "<prices>"
