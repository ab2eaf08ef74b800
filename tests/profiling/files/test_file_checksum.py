from pathlib import Path

import pytest

from hebe.profiling.error import ProfilingError
from hebe.profiling.files.profiled_model import file_checksum, file_of, form_words


def test_a_checksum_is_of_the_content(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("a day")
    other.write_text("a day")
    assert file_checksum(one) == file_checksum(other)
    assert len(file_checksum(one)) == 12
    other.write_text("another day")
    assert file_checksum(one) != file_checksum(other)


def test_what_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ProfilingError, match=r"gone\.csv: cannot be read: No such file"):
        file_checksum(tmp_path / "gone.csv")
    with pytest.raises(ProfilingError, match="cannot be read: Is a directory"):
        file_checksum(tmp_path)


@pytest.mark.parametrize(
    ("form", "path"),
    [
        ("poisson", None), ("uniform", None), ("zipf:1.2", None), ("burst:3:1:10", None), ("reuse", None),
        ("reuse:day.csv", "day.csv"), ("reuse:day.csv:table", "day.csv"), ("trace:day.csv", "day.csv"),
        (" trace:days/day.csv:2", "days/day.csv"),
    ],
)  # fmt: skip
def test_the_file_that_a_form_names(form, path):
    assert file_of(form) == (None if path is None else Path(path))


def test_a_form_with_a_file_is_told_with_its_content(tmp_path):
    path = tmp_path / "day.csv"
    path.write_text("a day")
    assert form_words("zipf:1.2") == "zipf:1.2"
    assert form_words(f"trace:{path}:2") == f"trace:{path}:2 ({file_checksum(path)})"
