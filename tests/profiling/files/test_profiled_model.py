import json
from dataclasses import replace
from pathlib import Path

import pytest

from hebe.profile import ProfileError
from hebe.profiling.error import ProfilingError
from hebe.profiling.files.profiled_model import ProfileSubject, file_checksum, file_of, form_words
from hebe.spec import SlaTarget

SUBJECT = ProfileSubject(
    "dlrm", 3, "ab12", "scripted", "a processor, 2 cores, 8 GiB", SlaTarget(20.0), "sizes production"
)


def test_a_subject_survives_the_way_to_disk_and_back():
    assert ProfileSubject.from_dict(json.loads(json.dumps(SUBJECT.to_dict()))) == SUBJECT


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": ""}, "model is ''"),
        ({"server": "two\nlines"}, "server is .*: must be one line of text"),
        ({"load": None}, "load is None"),
        ({"version": 0}, "version is 0"),
        ({"version": True}, "version is True"),
        ({"sla": 20}, "sla is 20: must be an object"),
        ({"sla": {"latency_ms": 20.0}}, "sla: field 'percentile' is missing"),
        ({"sla": {"latency_ms": 0, "percentile": 95}}, "latency_ms is 0"),
        ({"sla": {"latency_ms": "20", "percentile": 95}}, "sla: "),
        ({"sla": {"latency_ms": 10**400, "percentile": 95}}, "sla: "),
        ({"colour": "red"}, "unknown field 'colour'"),
    ],
)
def test_bad_subjects_are_refused_by_field(change, message):
    with pytest.raises(ProfileError, match=f"subject: .*{message}|subject: {message}"):
        ProfileSubject.from_dict(SUBJECT.to_dict() | change)


@pytest.mark.parametrize("name", ["model", "version", "identity", "loaded", "server", "sla", "load"])
def test_a_subject_names_the_field_that_it_lacks(name):
    with pytest.raises(ProfileError, match=f"subject: field '{name}' is missing"):
        ProfileSubject.from_dict({key: value for key, value in SUBJECT.to_dict().items() if key != name})


def test_what_is_no_subject_at_all_is_refused():
    with pytest.raises(ProfileError, match=r"subject is \[1\]"):
        ProfileSubject.from_dict([1])


def test_the_sizes_that_were_sent_are_in_the_words_of_the_load():
    assert SUBJECT.sizes == "production"
    assert replace(SUBJECT, load="sizes quantiles:1,2,3, arrivals poisson").sizes == "quantiles:1,2,3"
    assert replace(SUBJECT, load="sizes  quantiles:1, 2,3, arrivals poisson").sizes == "quantiles:1, 2,3"
    assert replace(SUBJECT, load="any").sizes is None


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
