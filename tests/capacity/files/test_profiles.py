"""Whether the throughputs of profiles compare, by what was profiled and how."""

from dataclasses import replace
from pathlib import Path

import pytest

from hebe.capacity.errors import PlanFileError
from hebe.capacity.files.profiles import check_throughputs_compare, holds_profiles, read_profiles
from hebe.profiling.files.server_profile import write_server_profile
from hebe.spec import SlaTarget
from tests.examples.profiles import SERVER, profile

PAIRS = {("dlrm", SERVER.name), ("dlrm", "large")}


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def two_profiles(**changes):
    """A directory of dlrm's on two server types, the second one's subject changed."""
    one, spec = profile(), replace(SERVER, name="large")
    write_server_profile(Path("profiles/a.json"), one)
    efficiency = replace(one.efficiency, server_type="large")
    subject = replace(one.subject, server="large", **changes)
    write_server_profile(Path("profiles/b.json"), replace(one, subject=subject, server=spec, efficiency=efficiency))
    return Path("profiles")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"sla": SlaTarget(100.0)},
            "dlrm was profiled for unlike SLA targets, whose throughputs do not compare: profiles/a.json p95 within"
            " 20 ms, profiles/b.json p95 within 100 ms: profile one of them again",
        ),
        (
            {"version": 4},
            "in unlike versions, whose throughputs do not compare: profiles/a.json version 3 (files ab12)",
        ),
        ({"identity": "cd34"}, "profiles/b.json version 3 (files cd34): profile one of them again"),
    ],
)
def test_throughputs_that_do_not_compare_are_refused_where_both_count(changes, told):
    folder = two_profiles(**changes)
    with pytest.raises(PlanFileError) as fault:
        check_throughputs_compare(folder, PAIRS)
    assert told in str(fault.value)
    assert check_throughputs_compare(folder, {("dlrm", SERVER.name)}) == []


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"load": "sizes fixed:10, seed 0"},
            "dlrm was not profiled alike on all server types, so that its throughputs may not compare: a.json with"
            " sizes production, b.json with sizes fixed:10.",
        ),
        ({"load": "sizes production, seed 0, quick"}, "b.json with sizes production, quick."),
        ({"loaded": "scripted, int8"}, "b.json with the model loaded so: scripted, int8."),
        ({"load": "sizes production, seed 7, 500 bytes of hot rows by these keys"}, None),
    ],
)
def test_what_was_unlike_when_throughputs_were_measured_is_told(changes, told):
    remarks = check_throughputs_compare(two_profiles(**changes), PAIRS)
    assert [remark.endswith(told) for remark in remarks] == ([] if told is None else [True])


def test_only_what_says_of_which_kind_it_is_holds_profiles():
    folder = two_profiles()
    assert holds_profiles(folder)
    assert holds_profiles(folder / "a.json")
    Path("tuples.json").write_text('[{"model": "dlrm"}]')
    assert not holds_profiles(Path("tuples.json"))
    assert not holds_profiles(Path("tuples.csv"))
    assert check_throughputs_compare(Path("tuples.json"), PAIRS) == []
    Path("spoilt.json").write_text("{")
    with pytest.raises(PlanFileError, match=r"spoilt\.json: cannot be read"):
        holds_profiles(Path("spoilt.json"))


def test_a_directory_is_read_in_the_order_of_its_names_and_no_pair_twice():
    folder = two_profiles()
    assert [one.path.name for one in read_profiles(folder)] == ["a.json", "b.json"]
    assert [one.pair for one in read_profiles(folder / "b.json")] == [("dlrm", "large")]
    write_server_profile(folder / "c.json", profile())
    with pytest.raises(PlanFileError, match=r"c\.json: dlrm on .* is given twice, before in profiles/a\.json"):
        read_profiles(folder)
