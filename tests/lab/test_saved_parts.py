"""What a study keeps of what it has measured: used again for the same, and for nothing else."""

import json
from dataclasses import dataclass

import pytest

from hebe_lab.saved_parts import KeptParts


@dataclass(frozen=True)
class Part:
    value: float
    words: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, data):
        return cls(data["value"], tuple(data["words"]))


OF = {"command": "hebe study long", "machine": {"cores": 2}}


def measured_twice(first, second):
    """What two runs come to, and how often they measured."""
    times = []

    def measure():
        times.append(1)
        return Part(float(len(times)), ("a", "b"))

    found = [parts.part("RMC1", measure, Part.from_dict) for parts in (first, second)]
    return found, len(times)


def test_a_run_goes_on_with_what_the_one_before_kept(tmp_path):
    told = []
    later = KeptParts(tmp_path / "kept", OF, told.append)
    (first, second), measured = measured_twice(KeptParts(tmp_path / "kept", OF), later)
    assert (first, measured) == (second, 1)
    assert later.earlier_s > 0
    assert "RMC1 is as measured at" in told[0]
    assert str(tmp_path / "kept" / "RMC1.json") in told[0]
    later.remove()
    assert not (tmp_path / "kept").exists()
    later.remove()


@pytest.mark.parametrize("other", [{**OF, "command": "hebe study long --full"}, {**OF, "commit": "b"}, {}])
def test_what_was_measured_of_something_else_is_measured_anew(tmp_path, other):
    (_, second), measured = measured_twice(KeptParts(tmp_path, OF), KeptParts(tmp_path, other))
    assert (second.value, measured) == (2.0, 2)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[]",
        b'{"of": 1}',
        json.dumps({"of": OF, "at": "now", "seconds": "1", "part": {}}).encode(),
        json.dumps({"of": OF, "at": "now", "seconds": 1.0, "part": {"value": 1.0}}).encode(),
        json.dumps({"of": OF, "at": "now", "seconds": 1.0, "part": {"value": 1.0, "words": None}}).encode(),
    ],
)
def test_a_damaged_file_is_measured_anew_and_replaced(tmp_path, content):
    (tmp_path / "RMC1.json").write_bytes(content)
    found, measured = measured_twice(KeptParts(tmp_path, OF), KeptParts(tmp_path, OF))
    assert measured == 1
    assert found[0] == found[1] == Part(1.0, ("a", "b"))


def test_without_a_directory_each_run_measures():
    found, measured = measured_twice(KeptParts(), KeptParts())
    assert measured == 2
    assert found[0] != found[1]


def test_what_fails_keeps_nothing(tmp_path):
    parts = KeptParts(tmp_path / "kept", OF)

    def fail():
        raise ValueError("did not settle")

    with pytest.raises(ValueError, match="did not settle"):
        parts.part("RMC1", fail, Part.from_dict)
    assert not (tmp_path / "kept").exists()
